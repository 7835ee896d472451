"""A thin bridge for scripts: the same app and sessions, without `await`.

    with outlast.sync.opened(app) as app:
        session = app.start("support", "Refund order 17")
        for event in session.events():
            print(event.type)
        print(session.wait().unwrap())

There is one implementation, async. It runs on an event loop in a thread of its own;
what is called here waits for it.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from outlast.app import Outlast
from outlast.errors import InvalidInput, StoreUnavailable
from outlast.session import Receipt, Session

BRIDGED = (Outlast, Session, Receipt)


class LoopThread:
    """An event loop that runs in the background until it is stopped."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="outlast loop", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop and wait for what it returns."""
        if self._loop.is_closed():
            work.close()
            raise StoreUnavailable("this app was closed: use it within its `with`")
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidInput(
                "this would wait for itself: an async tool runs where the bridge's calls are done;"
                " await the methods of the app itself there, or write the tool as `def`"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        """Give the items of an async iterator one by one, and close it when left early."""
        end = object()

        async def next_item() -> Any:
            return await anext(items, end)

        async def close() -> None:
            if inspect.isasyncgen(items):
                await items.aclose()

        try:
            while (item := self.run(next_item())) is not end:
                yield item
        finally:
            if not self._loop.is_closed():
                self.run(close())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncProxy:
    """An app, session or receipt whose async methods are called like any other."""

    def __init__(self, target: Any, thread: LoopThread) -> None:
        self._target = target
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if inspect.isasyncgenfunction(value):
            return lambda *args, **kwargs: self._thread.iterate(value(*args, **kwargs))
        if inspect.iscoroutinefunction(value):
            return self._waiting(value)
        return self._bridged(value)

    def __repr__(self) -> str:
        return f"Bridge({self._target!r})"

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._target) if not name.startswith("_")]

    def _waiting(self, method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._bridged(self._thread.run(method(*args, **kwargs)))

        return call

    def _bridged(self, value: Any) -> Any:
        return SyncProxy(value, self._thread) if isinstance(value, BRIDGED) else value


@contextmanager
def opened(app: Outlast) -> Iterator[Any]:
    """Open an app for sync code, and close it in the end."""
    thread = LoopThread()
    try:
        thread.run(app.open())
        try:
            yield SyncProxy(app, thread)
        finally:
            thread.run(app.close())
    finally:
        thread.stop()
