"""Lines read from the log for one reader alone: who is behind the feed, or wants no feed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from outlast.log.reader import EventReader
from outlast.server.stream.line import EncodedEvent, EventBatch, line_of
from outlast.server.stream.window import first_of
from outlast.store import SessionInfo, Store

PAGE = 100
"""Records that are read at once, and held while they are sent."""


class LogPages:
    """The log from a cursor on, about a page of it in memory at a time."""

    def __init__(self, store: Store, session_id: str, after: int, limit: int = PAGE) -> None:
        self.cursor = after
        self._log = EventReader(store, session_id, after, internals=True, limit=limit)
        self._lines: list[EncodedEvent] = []

    async def next(self) -> EventBatch:
        """Return what follows; nothing at the present end."""
        if not self._lines:
            self._lines = [line_of(event) for event in await self._log.next_page()]
        batch = first_of(self._lines, self.cursor)
        self._lines = self._lines[len(batch.lines) :]
        self.cursor = batch.cursor
        return batch


def visible(batch: EventBatch, internals: bool) -> EventBatch:
    """Return what a reader may see of a batch; the cursor is behind the rest, too."""
    if internals:
        return batch
    return EventBatch([line for line in batch.lines if not line.is_internal], batch.cursor)


async def up_to_end(
    store: Store, info: SessionInfo, after: int, internals: bool, limit: int = PAGE
) -> AsyncIterator[EventBatch]:
    """Give what the log had when the session was looked up, and nothing beyond."""
    pages = LogPages(store, info.session_id, after, limit)
    while pages.cursor < info.end:
        batch = await pages.next()
        lines = [line for line in batch.lines if line.offset <= info.end]
        yield visible(EventBatch(lines, min(batch.cursor, info.end)), internals)
