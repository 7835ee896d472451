"""What befalls the workers of a simulation, at times that chance decides."""

from __future__ import annotations

import asyncio

from outlast.stores.memory import MemoryStore
from outlast.testing.simulation.clock import VirtualClock
from outlast.testing.simulation.fault_plan import FaultPlan
from outlast.testing.simulation.history import FaultInjected, History
from outlast.testing.simulation.worker import FEWEST, LEASE, MOST, SimulatedWorker, SimulatedWorkers

FURTHEST = 90_000
"""How far a clock jumps at most, in milliseconds."""


class FaultInjector:
    """Strikes now and then, for as long as the weather is bad."""

    def __init__(
        self,
        staff: SimulatedWorkers,
        store: MemoryStore,
        clock: VirtualClock,
        weather: FaultPlan,
        history: History,
    ) -> None:
        self._staff = staff
        self._store = store
        self._clock = clock
        self._weather = weather
        self._history = history

    async def strike_repeatedly(self) -> None:
        pace = self._weather.choose([3.0, 10.0, 30.0])
        while True:
            await asyncio.sleep(self._weather.between(0.0, pace))
            self._restaff()
            if self._weather.events:
                self._strike(self._weather.choose(self._weather.events))

    def _restaff(self) -> None:
        """Somebody always starts workers where there are too few."""
        while len(self._staff.living) < FEWEST:
            self._staff.hire()

    def _strike(self, event: str) -> None:
        process = self._weather.choose(self._staff.living)
        if event == "started" and len(self._staff.living) >= MOST:
            return
        self._history.note(FaultInjected, what=event, whom=process.life.name)
        match event:
            case "killed":
                self._staff.kill(process)
                self._take_for_dead(process)
            case "killed unseen":
                self._staff.kill(process)
            case "paused":
                self._staff.pause(process, self._weather.between(0.1, 3 * LEASE))
            case "paused and taken for dead":
                self._staff.pause(process, self._weather.between(1.0, 3 * LEASE))
                self._take_for_dead(process)
            case "taken for dead":
                self._take_for_dead(process)
            case "renewals fail":
                self._fail_renewals(process, self._weather.between(1.0, 2 * LEASE))
            case "stopped":
                self._dismiss(process)
            case "started":
                self._staff.hire()
            case _:
                self._jump(event, process)

    def _take_for_dead(self, process: SimulatedWorker) -> None:
        delay = self._weather.between(0.3, 1.0)
        loop, name = asyncio.get_running_loop(), process.name
        loop.call_later(delay, self._store.declare_dead, name)

    def _fail_renewals(self, process: SimulatedWorker, seconds: float) -> None:
        def mend() -> None:
            process.connection.renewals_fail = False

        process.connection.renewals_fail = True
        asyncio.get_running_loop().call_later(seconds, mend)

    def _dismiss(self, process: SimulatedWorker) -> None:
        if not process.life.is_stopped:
            asyncio.get_running_loop().create_task(self._staff.dismiss(process))

    def _jump(self, event: str, process: SimulatedWorker) -> None:
        by = int(self._weather.between(-FURTHEST, FURTHEST))
        clocks = {
            "clock of a worker jumps": [process.clock],
            "clock of the store jumps": [self._clock],
            "clock of everybody jumps": [self._clock, *(p.clock for p in self._staff.living)],
        }
        for clock in clocks[event]:
            clock.jump(by)

    def make_good(self) -> None:
        """End all misfortune: wake who is paused, mend what is broken, set the clocks right."""
        self._staff.wake_all()
        clocks = [self._clock, *(process.clock for process in self._staff.living)]
        if any(clock.ahead for clock in clocks):
            self._history.note(FaultInjected, what="clock of everybody jumps")
        for clock in clocks:
            clock.ahead = 0
        for process in self._staff.living:
            process.connection.renewals_fail = False
        self._restaff()
