"""The events of a session and of all that it started, as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from msgspec.structs import replace

from holdfast.core.event import Event

EventsOf = Callable[[str, int], AsyncIterator[Event]]
"""Gives the events of a session after a cursor."""

MOST_WAITING = 100


class Interleaving:
    """Reads sessions side by side; each in its own order, a child not before it was called."""

    def __init__(self, events_of: EventsOf) -> None:
        self._events_of = events_of
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue(MOST_WAITING)
        self._readers: set[asyncio.Task[None]] = set()

    async def read(self, session_id: str, after: int) -> AsyncIterator[Event]:
        """Give all events after a cursor, and all of those that were called since."""
        self._begin(session_id, after)
        try:
            while self._readers or not self._queue.empty():
                if event := await self._queue.get():
                    yield event
                self._look_at_ended()
        finally:
            for reader in self._readers:
                reader.cancel()
            await asyncio.gather(*self._readers, return_exceptions=True)

    def _begin(self, session_id: str, after: int) -> None:
        self._readers.add(asyncio.create_task(self._follow(session_id, after)))

    async def _follow(self, session_id: str, after: int) -> None:
        try:
            async for event in self._events_of(session_id, after):
                await self._queue.put(replace(event, session_id=session_id))
                if event.type == "subagent.called":
                    self._begin(event.data["child"], 0)
        finally:
            await self._queue.put(None)

    def _look_at_ended(self) -> None:
        for reader in [reader for reader in self._readers if reader.done()]:
            self._readers.discard(reader)
            reader.result()
