"""An event loop on which time passes only when no callback is ready.

Single-threaded, without sockets and without sleeping: when nothing is ready it jumps to
the next timer. Everything runs in the context of a `ProcessLife`, if of any; a life that is
stopped runs nothing more, between one instruction and the next, as after a SIGKILL.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVarTuple, Unpack

Ts = TypeVarTuple("Ts")

LIFE: ContextVar[ProcessLife | None] = ContextVar("life", default=None)
"""The process in which the current code runs; None is the world outside."""


class NothingWillHappen(Exception):
    """All tasks wait, and nothing is scheduled that could wake one."""


class ProcessLife:
    """A process. Stopped, it stands still where it is; it may go on later, or never."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_stopped = False
        self.wakes = False
        self.tasks: list[asyncio.Task[Any]] = []
        self._held: list[asyncio.Handle] = []

    def stop(self) -> None:
        """Run nothing from now on; what is running runs up to its next await."""
        self.is_stopped = True

    def go_on(self, loop: VirtualLoop) -> None:
        """Run what was held back, in its order."""
        held, self._held, self.is_stopped = self._held, [], False
        loop.take_back(held)

    def hold(self, handle: asyncio.Handle) -> None:
        self._held.append(handle)

    def context(self) -> Context:
        """Return a context in which code belongs to this life."""
        context = copy_context()
        context.run(LIFE.set, self)
        return context

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold on to a task: one that is collected while it waits would run its `finally`."""
        if len(self.tasks) > 200:
            self.tasks = [known for known in self.tasks if not known.done()]
        self.tasks.append(task)


class ProcessHandle(asyncio.Handle):
    """A callback that belongs to a life."""

    def _run(self) -> None:
        life = self._context.get(LIFE)  # type: ignore[attr-defined]
        if life is not None and life.is_stopped:
            life.hold(self)
        else:
            super()._run()


class ProcessTimer(ProcessHandle, asyncio.TimerHandle):
    """A timer that belongs to a life."""

    def __lt__(self, other: asyncio.TimerHandle) -> bool:
        return self._when < other._when  # type: ignore[attr-defined, no-any-return]


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop of a simulation. `time()` begins at 0."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self.unhandled: list[str] = []
        self.set_task_factory(make_task)  # type: ignore[arg-type] # as asyncio calls it since 3.11
        self.set_exception_handler(note_unhandled)

    def time(self) -> float:
        return self._now

    def take_back(self, handles: list[asyncio.Handle]) -> None:
        """Run handles that were held back."""
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = ProcessTimer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """There is one thread."""
        return self.call_soon(callback, *args, context=context)

    def _call_soon(self, callback: Any, args: Any, context: Any) -> asyncio.Handle:
        handle = ProcessHandle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def _run_once(self) -> None:
        """Run what is ready; where other loops wait for the outside world, let time pass."""
        ready, timers = self._ready, self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if not ready:
            if not timers:
                raise NothingWillHappen
            self._now = max(self._now, timers[0]._when)
        while timers and timers[0]._when <= self._now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()


def make_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any],
    context: Context | None = None,
    **options: Any,
) -> asyncio.Task[Any]:
    life = context.get(LIFE) if context is not None else LIFE.get()
    task = asyncio.Task(work, loop=loop, context=context, **options)
    if life is not None:
        life.keep(task)
    return task


def note_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Keep an error that no task awaits."""
    assert isinstance(loop, VirtualLoop)
    loop.unhandled.append(f"{context['message']}: {context.get('exception')!r}")
