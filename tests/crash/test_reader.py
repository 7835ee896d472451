"""Readers that come and go while workers are killed read what one that stayed has read."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from crash_process import Zygote
from crash_run import Scene, keep_working
from crash_talk import book_a_trip

from outlast import Event, Session
from outlast.testing.crash import CrashPoint

KILLS = [
    CrashPoint(4, "after"),
    CrashPoint(3, "before"),
    CrashPoint(6, "after"),
    CrashPoint(4, "before"),
    CrashPoint(2, "after"),
]


class Wanderer:
    """A reader that leaves after some events and comes back at a cursor that it has passed."""

    def __init__(self, scene: Scene, session_id: str, seed: int) -> None:
        self.read: list[Event] = []
        self.ever: dict[int, Event] = {}
        self._scene = scene
        self._session_id = session_id
        self._chance = random.Random(seed)

    async def wander(self, over: asyncio.Event) -> None:
        """Read until all is over, then to the end."""
        while not over.is_set():
            await self._visit(self._chance.randint(1, 12))
            keep = self._chance.choice([len(self.read), self._chance.randint(0, len(self.read))])
            self.read = self.read[:keep]
        await self._visit(10_000)

    async def _visit(self, most: int) -> None:
        """Connect, read a while, and leave: with a store of its own, as another process has."""
        async with self._scene.open() as app:
            session = await app.session(self._session_id)
            events = session.events(self.read[-1].offset if self.read else 0)
            async for event in events:
                self.read.append(event)
                assert self.ever.setdefault(event.offset, event) == event
                most -= 1
                if not most:
                    break
            await events.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", [1, 2])
async def test_readers_that_reconnect_at_random_cursors_during_kills_miss_nothing(
    zygote: Zygote, tmp_path: Path, seed: int
) -> None:
    scene = Scene(tmp_path, zygote)
    async with scene.open() as app:
        session: Session[Any] = await app.start("travel", "Go!")
        over = asyncio.Event()
        workers = asyncio.create_task(keep_working(app, scene, KILLS, over))
        wanderers = [Wanderer(scene, session.id, seed * 10 + number) for number in range(3)]
        roads = [asyncio.create_task(wanderer.wander(over)) for wanderer in wanderers]
        stayed: list[Event] = []

        [follow_up] = await book_a_trip(app, session, stayed.append)
        await follow_up.result()
        over.set()
        await asyncio.gather(workers, *roads)

        assert stayed == [event async for event in session.events()]
        for wanderer in wanderers:
            assert wanderer.read == stayed
            assert wanderer.ever == {event.offset: event for event in stayed}
        assert (await workers).count(-9) == len(KILLS)
