"""The live end of a session's log, shared by its readers: one listener, one reader of the log.

A feed lives while it has readers, and for a moment longer. It gives what is committed and
nothing else. Its readers have a cursor and no queue: none of them can hold up another, and a
thousand ask no more of the database than one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outlast.clock import Clock
from outlast.core.event import Cursor
from outlast.errors import CursorAhead, HistoryGone, StoreUnavailable, UnknownSession
from outlast.log.reader import POLL, EventReader
from outlast.log_context import get_logger
from outlast.server.stream.encoding import line_of
from outlast.server.stream.window import AT_ONCE, EventWindow, LogPages
from outlast.session import is_at_rest
from outlast.store import SessionInfo, Store

log = get_logger("outlast.server")

AT_REST_POLL = 5 * POLL
BEHIND = 128
"""Records before the log's end with which a feed begins: a reader that reconnects finds them."""


class SessionFeed:
    """The end of a session's log, followed.

    As of the last look, which found all up to the window's end, `is_closed` says that nothing
    will be added, and `is_gone` that the session was erased.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        info: SessionInfo,
        turns: asyncio.Semaphore | None = None,
    ) -> None:
        self._turns = turns
        self.session_id = info.session_id
        self.window = EventWindow(max(0, info.end - BEHIND))
        self.readers = 0
        self.is_closed = False
        self.is_gone = False
        self.is_cut = False
        self.looks_begun = 0
        self._at_rest = False
        self._looked = 0
        self.clock = clock
        self._store = store
        # The first page has the checksum of what is before it; nothing was read there yet.
        start = Cursor(self.window.start)
        self._log = EventReader(store, info.session_id, start, internals=True)
        self._has_more = False
        self._is_outdated = False
        self._is_due = True
        self._heard = asyncio.Event()
        self._news = asyncio.Event()

    # For readers

    async def change(self, timeout: float) -> bool:
        """Wait until anything has changed; False if nothing did in so many seconds."""
        news = self._news
        try:
            async with asyncio.timeout(timeout):
                await news.wait()
        except TimeoutError:
            return False
        return True

    def rests(self, since: int) -> bool:
        """Say whether the session rests, by a look that began after look number `since`."""
        # The last look may be older than what this reader was given: it says nothing of the
        # present.
        if self._looked <= since:
            self.look_soon()
            return False
        return self._at_rest

    def pages(self, after: Cursor) -> LogPages:
        """Return what a reader has to read by itself, since the window has moved on."""
        return LogPages(self._store, self.session_id, after, turns=self._turns)

    def look_soon(self) -> None:
        self._is_due = True
        self._heard.set()

    def cut(self) -> None:
        """Let all readers go, wherever they are."""
        self.is_cut = True
        self._tell()

    def end(self) -> None:
        """Let all readers go: the log is another one than the window is of."""
        self._is_outdated = True
        self.look_soon()

    # The work

    async def run(self) -> None:
        """Follow the log until it is erased, cannot be read, or has no reader left."""
        stop = self._store.work.listen(self._hear, self.session_id)
        try:
            while True:
                await self._look()
                await self._wait()
        except UnknownSession:
            self.is_gone = True
        except HistoryGone:
            return  # the log is another one now: a reader that asks again is told
        except Exception:
            log.exception("a session's log cannot be read on", extra={"session": self.session_id})
        finally:
            stop()
            self.cut()

    async def _look(self) -> None:
        """Read on where something was written; where that may be all, learn how things stand."""
        if self._is_outdated:
            raise HistoryGone(f"the log of {self.session_id} is another one now")
        # Taken before the look: a hint that comes during it asks for another.
        has_more, is_due = self._has_more, self._is_due
        self._has_more = self._is_due = False
        self._heard.clear()
        try:
            if has_more:
                await self._read_on()
            if is_due:
                await self._learn()
        except StoreUnavailable:
            self._at_rest = False  # who knows; it will be back, and readers can wait

    async def _learn(self) -> None:
        """Bring the window up to the log's end, and know how the session is at that place."""
        self.looks_begun += 1
        look = self.looks_begun
        # The row is asked after the log was read, so that "at rest" is said of all that the window
        # has.
        while (info := await self._info()).end > self.window.end:
            await self._read_on()
        if info.end < self.window.end:
            raise CursorAhead(f"the log of {self.session_id} ends before what was read of it")
        self._looked = look
        self._at_rest = is_at_rest(info)
        self.is_closed = bool(info.over) and self._at_rest
        self._tell()

    async def _info(self) -> SessionInfo:
        info = await self._store.listing.session(self.session_id)
        if info is None:
            raise UnknownSession(f"there is no session {self.session_id}")
        return info

    async def _read_on(self) -> None:
        """Add what follows to the window, page by page."""
        while events := await self._log.next_page():
            self.window.add([line_of(event) for event in events])
            self._tell()
            if self._log.is_at_end:
                return

    async def _wait(self) -> None:
        """Wait for a hint that something was written; look without one now and then."""
        try:
            async with asyncio.timeout(AT_REST_POLL if self._at_rest else POLL):
                await self._heard.wait()
        except TimeoutError:
            self._is_due = True

    def _hear(self, session_id: str, arrived: bool) -> None:
        """Note a hint. While a lane has its owner, all that changes is in the log."""
        # A hint without a session is of anything: the row says whether there is more.
        self._has_more = self._has_more or bool(session_id)
        self._is_due = self._is_due or arrived or not session_id
        self._heard.set()

    def _tell(self) -> None:
        # A new one each time: those who waited for the old one are all woken, and none misses the
        # next.
        news, self._news = self._news, asyncio.Event()
        news.set()


LINGER = 2.0
"""Seconds that a feed is kept for readers that come back, as polling ones do."""


class SessionFeeds:
    """Feeds of one store on one event loop."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._feeds: dict[str, SessionFeed] = {}
        self.turns = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[SessionFeed, asyncio.Task[None]] = {}
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._feeds)

    @property
    def readers(self) -> int:
        return sum(feed.readers for feed in self._feeds.values())

    @asynccontextmanager
    async def open(self, info: SessionInfo) -> AsyncIterator[SessionFeed]:
        """Give the feed of a session to one more reader."""
        feed = self._feeds.get(info.session_id) or self._begin(info)
        feed.readers += 1
        try:
            yield feed
        finally:
            feed.readers -= 1
            if not feed.readers:
                # A long poll is a reader for a moment: without this each would read the log's end
                # anew.
                asyncio.get_running_loop().call_later(LINGER, self._drop_if_idle, feed)

    def _begin(self, info: SessionInfo) -> SessionFeed:
        feed = SessionFeed(self._store, self._clock, info, self.turns)
        if self.is_closed:
            feed.cut()
            return feed
        task = asyncio.create_task(feed.run(), name=f"feed of {info.session_id}")
        self._feeds[info.session_id], self._tasks[feed] = feed, task
        task.add_done_callback(lambda _: self._forget(feed))
        return feed

    def _drop_if_idle(self, feed: SessionFeed) -> None:
        task = self._tasks.get(feed)
        if task is not None and not feed.readers:
            self._forget(feed)
            task.cancel()

    def _forget(self, feed: SessionFeed) -> None:
        feed.cut()
        self._tasks.pop(feed, None)
        # Another feed of the session may have begun since.
        if self._feeds.get(feed.session_id) is feed:
            del self._feeds[feed.session_id]

    def close(self) -> None:
        """Cut all streams, and those that would begin: the server is about to stop."""
        self.is_closed = True
        for task in list(self._tasks.values()):
            task.cancel()
