"""One reader of a session: a cursor, and what follows it.

Takes from the feed's window, and reads pages by itself while it is behind that. Owns when a stream
ends. Knows no encoding (`encoding.py`) and no transport (`response.py`).
"""

from collections.abc import AsyncGenerator

from starlette.requests import Request

from outlast.core.event import Cursor
from outlast.errors import HistoryGone, UnknownSession
from outlast.server.backend import ServerBackend
from outlast.server.stream.encoding import EventBatch, Frame, Visibility
from outlast.server.stream.feed import SessionFeed
from outlast.server.stream.window import LogPages, visible
from outlast.session.waiting import is_at_rest
from outlast.store import SessionInfo


def is_closed(info: SessionInfo) -> bool:
    """Whether nothing will be added to the log any more."""
    return bool(info.over) and is_at_rest(info)


class StreamCut(Exception):
    """The server ends a stream whose session goes on; the reader should connect again."""


class FeedReader:
    """Follows a feed from a cursor on, as far as its reader may see it.

    Ends when the session is over and all was given; with `until_rest` when it rests, too.
    """

    def __init__(
        self,
        feed: SessionFeed,
        info: SessionInfo,
        *,
        after: Cursor,
        seen: Visibility,
        until_rest: bool = False,
    ) -> None:
        self.cursor = after
        self._feed = feed
        self._known_end = info.end
        self._seen = seen
        self._until_rest = until_rest
        self._look = feed.looks_begun
        self._pages: LogPages | None = None
        if feed.window.end < info.end:
            feed.look_soon()

    @property
    def is_up_to_date(self) -> bool:
        return self.cursor.offset >= max(self._known_end, self._feed.window.end)

    @property
    def is_at_the_end(self) -> bool:
        """Whether all was given of a session to which nothing will be added."""
        return self._feed.is_closed and self.is_up_to_date

    async def next(self, timeout: float) -> EventBatch | None:
        """Return the next lines; none if there are none in time, or None at the end.

        Raises StreamCut where the reader has to connect again to learn more.
        """
        until = self._feed.clock.monotonic() + timeout
        while not self._feed.is_gone:
            # Also with events left to give: the reader comes again at its cursor, and gets them
            # there.
            if self._feed.is_cut:
                raise StreamCut
            before = self.cursor
            try:
                batch = await self._move()
            except UnknownSession:
                return None
            except HistoryGone:
                self._feed.end()
                raise StreamCut from None  # a reader that comes again is told
            if batch.lines:
                return batch
            # Only after all was given: an end that comes first would hide the last events.
            if self.is_up_to_date and self._has_ended():
                return None
            # Where it has moved on past what is hidden, more may be there already.
            if self.cursor == before and not await self._change(until):
                return batch
        return None

    async def _move(self) -> EventBatch:
        """Go on by one batch, and return what this reader may see of it."""
        if self.cursor.offset < self._feed.window.start:
            self._pages = self._pages or self._feed.pages(self.cursor)
            batch = await self._pages.next()
        else:
            self._pages = None
            batch = self._feed.window.after(self.cursor)
        # "At rest" has to be said by a look that is younger than the last event that was given.
        if batch.cursor.offset > self.cursor.offset:
            self._look = self._feed.looks_begun
        self.cursor = batch.cursor
        return visible(batch, self._seen)

    async def _change(self, until: float) -> bool:
        left = until - self._feed.clock.monotonic()
        return left > 0 and await self._feed.change(left)

    def _has_ended(self) -> bool:
        if self._until_rest:
            return self._feed.rests(self._look)
        return self._feed.is_closed


async def follow(
    reader: FeedReader, backend: ServerBackend, request: Request, frame: Frame
) -> AsyncGenerator[bytes, None]:
    """Yield what the reader is given; `frame` turns an empty batch into a heartbeat.

    At every heartbeat the caller is checked again: its key or its login may have ended.
    """
    clock = backend.app.clock
    due = clock.monotonic() + backend.heartbeat
    while (batch := await reader.next(due - clock.monotonic())) is not None:
        # By the clock, and not by silence: a stream that never rests is checked as often.
        is_due = clock.monotonic() >= due
        if is_due:
            if not await backend.still_valid(request):
                raise StreamCut
            due = clock.monotonic() + backend.heartbeat
        if batch.lines or is_due:
            pieces = frame(batch)
            del batch  # a slow reader keeps what it is sent, and not what follows it
            for piece in pieces:
                yield piece
