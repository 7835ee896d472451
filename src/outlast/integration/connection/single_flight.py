"""Work that must run once at a time, and goes on when its caller stops waiting for it.

Within this process it is known by its name; across the fleet a document holds the name, which
expires should its holder die.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

from outlast.clock import Clock
from outlast.errors import StoreError, Unreachable
from outlast.store import Document, Store

T = TypeVar("T")

HOLD = "hold"
"""The kind of the documents by which one worker at a time has a name."""

PAUSE = 0.1
"""The most seconds between two tries to get a hold."""


class SingleFlight(Generic[T]):
    """Runs work by name, at most once at a time; callers of the same name share its result."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[T]] = {}

    async def join(self, name: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the work of that name; begin it unless it is running."""
        # A caller that is cancelled leaves the others waiting, and a token that is already on its
        # way.
        return await asyncio.shield(self.start(name, begin))

    def start(self, name: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Begin the work of that name unless it is running, and return its task."""
        task = self._running.get(name)
        if task is None:
            task = self._running[name] = asyncio.create_task(begin())
            task.add_done_callback(partial(self._forget, name))
        return task

    def _forget(self, name: str, task: asyncio.Task[T]) -> None:
        del self._running[name]
        if not task.cancelled():
            task.exception()  # all its callers may be gone: asyncio would warn of an unread error

    async def wait_all(self) -> None:
        """Wait for all work that is running."""
        await asyncio.gather(*self._running.values(), return_exceptions=True)


@asynccontextmanager
async def holding(store: Store, clock: Clock, name: str, seconds: float) -> AsyncIterator[None]:
    """Hold a name across all workers for at most `seconds`; wait for it for twice as long."""
    give_up_at, lifetime = clock.monotonic() + 2 * seconds, int(seconds * 1000)
    # The data tells this hold from a later one of the same name, which must not be deleted.
    holder = clock.new_id("hold").encode()
    hold = Document(kind=HOLD, tenant="", name=name, version=1, data=holder)
    while not await store.document.put(hold, expected=None, lifetime=lifetime):
        if clock.monotonic() > give_up_at:
            raise Unreachable("another worker is at this and does not finish: try again later")
        await asyncio.sleep(clock.jitter(PAUSE))
    try:
        yield
    finally:
        with suppress(StoreError):  # then the hold expires
            await store.document.delete(hold)
