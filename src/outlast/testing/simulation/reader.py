"""Readers of sessions' streams that lose their connection and go on at their cursor."""

import asyncio
from hashlib import blake2b
from random import Random
from typing import Any

import msgspec

from outlast.app import Outlast
from outlast.core.event import Event
from outlast.errors import StoreUnavailable, UnknownSession
from outlast.session import Session
from outlast.store import Store
from outlast.testing.simulation.history import EventRead, History


class SimulatedReader:
    """Follows one session after the other, for as long as it is let."""

    def __init__(self, app: Outlast, store: Store, history: History, chance: Random) -> None:
        self._app = app
        self._store = store
        self._history = history
        self._chance = chance

    async def read_repeatedly(self) -> None:
        cursors: dict[str, int] = {}
        while True:
            await asyncio.sleep(self._chance.choice([0.1, 1.0, 5.0]))
            if known := await self._store.listing.sessions(limit=1000):
                name = self._chance.choice([info.session_id for info in known])
                cursors[name] = await self._read(name, cursors.get(name, 0))

    async def _read(self, session_id: str, cursor: int) -> int:
        """Read for a while; return how far that went."""
        try:
            session = await self._app.session(session_id)
            async with asyncio.timeout(self._chance.choice([0.5, 5.0, 60.0])):
                async for event in session.events(after=cursor):
                    cursor = event.offset
                    self.note(session_id, event)
        except (StoreUnavailable, TimeoutError, UnknownSession):
            """Next time."""
        return cursor

    def note(self, session_id: str, event: Event) -> None:
        self._history.note(
            EventRead, session_id=session_id, offset=event.offset, event=digest_of(event)
        )


def digest_of(event: Event) -> str:
    """Return what tells this event from any other."""
    return blake2b(msgspec.json.encode(event, order="deterministic"), digest_size=8).hexdigest()


async def all_events(session: Session[Any]) -> list[tuple[int, str]]:
    """Return a session's events as a reader that begins now gets them."""
    return [(e.offset, digest_of(e)) async for e in session.events(follow=False)]
