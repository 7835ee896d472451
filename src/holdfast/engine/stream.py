"""A streamed answer on its way into the log: the first piece at once, then batches.

Pieces that come while a commit is under way wait for the next. What is left at the
end is not flushed here: it belongs into the answer's own commit.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from holdfast.core.message import Reasoning, Text
from holdfast.core.record import MessageDelta, ReasoningDelta
from holdfast.core.result import Answered, ModelFailed
from holdfast.engine.desk import to_its_end
from holdfast.engine.owned import OwnedLane
from holdfast.engine.work import Work

Delta = MessageDelta | ReasoningDelta


class DeltaStream:
    """Collects the deltas of one attempt and flushes them at most once per `interval`.

    Those of an attempt that nobody waits for any more are dropped: the next may have begun.
    """

    def __init__(self, lane: OwnedLane, work: Work, interval: float) -> None:
        self._lane = lane
        self._work = work
        self._interval = interval
        self._pending: list[Delta] = []
        self._arrived = asyncio.Event()
        self._over = asyncio.Event()
        self._flusher: asyncio.Task[None] | None = None
        self._first_offset = 0
        self._streamed: set[int] = set()

    def add(self, delta: Delta) -> None:
        """Take one more piece, joined to the last if it goes on with it."""
        last = self._pending[-1] if self._pending else None
        if last and goes_on(last, delta):
            self._pending[-1] = replace(last, text=last.text + delta.text)
        else:
            self._pending.append(delta)
        self._arrived.set()
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush_repeatedly())
        elif self._flusher.done():
            self._flusher.result()

    async def _flush_repeatedly(self) -> None:
        while not self._over.is_set():
            await self._arrived.wait()
            if self._over.is_set() or not self._work.is_awaited:
                return
            await self._flush()
            await self._pause()

    async def _flush(self) -> None:
        deltas, self._pending = self._pending, []
        self._arrived.clear()
        self._lane.write(deltas)
        offset = await self._lane.flush()
        self._first_offset = self._first_offset or offset
        self._streamed |= {delta.part for delta in deltas if delta.text}

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
            await to_its_end(self._flusher)

    def complete(self, result: Answered | ModelFailed) -> Answered | ModelFailed:
        """Return the result with what the log does not have yet of its text, and no more."""
        if not self._first_offset:
            return result
        left = tuple(self._pending)
        if isinstance(result, ModelFailed):
            return replace(result, deltas=left)
        streamed = self._streamed | {delta.part for delta in left if delta.text}
        parts = tuple(
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
