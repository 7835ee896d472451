"""Threads for sync tools: daemons, so that one which never returns cannot hold the process."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ToolThreads:
    """At most `limit` at once. Python cannot stop a thread: an abandoned one ends on its own."""

    def __init__(self, limit: int = 64) -> None:
        self._slots = asyncio.Semaphore(limit)

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in a thread of its own, with the caller's context variables."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def deliver(settle: Callable[[], None]) -> None:
            self._slots.release()
            if not future.done():
                settle()

        def work() -> None:
            try:
                value = context.run(function)
            except BaseException as error:  # noqa: BLE001 - belongs to whoever awaits the future
                failure = error
                settle = lambda: future.set_exception(failure)  # noqa: E731
            else:
                settle = lambda: future.set_result(value)  # noqa: E731
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, settle)

        await self._slots.acquire()
        threading.Thread(target=work, name="holdfast tool", daemon=True).start()
        return await future
