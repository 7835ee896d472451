"""The newest events of one log, shared by its readers, and pages for readers behind them.

Offsets rise by one, so a cursor is a place in the list: nothing is searched for.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext

from outlast.core.event import Cursor
from outlast.errors import HistoryGone
from outlast.log.reader import EventReader
from outlast.server.stream.encoding import EncodedEvent, EventBatch, Visibility, line_of
from outlast.store import SessionInfo, Store

MOST_LINES = 512
MOST_BYTES = 256 * 1024
BATCH = 64 * 1024
"""About so many bytes are handed to a reader at once: what a slow one keeps in memory."""


class EventWindow:
    """All lines after `start` and up to `end`; older ones make room for newer ones."""

    def __init__(
        self, start: int, *, most_lines: int = MOST_LINES, most_bytes: int = MOST_BYTES
    ) -> None:
        self.start = start
        self._lines: list[EncodedEvent] = []
        self._bytes = 0
        self._most_lines = most_lines
        self._most_bytes = most_bytes

    @property
    def end(self) -> int:
        return self.start + len(self._lines)

    def add(self, lines: Sequence[EncodedEvent]) -> None:
        self._lines += lines
        self._bytes += sum(len(line.data) for line in lines)
        self._make_room()

    def _make_room(self) -> None:
        """Drop the oldest lines until the rest fits; the newest one stays in any case."""
        leaving = 0
        while leaving < len(self._lines) - 1 and self._is_too_full(leaving):
            self._bytes -= len(self._lines[leaving].data)
            leaving += 1
        del self._lines[:leaving]
        self.start += leaving

    def _is_too_full(self, leaving: int) -> bool:
        return len(self._lines) - leaving > self._most_lines or self._bytes > self._most_bytes

    def after(self, cursor: Cursor) -> EventBatch:
        """Return what follows a cursor that is not before the start, as much as fits a batch.

        Raises HistoryGone if the window is of another log than the cursor.
        """
        place = max(0, cursor.offset - self.start)
        # The reader's own word of where it stands: after a failover the same offset may be another
        # event.
        if 0 < place <= len(self._lines) and cursor.checksum:
            here = self._lines[place - 1].cursor
            if here != cursor:
                raise HistoryGone(f"the log at {cursor.offset} is another one than was read")
        return first_of(self._lines[place:], cursor)


def first_of(lines: Sequence[EncodedEvent], cursor: Cursor) -> EventBatch:
    """Return the first lines, about `BATCH` bytes of them and one at least."""
    size = 0
    for count, line in enumerate(lines, 1):
        size += len(line.data)
        if size >= BATCH:
            return EventBatch(lines[:count], line.cursor)
    return EventBatch(lines, lines[-1].cursor if lines else cursor)


PAGE = 100
"""Records that are read at once at most, and held while they are sent."""
AT_ONCE = 1
"""Pages that are read at once by readers behind the window.

A page is held several times over. And a store has few connections to read with (two threads, on
SQLite): with one page at a time the feeds, on which live readers wait, always find one free.
"""
FIRST = 8
"""Records that are read first: how large they are is not known before."""


class LogPages:
    """The log from a cursor on, about a page of it in memory at a time.

    Pages grow while their records are small, and shrink when they are large: a reader that does
    not read keeps about `BATCH` bytes in memory, or one commit if that is more.
    """

    def __init__(
        self,
        store: Store,
        session_id: str,
        after: Cursor,
        limit: int = PAGE,
        turns: asyncio.Semaphore | None = None,
    ) -> None:
        self._turns = turns or nullcontext()
        self.cursor = after
        self._most = limit
        self._log = EventReader(store, session_id, after, internals=True, limit=min(FIRST, limit))
        self._lines: list[EncodedEvent] = []

    async def next(self) -> EventBatch:
        """Return what follows; nothing at the present end."""
        if not self._lines:
            # Held while a page is read, and not while it is sent, so that a slow reader does not
            # make others wait.
            async with self._turns:
                self._lines = [line_of(event) for event in await self._log.next_page()]
            size = sum(len(line.data) for line in self._lines)
            # Down faster than up: one page of large records is already too much.
            limit = self._log.limit * 2 if size < BATCH else self._log.limit // 4
            self._log.limit = max(1, min(limit, self._most))
        batch = first_of(self._lines, self.cursor)
        self._lines = self._lines[len(batch.lines) :]
        self.cursor = batch.cursor
        return batch


def visible(batch: EventBatch, seen: Visibility) -> EventBatch:
    """Return what a reader may see of a batch; the cursor is behind the rest, too."""
    lines = (line for line in batch.lines if seen.internals or not line.is_internal)
    return EventBatch([line.seen_by(seen) for line in lines], batch.cursor)


async def up_to_end(
    store: Store,
    info: SessionInfo,
    after: Cursor,
    seen: Visibility,
    limit: int = PAGE,
    turns: asyncio.Semaphore | None = None,
) -> AsyncIterator[EventBatch]:
    """Give what the log had when the session was looked up, and nothing beyond."""
    pages = LogPages(store, info.session_id, after, limit, turns)
    while pages.cursor.offset < info.end:  # nothing names what is given: it would be held meanwhile
        yield visible(up_to(await pages.next(), info.end), seen)


def up_to(batch: EventBatch, end: int) -> EventBatch:
    lines = [line for line in batch.lines if line.cursor.offset <= end]
    return EventBatch(lines, lines[-1].cursor if lines else batch.cursor)
