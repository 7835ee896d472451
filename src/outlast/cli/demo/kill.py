"""Kills the worker that owns the demo's lane, at moments chosen from the seed.

A kill point names a place in the scenario and a moment there; the same seed gives the same points.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from outlast.cli.demo.process import WorkerPool
from outlast.cli.demo.progress import DemoProgress, Phase
from outlast.clock import Clock
from outlast.core.event import Event
from outlast.store import SessionInfo

Where = tuple[int, int, Phase]
"""A turn, a step in it, and what is under way there."""

STREAMS = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2))
TOOLS = ((1, 1), (1, 2), (1, 3), (2, 1))
EFFECTS = TOOLS[1:]
LAST = STREAMS[-1]
PLACES: tuple[Where, ...] = tuple(
    sorted(
        [(turn, step, "stream") for turn, step in STREAMS]
        + [(turn, step, "between") for turn, step in STREAMS[1:]]
        + [(turn, step, "tool") for turn, step in TOOLS]
    )
)
MOST_KILLS = 2 * len(PLACES)


class KillPoint(Struct, frozen=True, order=True):
    """Kill in this phase of the step, or of a later one, at a moment from 0 to 1 of it."""

    turn: int
    step: int
    phase: Phase
    moment: float

    @property
    def place(self) -> tuple[int, int]:
        return self.turn, self.step

    @property
    def deltas(self) -> int:
        """How many pieces of a stream to let pass."""
        return 1 + int(self.moment * 9)

    @property
    def delay(self) -> float:
        """How many seconds to let a tool run."""
        return 0.05 + self.moment * 0.85


def chance(*of: object) -> float:
    """Return a number from 0 to 1 that depends on nothing but what it is the chance of."""
    digest = blake2b(repr(of).encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def plan(seed: int, kills: int) -> list[KillPoint]:
    """Choose so many places; with three or more, each phase is hit and one of them is an effect."""
    shuffled = sorted(PLACES, key=lambda place: chance(seed, place))
    firsts = [
        next(p for p in shuffled if p[2] == "tool" and p[:2] in EFFECTS),
        next(p for p in shuffled if p[2] == "stream"),
        next(p for p in shuffled if p[2] == "between"),
    ]
    order = firsts + [place for place in shuffled if place not in firsts]
    chosen = [order[number % len(order)] for number in range(kills)]
    return sorted(
        KillPoint(turn, step, phase, chance(seed, number))
        for number, (turn, step, phase) in enumerate(chosen)
    )


ARRIVALS = {"delivery.queued", "cancel.requested"}
"""Anyone may add these to the log, so they do not show that another worker took over."""


PHASE_OF_EVENT: dict[str, Phase] = {
    "model.started": "between",
    "message.delta": "stream",
    "tool.started": "tool",
}


class Kill(Struct):
    """A kill, and how long it took until another worker added to the log.

    `held` says whether the dead worker had the lane still; else there was nothing to take over.
    """

    worker: str
    phase: Phase
    running: tuple[str, ...]
    at: float
    end: int = 0
    held: bool = True
    by: str = ""
    takeover_ms: int | None = None


class ProcessKiller:
    """Kills one worker at a time, and only while another is ready."""

    def __init__(
        self,
        kill_points: list[KillPoint],
        workers: WorkerPool,
        progress: DemoProgress,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        look: Callable[[], Awaitable[SessionInfo]],
        on_kill: Callable[[Kill], None],
    ) -> None:
        self.kills: list[Kill] = []
        self._kill_points = list(kill_points)
        self._workers = workers
        self._progress = progress
        self._clock = clock
        self._spawn = spawn
        self._look = look
        self._on_kill = on_kill
        self._kill_task: asyncio.Task[None] | None = None
        self._open: Kill | None = None

    def saw(self, event: Event) -> Kill | None:
        """Strike if this is a point; return the kill that this event ends, if it does."""
        ended = self._ended(event)
        if self._open or (self._kill_task and not self._kill_task.done()):
            return ended
        if (phase := PHASE_OF_EVENT.get(event.type)) and (point := self._due_point(phase)):
            self._kill_task = self._spawn(self._kill(point, phase))
        return ended

    def _ended(self, event: Event) -> Kill | None:
        kill = self._open
        if kill is None or not kill.end or event.offset <= kill.end or event.type in ARRIVALS:
            return None
        kill.takeover_ms = round((self._clock.monotonic() - kill.at) * 1000)
        kill.by = event.data.get("worker", "")
        self._open = None
        return kill

    def _due_point(self, phase: Phase) -> KillPoint | None:
        """Return the point whose moment this is.

        One that was missed waits for its like; when more were, or none can come, any will do.
        """
        progress, here = self._progress, (self._progress.turn, self._progress.step)
        missed = [point for point in self._kill_points if point.place < here]
        if len(missed) > 1 or (missed and here >= LAST):
            return missed[0]
        due = (point for point in self._kill_points if point.place <= here and point.phase == phase)
        return next(
            (point for point in due if phase != "stream" or progress.deltas >= point.deltas), None
        )

    async def _kill(self, point: KillPoint, phase: Phase) -> None:
        if phase == "tool":
            await asyncio.sleep(point.delay)
        await self._workers.until_ready(2)
        owner = (await self._look()).lanes[0].worker
        if self._progress.phase != phase or owner not in self._workers.processes:
            return  # the moment has passed: the next one like it will do
        self._kill_points.remove(point)
        running = tuple(self._progress.running.values())
        kill = self._open = Kill(owner, phase, running, self._clock.monotonic())
        self.kills.append(kill)
        await self._workers.processes[owner].kill()
        info = await self._look()
        kill.end, kill.held = info.end, info.lanes[0].worker == owner
        if not kill.held:
            self._open = None
        await self._workers.start()
        await self._caught_up(kill.end)
        self._on_kill(kill)

    async def _caught_up(self, end: int) -> None:
        """Wait a little for the reader to have seen all that the dead worker wrote."""
        for _ in range(20):
            if self._progress.offset >= end:
                return
            await asyncio.sleep(0.01)
