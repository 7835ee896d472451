"""Readers that come and go: each goes on at its cursor, and keeps all that it was given."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random
from typing import Any, cast

from msgspec import Struct

from outlast import Event, Session
from outlast.errors import StoreUnavailable

PAUSE = 0.1
LONGEST = 15


class Reading(Struct, frozen=True):
    """All that one reader was given of a session."""

    session: str
    events: tuple[Event, ...]


class Reader:
    """Reads a session to its end, in visits."""

    def __init__(self, session: Session[Any], chance: Random) -> None:
        self._session = session
        self._chance = chance
        self._events: list[Event] = []

    async def read(self, over: asyncio.Event) -> Reading:
        """Read until all is over, then the rest."""
        while not over.is_set():
            await self._visit(self._chance.randint(1, LONGEST))
            await asyncio.sleep(PAUSE)
        while not await self._visit(10**9):  # noqa: ASYNC110 - a store that is away
            await asyncio.sleep(PAUSE)
        return Reading(self._session.id, tuple(self._events))

    async def _visit(self, most: int) -> bool:
        """Read some events; say whether they came to an end by themselves."""
        cursor = self._events[-1].offset if self._events else 0
        try:
            async with aclosing(cast(Any, self._session.events(cursor))) as events:
                async for event in events:
                    self._events.append(event)
                    most -= 1
                    if not most:
                        return False
        except StoreUnavailable:
            return False
        return True
