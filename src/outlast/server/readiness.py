"""Whether the store can be reached, asked seldom however often it is asked for."""

from __future__ import annotations

import asyncio

from outlast.clock import Clock
from outlast.errors import StoreError
from outlast.store import Store

FRESH = 1.0
PATIENCE = 2.0
NOBODY = "ses_nobody"
"""A session that does not exist; asking for it is the cheapest question there is."""


class Readiness:
    """Remembers the last answer for a second."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = asyncio.Lock()
        self._asked_at: float | None = None
        self._is_ready = False

    async def is_ready(self) -> bool:
        async with self._lock:
            now = self._clock.monotonic()
            if self._asked_at is None or now - self._asked_at >= FRESH:
                self._is_ready = await self._ask()
                self._asked_at = self._clock.monotonic()
            return self._is_ready

    async def _ask(self) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._store.session(NOBODY)
        except (StoreError, TimeoutError):
            return False
        return True
