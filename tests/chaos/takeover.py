"""How long it takes until another worker goes on where one has died, or stands still.

One worker is in the middle of a tool, another waits. The time is that from the blow to the
first commit of the other.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Literal

from msgspec import Struct

from chaos.agent import NAME, porter
from chaos.fleet import Fleet, Member
from chaos.ledger import Ledger, Mark
from chaos.place import Place
from chaos.plan import write_plan
from outlast import Outlast, WorkerSettings
from outlast.core.instant import seconds

Blow = Literal["kill", "stop"]

LONG = 3_600_000
LOOK_EVERY = 0.005
TIMEOUT = 100.0
GOAL = 1.0
"""Seconds until a killed worker's lane goes on, at the median, with the default settings."""


class Takeovers(Struct, frozen=True, kw_only=True):
    """Some takeovers of one kind, in seconds; `lease` is that of the workers."""

    store: str
    blow: Blow
    lease: float
    goal: float
    times: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.times)

    @property
    def is_in_time(self) -> bool:
        return self.median <= self.goal


async def measure(
    place: Place,
    directory: Path,
    blow: Blow,
    *,
    times: int,
    lease: float = 0.0,
) -> Takeovers:
    """Let a worker die, or stand still, several times. Without a `lease`: that by default."""
    settings = WorkerSettings(lease=lease) if lease else WorkerSettings()
    ledger = Ledger(directory / f"{blow}s.jsonl")
    fleet = Fleet(place, ledger.path, lease)
    agents = [porter(ledger, place.url)]
    async with Outlast(agents, store=place.url, worker=None) as app, fleet:
        if blow == "stop":  # before, no lease has run out
            await place.until_up_for(seconds(settings.lease))
        await asyncio.gather(fleet.start(), fleet.start())
        scene = Scene(app, fleet, ledger, place)
        # Evenly over a poll: nobody dies always just after somebody has looked.
        delays = [seconds(settings.poll) * (number + 0.5) / times for number in range(times)]
        found = [await scene.play(blow, delay) for delay in delays]
    goal = GOAL if blow == "kill" else seconds(settings.lease) + seconds(settings.poll)
    return Takeovers(
        store=place.name,
        blow=blow,
        lease=seconds(settings.lease),
        goal=goal,
        times=tuple(found),
    )


class Scene:
    """Two workers, and a session that one of them has."""

    def __init__(self, app: Outlast, fleet: Fleet, ledger: Ledger, place: Place) -> None:
        self._app = app
        self._fleet = fleet
        self._ledger = ledger
        self._place = place

    async def play(self, blow: Blow, delay: float) -> float:
        """Strike in the middle of a tool; return how long the lane stood still."""
        plan = write_plan([[("look", {"item": "far", "ms": LONG})]])
        session = (await self._app.start(NAME, plan)).id
        began = await self._until(session, "begun", "look")
        [owner] = [m for m in self._fleet.members if m.pid == began.pid]
        await asyncio.sleep(delay)
        at = await self._strike(owner, blow)
        taken = await self._until(session, "wrote", "", other_than=owner.pid)
        await self._replace(owner)
        handle = await self._app.session(session)
        await handle.cancel("it was only a test")
        return taken.at - at

    async def _strike(self, owner: Member, blow: Blow) -> float:
        if blow == "kill":
            return await self._fleet.kill(owner)
        with self._place.between_writes():
            return owner.stop()

    async def _replace(self, owner: Member) -> None:
        """Have two workers again; one that stood still is not to be trusted with the next."""
        await self._fleet.kill(owner)
        self._fleet.members.remove(owner)
        await self._fleet.start()

    async def _until(self, session: str, what: str, tool: str, *, other_than: int = 0) -> Mark:
        """Wait for a mark of the session's; the ledger has no event to wait for."""
        until = time.monotonic() + TIMEOUT
        while time.monotonic() < until:
            for mark in self._ledger.read():
                is_it = (mark.session, mark.what, mark.tool) == (session, what, tool)
                if is_it and mark.pid != other_than:
                    return mark
            await asyncio.sleep(LOOK_EVERY)
        raise TimeoutError(f"{session} has no {what} after {TIMEOUT} s")
