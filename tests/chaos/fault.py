"""What goes wrong, when and to whom: drawn from a seed, and written down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

from msgspec import Struct

from chaos.clock import SetClock
from chaos.fleet import Fleet, Member
from chaos.place import Place, PostgresPlace, SqlitePlace

WEIGHTS = {
    "kill": 5,
    "stop": 3,
    "redeploy": 3,
    "restart": 2,
    "crash": 1,
    "cut": 3,
    "blip": 4,
    "blackhole": 2,
    "full": 1,
    "disk": 2,
    "late": 3,
    "jump": 2,
    "lock": 2,
}
OUTAGES = {0.1: 4, 0.5: 4, 1.5: 3, 3.0: 3, 10.0: 2, 60.0: 1}
"""How long one worker is cut off, in seconds, and how often in proportion."""

FULL_FOR = 1.0
DISK_FULL_FOR = (0.5, 3.0)
LATE = (0.3, 3.0)
LATE_FOR = 5.0
"""By how much claims are answered late, and for how long, in seconds."""
FURTHEST = 3_600_000
"""By how many milliseconds workers' clocks are set wrong at most."""
BACK, FORWARD = 1_000, 60_000
"""By how many milliseconds the clock is set at a time where it is the store's: what is ready waits
for as long as it is set back."""
PAUSE = (0.3, 1.5)
AWAY = (0.2, 1.0)
"""Between two faults, and before a dead worker is replaced: from and to, in seconds."""

LEAST = 2
"""So many workers are left at work."""

LOOK_EVERY = 0.05


class Fault(Struct, frozen=True, kw_only=True):
    """One thing that went wrong, from when until when; `pid` is the worker it happened to.

    `forward` is by how many milliseconds the store's clock was set forward.
    """

    kind: str
    at: float
    until: float
    pid: int = 0
    detail: str = ""
    forward: int = 0


