"""Kills the worker that holds the story's lane, at the moments that the plan names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec import Struct

from outlast.cli.demo.plan import LAST, KillPoint, Phase
from outlast.cli.demo.process import WorkerPool
from outlast.cli.demo.scenario import DemoProgress
from outlast.clock import Clock
from outlast.core.event import Event
from outlast.store import SessionInfo

ARRIVALS = {"delivery.queued", "cancel.requested"}
"""What anybody may add to the log: no sign that another worker is there."""


CUES: dict[str, Phase] = {
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
    """Strikes once at a time, and only while another worker stands by."""

    def __init__(
        self,
        cues: list[KillPoint],
        stage: WorkerPool,
        scene: DemoProgress,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        look: Callable[[], Awaitable[SessionInfo]],
        struck: Callable[[Kill], None],
    ) -> None:
        self.kills: list[Kill] = []
        self._cues = list(cues)
        self._stage = stage
        self._scene = scene
        self._clock = clock
        self._spawn = spawn
        self._look = look
        self._struck = struck
        self._strike: asyncio.Task[None] | None = None
        self._open: Kill | None = None

    def saw(self, event: Event) -> Kill | None:
        """Strike if this is a cue; return the kill that this event ends, if it does."""
        ended = self._ended(event)
        if self._open or (self._strike and not self._strike.done()):
            return ended
        if (phase := CUES.get(event.type)) and (cue := self._cue(phase)):
            self._strike = self._spawn(self._kill(cue, phase))
        return ended

    def _ended(self, event: Event) -> Kill | None:
        kill = self._open
        if kill is None or not kill.end or event.offset <= kill.end or event.type in ARRIVALS:
            return None
        kill.takeover_ms = round((self._clock.monotonic() - kill.at) * 1000)
        kill.by = event.data.get("worker", "")
        self._open = None
        return kill

    def _cue(self, phase: Phase) -> KillPoint | None:
        """Return the cue whose moment this is.

        One that was missed waits for its like; when more were, or none can come, any will do.
        """
        scene, here = self._scene, (self._scene.turn, self._scene.step)
        missed = [cue for cue in self._cues if cue.place < here]
        if len(missed) > 1 or (missed and here >= LAST):
            return missed[0]
        due = (cue for cue in self._cues if cue.place <= here and cue.phase == phase)
        return next((cue for cue in due if phase != "stream" or scene.deltas >= cue.deltas), None)

    async def _kill(self, cue: KillPoint, phase: Phase) -> None:
        if phase == "tool":
            await asyncio.sleep(cue.delay)
        await self._stage.until_ready(2)
        owner = (await self._look()).lanes[0].worker
        if self._scene.phase != phase or owner not in self._stage.players:
            return  # the moment has passed: the next one like it will do
        self._cues.remove(cue)
        running = tuple(self._scene.running.values())
        kill = self._open = Kill(owner, phase, running, self._clock.monotonic())
        self.kills.append(kill)
        await self._stage.players[owner].kill()
        info = await self._look()
        kill.end, kill.held = info.end, info.lanes[0].worker == owner
        if not kill.held:
            self._open = None
        await self._stage.start()
        await self._caught_up(kill.end)
        self._struck(kill)

    async def _caught_up(self, end: int) -> None:
        """Wait a little for the reader to have seen all that the dead worker wrote."""
        for _ in range(20):
            if self._scene.offset >= end:
                return
            await asyncio.sleep(0.01)
