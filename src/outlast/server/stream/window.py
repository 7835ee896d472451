"""The newest events of one log, shared by its readers, and pages for readers behind them.

Offsets rise by one, so a cursor is a place in the list: nothing is searched for.
"""

from collections.abc import AsyncIterator, Sequence

from outlast.log.reader import EventReader
from outlast.server.stream.encoding import EncodedEvent, EventBatch, line_of
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

    def after(self, cursor: int) -> EventBatch:
        """Return what follows a cursor that is not before the start, as much as fits a batch."""
        return first_of(self._lines[max(0, cursor - self.start) :], cursor)


def first_of(lines: Sequence[EncodedEvent], cursor: int) -> EventBatch:
    """Return the first lines, about `BATCH` bytes of them and one at least."""
    size = 0
    for count, line in enumerate(lines, 1):
        size += len(line.data)
        if size >= BATCH:
            return EventBatch(lines[:count], line.offset)
    return EventBatch(lines, lines[-1].offset if lines else cursor)


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