class Weather:
    """Lets things go wrong, one after the other; what they leave behind may overlap."""

    def __init__(
        self,
        fleet: Fleet,
        place: Place,
        chance: Random,
        lease: float,
        longest_outage: float,
        told: Callable[[Fault], None] = lambda _: None,
    ) -> None:
        self.faults: list[Fault] = []
        self._fleet = fleet
        self._place = place
        self._chance = chance
        self._lease = lease
        self._outages = {s: weight for s, weight in OUTAGES.items() if s <= longest_outage}
        self._told = told
        self._aftermath: set[asyncio.Task[None]] = set()
        self._ahead = 0

    async def blow(self, seconds: float) -> None:
        """Let things go wrong for a while, and for as long as it takes each kind to happen once."""
        kinds = self._kinds()
        deck = self._chance.sample(list(kinds), len(kinds))
        until = time.monotonic() + seconds
        while deck or time.monotonic() < until:
            kind = deck.pop() if deck else self._draw(list(kinds))
            await kinds[kind]()
            await asyncio.sleep(self._chance.uniform(*PAUSE))

    async def calm(self) -> None:
        """Wait until all that was stopped goes on and all that was killed is replaced."""
        await asyncio.gather(*self._aftermath)

    def _draw(self, kinds: list[str]) -> str:
        return self._chance.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]

    def _kinds(self) -> dict[str, Callable[[], Awaitable[None]]]:
        of_workers = {"kill": self._kill, "stop": self._stop, "redeploy": self._redeploy}
        if isinstance(self._place, SqlitePlace):
            return {**of_workers, "lock": self._lock, "jump": self._set_clock}
        return {
            **of_workers,
            "restart": self._restart,
            "crash": self._crash,
            "cut": self._cut,
            "blip": self._blip,
            "blackhole": self._blackhole,
            "full": self._full,
            **({"disk": self._fill_disk} if self._place.has_disk else {}),
            "late": self._late,
            "jump": self._jump,
        }

    # Workers

    async def _kill(self) -> None:
        victim = await self._victim()
        at = await self._fleet.kill(victim)
        self._note("kill", at, pid=victim.pid)
        self._later(self._replace())

    async def _redeploy(self) -> None:
        """Let a worker go home in good order, and have another take its place."""
        victim = await self._victim()
        at = time.monotonic()
        await self._fleet.send_home(victim)
        self._note("redeploy", at, pid=victim.pid)
        self._later(self._replace())

    async def _replace(self) -> None:
        await asyncio.sleep(self._chance.uniform(*AWAY))
        await self._fleet.start()

    async def _stop(self) -> None:
        self._later(self._stand_still(await self._victim()))

    async def _stand_still(self, victim: Member) -> None:
        at = victim.stop()
        await asyncio.sleep(self._lease + self._chance.uniform(0.5, 2.0))
        victim.go_on()
        self._note("stop", at, pid=victim.pid)

    async def _victim(self) -> Member:
        """Choose a worker as soon as enough others are at work."""
        while len(self._fleet.running) <= LEAST:  # noqa: ASYNC110 - processes have no event
            await asyncio.sleep(LOOK_EVERY)
        return self._chance.choice(self._fleet.running)

    # The network between one worker and the database

    async def _blip(self) -> None:
        """Reset a worker's connections, and refuse others for a while."""
        self._later(self._be_cut_off(await self._victim(), "blip"))

    async def _blackhole(self) -> None:
        """Take all that a worker says for a while, and answer nothing."""
        self._later(self._be_cut_off(await self._victim(), "blackhole"))

    async def _be_cut_off(self, victim: Member, kind: str) -> None:
        [seconds] = self._chance.choices(list(self._outages), list(self._outages.values()))
        wire = victim.wire
        assert wire is not None
        at = time.monotonic()
        victim.is_cut_off = True
        if kind == "blip":
            wire.lets_nobody_through = True
            wire.cut()
        else:
            wire.takes_everything = True
            wire.fall_silent()
        await asyncio.sleep(seconds)
        wire.lets_nobody_through = wire.takes_everything = False
        wire.cut()
        victim.is_cut_off = False
        self._note(kind, at, pid=victim.pid, detail=f"for {seconds} s")

    async def _late(self) -> None:
        """Answer a worker's claims late for a while."""
        self._later(self._answer_late(await self._victim()))

    async def _answer_late(self, victim: Member) -> None:
        wire, at = victim.wire, time.monotonic()
        assert wire is not None
        wire.answers_late_to, wire.late_by = b".claim(", self._chance.uniform(*LATE)
        await asyncio.sleep(LATE_FOR)
        wire.answers_late_to = None
        self._note("late", at, pid=victim.pid, detail=f"by {wire.late_by:.1f} s")

    async def _jump(self) -> None:
        """Set the wall clock of all workers; the server's is another one."""
        ahead, at = int(self._chance.uniform(-FURTHEST, FURTHEST)), time.monotonic()
        SetClock(self._fleet.ledger).set(ahead)
        self._note("jump", at, detail=f"{ahead} ms ahead")

    # Databases

    async def _restart(self) -> None:
        assert isinstance(self._place, PostgresPlace)
        at = time.monotonic()
        await self._place.restart()
        self._note("restart", at)

    async def _crash(self) -> None:
        assert isinstance(self._place, PostgresPlace)
        at = time.monotonic()
        await self._place.crash()
        self._note("crash", at)

    async def _cut(self) -> None:
        assert isinstance(self._place, PostgresPlace)
        at = time.monotonic()
        cut = await self._place.cut(self._chance.choice([1.0, 0.4]))
        self._note("cut", at, detail=f"{cut} connections")

    async def _full(self) -> None:
        assert isinstance(self._place, PostgresPlace)
        at = time.monotonic()
        taken = await self._place.fill(FULL_FOR)
        self._note("full", at, detail=f"{taken} connections")

    async def _fill_disk(self) -> None:
        assert isinstance(self._place, PostgresPlace)
        at = time.monotonic()
        await self._place.fill_disk(self._chance.uniform(*DISK_FULL_FOR))
        self._note("disk", at)

    async def _set_clock(self) -> None:
        """Set the store's clock, which is everybody's, forward or a little back."""
        by, at = int(self._chance.uniform(-BACK, FORWARD)), time.monotonic()
        self._ahead += by
        SetClock(self._fleet.ledger).set(self._ahead)
        self._note("jump", at, detail=f"by {by} ms", forward=max(0, by))

    async def _lock(self) -> None:
        assert isinstance(self._place, SqlitePlace)
        at = time.monotonic()
        await self._place.hold_the_lock(1.0)
        self._note("lock", at)

    def _note(
        self, kind: str, at: float, *, pid: int = 0, detail: str = "", forward: int = 0
    ) -> None:
        until = time.monotonic()
        fault = Fault(kind=kind, at=at, until=until, pid=pid, detail=detail, forward=forward)
        self.faults.append(fault)
        self._told(fault)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._aftermath.add(task)
