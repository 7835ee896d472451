"""Readers of many sessions side by side, whose events come out as one stream.

Knows no store and no wire: places do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from msgspec.structs import replace

from outlast.core.event import Event
from outlast.errors import OutlastError, ServerUnavailable, UnknownSession
from outlast.log_context import get_logger
from outlast.session.merged_events.source import CalledSession, EventSource

log = get_logger("outlast")

MOST_WAITING = 100
POLL = 1.0
"""Seconds after which a session that rests is looked at again while its caller goes on."""
OVER = ("session.completed", "session.failed", "session.ended")


class MergedReader:
    """How far one session is read; `path` leads to it from the first. No more is read of one
    that is over."""

    def __init__(self, called: CalledSession, caller: MergedReader | None, after: int = 0) -> None:
        self.place = called.place
        self.caller = caller
        self.path: tuple[str, ...] = (*(caller.path if caller else ()), called.session_id)
        self.cursor = after
        self.is_over = False
        self.task: asyncio.Task[None] | None = None

    @property
    def is_at_it(self) -> bool:
        return self.task is not None and not self.task.done()


class MergedEvents:
    """Reads sessions side by side; each in its own order, a child not before it was called."""

    def __init__(self, place: EventSource, *, follow: bool) -> None:
        self._place = place
        self._follows = follow
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue(MOST_WAITING)
        self._readers: dict[str, MergedReader] = {}

    async def read(self, session_id: str, after: int) -> AsyncGenerator[Event, None]:
        """Give all events after a cursor, and all of those that were called since."""
        self._readers[session_id] = MergedReader(
            CalledSession(session_id, self._place), None, after
        )
        try:
            is_new = True
            while is_new:
                is_new = False
                self._begin_all()
                async for event in self._come():
                    yield event
                    # Who was given it may have answered since: when all rest, look again.
                    is_new = self._follows
        finally:
            tasks = [reader.task for reader in self._readers.values() if reader.task]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _come(self) -> AsyncIterator[Event]:
        """Give what the readers find, until all of them have ended."""
        while any(reader.is_at_it for reader in self._readers.values()) or self._queue.qsize():
            if event := await self._queue.get():
                yield event
            self._look_at_ended()

    def _begin_all(self) -> None:
        for reader in self._readers.values():
            if not reader.is_over:
                self._begin(reader)

    def _begin(self, reader: MergedReader) -> None:
        reader.task = asyncio.create_task(self._follow(reader))

    async def _follow(self, reader: MergedReader) -> None:
        """Give what a session has to say, until it rests and its caller does not go on either."""
        try:
            while not reader.is_over:
                caller = reader.caller
                is_last = caller is None or not caller.is_at_it
                is_away = await self._read_on(reader)
                if is_last and is_away:
                    reader.is_over = True
                if is_last or caller is None or caller.task is None:
                    return
                if not (is_away or reader.is_over):
                    await asyncio.wait({caller.task}, timeout=POLL)
        finally:
            await self._queue.put(None)

    async def _read_on(self, reader: MergedReader) -> bool:
        """Give what there is up to where a session rests; say whether its server is away.

        What is wrong elsewhere stops nobody who reads what is here, nor does a child that was
        erased.
        """
        try:
            async for event in reader.place.events(reader.path[-1], reader.cursor):
                await self._give(reader, event)
        except OutlastError as error:
            if not reader.place.is_far:
                if reader.caller is None or not isinstance(error, UnknownSession):
                    raise
                reader.is_over = True
                return False
            extra = {"remote": reader.path[-1], "code": error.code, "cursor": reader.cursor}
            log.warning("a remote session cannot be read", extra=extra)
            reader.is_over = not isinstance(error, ServerUnavailable)
            return True
        return False

    async def _give(self, reader: MergedReader, event: Event) -> None:
        session_id = reader.path[-1]
        reader.cursor = event.offset
        reader.is_over = reader.is_over or event.type in OVER
        await self._queue.put(replace(event, session_id=session_id, path=reader.path[1:]))
        called = await reader.place.called(session_id, event)
        if called and called.session_id not in self._readers:
            self._readers[called.session_id] = child = MergedReader(called, reader)
            self._begin(child)

    def _look_at_ended(self) -> None:
        for reader in self._readers.values():
            if reader.task and reader.task.done():
                reader.task.result()
