"""Injects the plan's faults into workers, clocks and the store, at times drawn from the seed.

Owns what each fault does. Which there are in a simulation is drawn in `fault_plan.py`; what a fault
excuses is known to the checks, by its note in the history.
"""

import asyncio

from outlast.stores.sqlite import MemoryStore
from outlast.testing.simulation.clock import VirtualClock
from outlast.testing.simulation.fault_plan import FaultPlan
from outlast.testing.simulation.history import FaultInjected, History
from outlast.testing.simulation.worker import FEWEST, LEASE, MOST, SimulatedWorker, SimulatedWorkers

FURTHEST = 90_000
"""How far a clock jumps at most, in milliseconds."""


class FaultInjector:
    """Strikes now and then, for as long as faults go on."""

    def __init__(
        self,
        workers: SimulatedWorkers,
        store: MemoryStore,
        clock: VirtualClock,
        fault_plan: FaultPlan,
        history: History,
    ) -> None:
        self._workers = workers
        self._store = store
        self._clock = clock
        self._fault_plan = fault_plan
        self._history = history

    async def strike_repeatedly(self) -> None:
        pace = self._fault_plan.choose([3.0, 10.0, 30.0])
        while True:
            await asyncio.sleep(self._fault_plan.between(0.0, pace))
            self._restaff()
            if self._fault_plan.events:
                self._strike(self._fault_plan.choose(self._fault_plan.events))

    def _restaff(self) -> None:
        """Start workers where there are too few, as an operator would."""
        while len(self._workers.living) < FEWEST:
            self._workers.start()

    def _strike(self, event: str) -> None:
        process = self._fault_plan.choose(self._workers.living)
        if event == "started" and len(self._workers.living) >= MOST:
            return
        self._history.note(FaultInjected, what=event, whom=process.life.name)
        match event:
            case "killed":
                self._workers.kill(process)
                self._take_for_dead(process)
            case "killed unseen":
                self._workers.kill(process)
            case "paused":
                self._workers.pause(process, self._fault_plan.between(0.1, 3 * LEASE))
            case "paused and taken for dead":
                self._workers.pause(process, self._fault_plan.between(1.0, 3 * LEASE))
                self._take_for_dead(process)
            case "taken for dead":
                self._take_for_dead(process)
            case "renewals fail":
                self._fail_renewals(process, self._fault_plan.between(1.0, 2 * LEASE))
            case "stopped":
                self._dismiss(process)
            case "started":
                self._workers.start()
            case _:
                self._jump(event, process)

    def _take_for_dead(self, process: SimulatedWorker) -> None:
        delay = self._fault_plan.between(0.3, 1.0)
        loop, name = asyncio.get_running_loop(), process.name
        loop.call_later(delay, self._store.declare_dead, name)

    def _fail_renewals(self, process: SimulatedWorker, seconds: float) -> None:
        def mend() -> None:
            process.connection.renewals_fail = False

        process.connection.renewals_fail = True
        asyncio.get_running_loop().call_later(seconds, mend)

    def _dismiss(self, process: SimulatedWorker) -> None:
        if not process.life.is_stopped:
            asyncio.get_running_loop().create_task(self._workers.stop(process))

    def _jump(self, event: str, process: SimulatedWorker) -> None:
        principal = int(self._fault_plan.between(-FURTHEST, FURTHEST))
        clocks = {
            "clock of a worker jumps": [process.clock],
            "clock of the store jumps": [self._clock],
            "clock of everybody jumps": [self._clock, *(p.clock for p in self._workers.living)],
        }
        for clock in clocks[event]:
            clock.jump(principal)

    def make_good(self) -> None:
        """End all faults: resume paused workers, repair connections, set the clocks right."""
        self._workers.wake_all()
        clocks = [self._clock, *(process.clock for process in self._workers.living)]
        if any(clock.ahead for clock in clocks):
            self._history.note(FaultInjected, what="clock of everybody jumps")
        for clock in clocks:
            clock.ahead = 0
        for process in self._workers.living:
            process.connection.renewals_fail = False
        self._restaff()
