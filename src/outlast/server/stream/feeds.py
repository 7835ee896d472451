"""All feeds of a process: found by session, begun by the first reader, dropped by the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outlast.clock import Clock
from outlast.server.stream.feed import SessionFeed
from outlast.store import SessionInfo, Store

LINGER = 2.0
"""Seconds that a feed is kept for readers who come back, as those that poll do."""


class SessionFeeds:
    """Feeds of one store on one event loop."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._feeds: dict[str, SessionFeed] = {}
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
                asyncio.get_running_loop().call_later(LINGER, self._drop_if_idle, feed)

    def _begin(self, info: SessionInfo) -> SessionFeed:
        feed = SessionFeed(self._store, self._clock, info)
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
        if self._feeds.get(feed.session_id) is feed:
            del self._feeds[feed.session_id]

    def close(self) -> None:
        """Cut all streams, and those that would begin: the server is about to stop."""
        self.is_closed = True
        for task in list(self._tasks.values()):
            task.cancel()
