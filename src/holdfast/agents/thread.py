"""Threads for sync tools: daemons, so that one which never returns cannot hold the process."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class ToolThreads:
    """At most `limit` at once. Python cannot stop a thread: an abandoned one ends on its own."""

    def __init__(self, limit: int = 64) -> None:
        self._slots = asyncio.Semaphore(limit)

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in a thread, and return what it returns."""
        return await (await self.begin(function))

    async def begin(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Begin a function in a thread of its own, with the caller's context variables.

        Returns when it has begun: if this is cancelled while all threads are taken, it never does.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def deliver(settle: Callable[[], None]) -> None:
            self._slots.release()
            if not future.done():
                settle()

        def work() -> None:
            settle = attempt(partial(context.run, function), future)
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, settle)

        await self._slots.acquire()
        threading.Thread(target=work, name="holdfast tool", daemon=True).start()
        return future


def attempt(function: Callable[[], Any], future: asyncio.Future[Any]) -> Callable[[], None]:
    """Run a function to its end, and return how to tell a future of it."""
    try:
        value = function()
    except (StopIteration, KeyboardInterrupt) as error:
        # A future takes no StopIteration; and Ctrl-C is heard by the main thread, never by this.
        return partial(future.set_exception, RuntimeError(f"the function raised {error!r}"))
    except BaseException as error:  # noqa: BLE001 - belongs to whoever awaits the future
        return partial(future.set_exception, error)
    return partial(future.set_result, value)
