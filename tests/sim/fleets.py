"""A simulated year of two fleets that keep the same schedules, in faults.

True time goes from one instant to the next. Every process has a clock of its own that is off by
seconds, may be killed at any call to the store, finds the store away now and then, and is down
while its fleet is. What was started is written down with the true time.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from timepiece import ShiftedStore

from outlast import Schedule
from outlast.errors import OutlastError, StoreUnavailable
from outlast.integration.schedule.launch import ScheduleLauncher
from outlast.integration.schedule.scheduler import Scheduler
from outlast.integration.schedule.schedules import Schedules
from outlast.session.inbox import Inbox
from outlast.session.start import SessionStarter
from outlast.store import Admission, AdmissionReceipt, Store
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock
from outlast.testing.wrapped_store import WrappedStore

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

FLEETS = ("old", "new")
SKEW = 4 * SECOND
LOOKS = (5 * SECOND, 25 * SECOND)
"""When processes look, after an instant: first all of them, then one."""

SHARES = (3, 1)


class Killed(BaseException):
    """The process is gone."""


class Down(NamedTuple):
    """A time in which a fleet is down."""

    fleet: str
    start: int
    end: int


class Fired(NamedTuple):
    instant: int
    at: int
    session_id: str


class Ledger(WrappedStore):
    """The store that all share; writes down which sessions were really started, and when."""

    def __init__(self, clock: ManualClock, at_once: bool) -> None:
        super().__init__(MemoryStore(clock))
        self._clock = clock
        self._at_once = at_once
        self.fired: dict[str, list[Fired]] = defaultdict(list)

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        results = await super().admit(admissions)
        for admission, result in zip(admissions, results, strict=True):
            if admission.new and isinstance(result, AdmissionReceipt) and not result.duplicate:
                name = admission.scope.removeprefix("schedule:")
                instant = admission.dispatch_id.removeprefix("instant:")
                fired = Fired(int(instant), self._clock.now(), result.session_id)
                self.fired[name].append(fired)
                if self._at_once:
                    await self.inner.log.erase(result.session_id)
        return results


class Wire(WrappedStore):
    """What lies between a process and the store."""

    def __init__(self, store: Store, chance: random.Random, trouble: float) -> None:
        super().__init__(store)
        self._chance = chance
        self._trouble = trouble

    async def _pass(self) -> None:
        if self._chance.random() < 0.5:
            await asyncio.sleep(0)  # another process is quicker
        luck = self._chance.random()
        if luck < self._trouble:
            raise Killed if luck < self._trouble / 2 else StoreUnavailable("the wire is cut")

    async def scan(self, *args: Any, **options: Any) -> Any:
        await self._pass()
        return await super().scan(*args, **options)

    async def admit(self, admissions: Any) -> Any:
        await self._pass()
        results = await super().admit(admissions)
        await self._pass()
        return results

    async def put(self, *args: Any, **options: Any) -> bool:
        await self._pass()
        written = await super().put(*args, **options)
        await self._pass()
        return written


class Process:
    """One worker's timekeeper, as often as it is started again."""

    def __init__(self, world: World, fleet: str, number: int) -> None:
        self.fleet = fleet
        self.clock = ManualClock(seed=number)
        self.ahead = 0
        self._world = world
        self._skew = world.chance.randint(-SKEW, SKEW)
        self._keeper: Scheduler | None = None

    def stop(self) -> None:
        self._keeper = None

    async def look(self, now: int) -> None:
        """Look at the time, after a new start if it was killed."""
        self.clock.set(now + self._skew + self.ahead)
        self._keeper = self._keeper or self._start()
        try:
            while await self._keeper.run_once() >= 100:  # it was busy to the end
                pass
        except StoreUnavailable:
            return
        except Killed:
            self.stop()

    def _start(self) -> Scheduler:
        world = self._world
        wire = ShiftedStore(Wire(world.store, world.chance, world.trouble), self.clock)
        inbox = Inbox(wire, self.clock)
        sessions = SessionStarter(inbox, self.clock, lambda _: ())
        starter = ScheduleLauncher(inbox, sessions)
        roster = Schedules(world.code[self.fleet], {"a"}, wire, starter)
        return Scheduler(wire, self.clock, roster)


class World:
    """Two fleets of processes, each with its code, and the faults.

    Sessions are over before the next look, or with `over_at_once` as soon as they are started.
    """

    def __init__(
        self,
        seed: int,
        code: Mapping[str, Sequence[Schedule]],
        downs: Sequence[Down] = (),
        trouble: float = 0.005,
        over_at_once: bool = False,
    ) -> None:
        self.chance = random.Random(seed)
        self.code = code
        self.trouble = trouble
        self.clock = ManualClock()
        self.store = Ledger(self.clock, over_at_once)
        self.processes = [Process(self, fleet, n) for n, fleet in enumerate((*FLEETS, FLEETS[0]))]
        self._downs = {
            fleet: sorted((down.start, down.end) for down in downs if down.fleet == fleet)
            for fleet in FLEETS
        }

    def is_up(self, fleet: str, now: int) -> bool:
        return outage_at(self._downs[fleet], now) is None

    async def run(
        self, moments: Iterable[int], between: Callable[[int], Any] = lambda now: None
    ) -> None:
        """Let time come to each of these moments; those that are up look at it a few times."""
        ends = (end for downs in self._downs.values() for _, end in downs)
        for moment in sorted({*moments, *ends}):
            for late, share in zip(LOOKS, SHARES, strict=True):
                now = moment + late
                self.clock.set(now)
                await self.tidy()
                between(now)
                await asyncio.gather(*(each.look(now) for each in self._up(now)[:share]))

    def _up(self, now: int) -> list[Process]:
        """Those that are up, in any order."""
        up = [process for process in self.processes if self.is_up(process.fleet, now)]
        for process in self.processes:
            if process not in up:
                process.stop()
        return self.chance.sample(up, len(up))

    async def tidy(self) -> None:
        for fired in self.store.fired.values():
            for each in reversed(fired):
                if not await self.store.inner.log.erase(each.session_id):
                    break


def fault_plan(seed: int, start: int, end: int) -> list[Down]:
    """Times in which one fleet is down, and such in which both are: for a minute or for days."""
    chance = random.Random(f"fault_plan {seed}")
    downs, now = [], start
    while (now := now + int(chance.expovariate(1 / (4 * DAY)))) < end:
        length = int(MINUTE * 3600 ** chance.random())
        fleets = FLEETS if chance.random() < 0.5 else (chance.choice(FLEETS),)
        downs += [Down(fleet, now, now + length) for fleet in fleets]
        now += length + HOUR
    return downs


Outages = Sequence[tuple[int, int]]


def all_down(downs: Sequence[Down]) -> Outages:
    """The times in which both fleets are down."""
    old, new = ({down[1:] for down in downs if down.fleet == fleet} for fleet in FLEETS)
    return sorted(old & new)


def outage_at(outages: Outages, now: int) -> int | None:
    """When the outage ends that there is at a time."""
    place = bisect_right(outages, (now, now + 1_000 * DAY)) - 1
    if place < 0 or outages[place][1] <= now:
        return None
    return outages[place][1]
