"""Work that must not be begun twice, nor be lost because somebody stopped waiting for it.

In this process by its name; across the fleet by a hold of the store's, which runs out should
its holder die.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

from outlast.clock import Clock
from outlast.errors import StoreError, Unreachable
from outlast.store import Store

T = TypeVar("T")

PAUSE = 0.1
"""Seconds between two tries to get a hold that another has, at most."""


class SingleFlight(Generic[T]):
    """What is under way."""

    def __init__(self) -> None:
        self._going: dict[str, asyncio.Task[T]] = {}

    async def join(self, name: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what the work of that name comes to; begin it, unless it is under way."""
        return await asyncio.shield(self.start(name, begin))

    def start(self, name: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Begin the work of that name, unless it is under way; whoever likes waits for it."""
        task = self._going.get(name)
        if task is None:
            task = self._going[name] = asyncio.create_task(begin())
            task.add_done_callback(partial(self._land, name))
        return task

    def _land(self, name: str, task: asyncio.Task[T]) -> None:
        del self._going[name]
        if not task.cancelled():
            task.exception()  # whoever waited is told; perhaps nobody does any more

    async def land(self) -> None:
        """Wait for all that is under way."""
        await asyncio.gather(*self._going.values(), return_exceptions=True)


@asynccontextmanager
async def holding(store: Store, clock: Clock, name: str, seconds: float) -> AsyncIterator[None]:
    """Hold a name across the fleet, for so many seconds at most; wait for it for twice as long."""
    holder, give_up_at = clock.new_id("hold"), clock.monotonic() + 2 * seconds
    while not await store.document.hold(name, holder, int(seconds * 1000)):
        if clock.monotonic() > give_up_at:
            raise Unreachable("somebody else is at it, and does not come to an end")
        await asyncio.sleep(clock.jitter(PAUSE))
    try:
        yield
    finally:
        with suppress(StoreError):  # then it runs out
            await store.document.let_go(name, holder)
