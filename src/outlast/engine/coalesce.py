"""Coalesces what a call says while it runs into few commits: the first piece at once, then batches.

Owns the pieces that are not committed yet. Pieces that come while a commit is under way wait for
the next. What is left at the end is not flushed here: it goes into the commit of the call's
outcome (`lane_runner.py`).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from msgspec.structs import replace

from outlast.core.message import Reasoning, Text
from outlast.core.record import MessageDelta, ReasoningDelta, ToolProgress
from outlast.core.result import Answered, ModelFailed
from outlast.engine.call_tasks import RunningCall, to_its_end
from outlast.engine.owned_lane import OwnedLane

Delta = MessageDelta | ReasoningDelta
Piece = TypeVar("Piece", Delta, ToolProgress)


class Coalescer(Generic[Piece]):
    """Records of one attempt, `pending` until they are flushed, at most once per `interval`.

    Those of an attempt that is no longer awaited are dropped: the next may have begun.
    """

    def __init__(
        self,
        lane: OwnedLane,
        running: RunningCall,
        interval: float,
        written: Callable[[Sequence[Piece], int], None] = lambda records, offset: None,
    ) -> None:
        self.pending: list[Piece] = []
        self._lane = lane
        self._running = running
        self._interval = interval
        self._written: Callable[[Sequence[Piece], int], None] = written
        self._arrived = asyncio.Event()
        self._over = asyncio.Event()
        self._flusher: asyncio.Task[None] | None = None

    def flush_soon(self) -> None:
        """Have what is pending flushed."""
        self._arrived.set()
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush_repeatedly())
        # For what it raises: a lane that is lost has to stop the call, too.
        elif self._flusher.done():
            self._flusher.result()

    async def _flush_repeatedly(self) -> None:
        while not self._over.is_set():
            await self._arrived.wait()
            if self._over.is_set() or not self._running.is_awaited:
                return
            await self._flush()
            await self._pause()

    async def _flush(self) -> None:
        records, self.pending = self.pending, []
        # Before the commit: what comes while it is under way asks for another.
        self._arrived.clear()
        self._lane.write(records)
        self._written(records, await self._lane.flush())

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._interval):
                await self._over.wait()
        except TimeoutError:
            return

    async def end(self) -> None:
        """Stop flushing, and let a flush that is under way finish."""
        self._over.set()
        self._arrived.set()
        if self._flusher is not None:
            # A flush that is cut off in the middle would leave open whether its deltas are in the
            # log.
            await to_its_end(self._flusher)


class DeltaStream:
    """The deltas of a streamed answer."""

    def __init__(self, lane: OwnedLane, running: RunningCall, interval: float) -> None:
        self._coalescer: Coalescer[Delta] = Coalescer(lane, running, interval, self._note)
        self._first_offset = 0
        self._streamed: set[int] = set()

    def add(self, delta: Delta) -> None:
        """Take one more piece, joined to the last if it goes on with it."""
        pending = self._coalescer.pending
        last = pending[-1] if pending else None
        # Providers send a few letters at a time; a record for each would be most of the log.
        if last and goes_on(last, delta):
            pending[-1] = replace(last, text=last.text + delta.text)
        else:
            pending.append(delta)
        self._coalescer.flush_soon()

    def _note(self, deltas: Sequence[Delta], offset: int) -> None:
        self._first_offset = self._first_offset or offset
        self._streamed |= parts_of(deltas)

    async def end(self) -> None:
        await self._coalescer.end()

    def complete(self, result: Answered | ModelFailed) -> Answered | ModelFailed:
        """Return the result with what the log does not have yet of its text, and no more."""
        left = tuple(self._coalescer.pending)
        # Nothing was flushed: the answer's own record has the text, and there is no delta to store
        # it twice.
        if not self._first_offset:
            if isinstance(result, ModelFailed):
                return replace(result, heard=sum(len(delta.text) for delta in left))
            return result
        if isinstance(result, ModelFailed):
            return replace(result, deltas=left)
        streamed = self._streamed | parts_of(left)
        parts = tuple(
            # Every text is stored once: what deltas have said is not said again.
            replace(part, text="")
            if number in streamed and isinstance(part, Text | Reasoning)
            else part
            for number, part in enumerate(result.parts)
        )
        return replace(
            result,
            parts=parts,
            deltas=left,
            deltas_from=self._first_offset,
            streamed=tuple(sorted(streamed)),
        )


def goes_on(last: Delta, delta: Delta) -> bool:
    same = type(last) is type(delta) and last.part == delta.part
    return same and bool(last.text) and bool(delta.text)


def parts_of(deltas: Sequence[Delta]) -> set[int]:
    """Return the parts of an answer that deltas hold text of."""
    return {delta.part for delta in deltas if delta.text}
