"""Threads for sync tools: daemons, so that one which never returns cannot hold the process.

Their number is bounded. A call asks for a slot first and begins nothing before it has one:
a call that waits for a thread has not begun.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from outlast.log_context import get_logger

log = get_logger("outlast.agents")

T = TypeVar("T")


class ToolThreads:
    """At most `limit` at once. Python cannot stop a thread: an abandoned one ends on its own.

    They are shared out among tenants as lanes are: a thread that gets free goes to the tenant
    that has the fewest, and among several of those to the call that has waited longest.
    """

    def __init__(self, limit: int = 64) -> None:
        self._free = limit
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[ThreadSlot]] = {}
        self._asked = 0

    def place(self, tell: Callable[[], None], tenant: str = "") -> ThreadSlot:
        """Return a place for one thread. Where it is not taken yet, `tell` is called when it is."""
        self._asked += 1
        place = ThreadSlot(self._let_go, tell, tenant, self._asked)
        if not self._waiting and not self._free:
            log.info("all threads are taken: a sync tool waits for one")
        self._waiting.setdefault(tenant, deque()).append(place)
        self._seat(at_once=place)
        return place

    async def run(self, function: Callable[[], T], tenant: str = "") -> T:
        """Run a function in a thread, and return what it returns."""
        is_taken = asyncio.Event()
        place = self.place(is_taken.set, tenant)
        try:
            if not place.is_taken:
                await is_taken.wait()
            return await place.begin(function)
        finally:
            place.leave()

    def _let_go(self, place: ThreadSlot) -> None:
        if place.is_taken:
            self._free += 1
            self._taken[place.tenant] -= 1
            if not self._taken[place.tenant]:
                del self._taken[place.tenant]
            self._seat()
        else:
            self._waiting[place.tenant].remove(place)
            self._forget_if_empty(place.tenant)

    def _seat(self, at_once: ThreadSlot | None = None) -> None:
        while self._free and self._waiting:
            # One tenant with a thousand slow calls takes the threads of no other.
            tenant = min(self._waiting, key=self._turn_of)
            place = self._waiting[tenant].popleft()
            self._forget_if_empty(tenant)
            self._free -= 1
            self._taken[tenant] += 1
            place.is_taken = True
            # Its caller sees that it is taken, and is not told of it besides.
            if place is not at_once:
                place.tell()

    def _turn_of(self, tenant: str) -> tuple[int, int]:
        return self._taken[tenant], self._waiting[tenant][0].number

    def _forget_if_empty(self, tenant: str) -> None:
        if not self._waiting[tenant]:
            del self._waiting[tenant]


class ThreadSlot:
    """Room for one thread: waited for in a line, taken, used, and left for the next."""

    def __init__(
        self,
        let_go: Callable[[ThreadSlot], None],
        tell: Callable[[], None],
        tenant: str,
        number: int,
    ) -> None:
        self.is_taken = False
        self.tenant = tenant
        self.number = number
        self.tell = tell
        self._let_go = let_go
        self._is_busy = False
        self._is_left = False

    def begin(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Begin a function in a thread of its own, with the caller's context variables."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        # Log lines of a sync tool name their session as those of an async one do.
        context = contextvars.copy_context()

        def deliver(settle: Callable[[], None]) -> None:
            self._is_busy = False
            if self._is_left:
                self._let_go(self)
            if not future.done():
                settle()

        def work() -> None:
            settle = attempt(partial(context.run, function), future)
            # An abandoned thread may outlive the loop that has begun it.
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, settle)

        threading.Thread(target=work, name="outlast tool", daemon=True).start()
        self._is_busy = True  # it began: the system may have no thread to give
        return future

    def leave(self) -> None:
        """Let the next have it, when what runs in it has ended."""
        if not self._is_left:
            self._is_left = True
            if not self._is_busy:
                self._let_go(self)


def attempt(function: Callable[[], Any], future: asyncio.Future[Any]) -> Callable[[], None]:
    """Run a function to its end, and return how to tell a future of it."""
    try:
        value = function()
    except (StopIteration, KeyboardInterrupt) as error:
        # A future takes no StopIteration; and Ctrl-C is heard by the main thread, never by this.
        return partial(future.set_exception, RuntimeError(f"the function raised {error!r}"))
    except BaseException as error:  # noqa: BLE001 - belongs to the task that awaits the future
        return partial(future.set_exception, error)
    return partial(future.set_result, value)
