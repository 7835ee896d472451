"""Names the code of the app that blocks the event loop, while it does so.

Everything in a worker runs on one loop: an async tool that computes, or a function of a prompt that
calls something that blocks, stops every other session of the worker. Owns the notes of which code
the loop is in, and the thread that reads them: the loop itself cannot tell. Refuses to stop that
code: nothing can.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import isawaitable
from typing import Any, TypeVar

from outlast.clock import Clock
from outlast.log_context import get_logger, known

log = get_logger("outlast.agents")

T = TypeVar("T")

LONGEST_STEP = 1.0
"""How many seconds code may keep the loop before it is named."""
INTERVAL = 0.25


class LoopStep:
    """The code that the loop runs now, since when, and whether a warning has named it."""

    def __init__(self, ids: Mapping[str, object], since: float) -> None:
        self.ids = ids
        self.since = since
        self.is_named = False


class LoopWatch:
    """One per worker; `start` begins to look. `blocked` counts the steps that took too long."""

    def __init__(self, clock: Clock) -> None:
        self.blocked = 0
        self._clock = clock
        self._step: LoopStep | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        thread = threading.Thread(target=self._run, name="outlast loop watch", daemon=True)
        thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def counts(self) -> Mapping[str, int]:
        """Return what was counted, by the name of its metric."""
        return {"blocked_loops": self.blocked}

    def watched(self, run: Awaitable[T], **named: str) -> WatchedRun[T]:
        """Return a run of code whose steps are noted here: `tool="refund"` says what it is."""
        return WatchedRun(self, run, {**known(), **named})

    @contextmanager
    def inside(self, **named: str) -> Iterator[None]:
        """Note what the loop is in; code that this is a part of goes on being noted behind it."""
        # Code on the loop may call other noted code, but never runs at the same time: a stack of
        # one.
        before = self._step
        self.enter({**known(), **named})
        try:
            yield
        finally:
            self._step = before

    def enter(self, ids: Mapping[str, object]) -> None:
        self._step = LoopStep(ids, self._clock.monotonic())

    def leave(self) -> None:
        self._step = None

    def look(self) -> None:
        """Name the code that the loop is in, if it has been so for too long."""
        step = self._step
        if step is None or step.is_named:
            return
        seconds = self._clock.monotonic() - step.since
        if seconds > LONGEST_STEP:
            # Once for each step, however long it takes.
            step.is_named = True
            self.blocked += 1
            log.warning(
                "code of the app blocks the event loop, and every session of this worker waits for"
                " it: await what it waits for, or give it a thread, as a sync tool has",
                extra={**step.ids, "seconds": round(seconds, 1)},
            )

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL):
            self.look()


class WatchedRun(Awaitable[T]):
    """An awaitable whose every step, from one `await` to the next, is noted."""

    def __init__(self, watch: LoopWatch, run: Awaitable[T], ids: Mapping[str, object]) -> None:
        self._watch = watch
        self._run = run
        self._ids = ids

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._run.__await__()
        error: BaseException | None = None
        sent: Any = None
        while True:
            self._watch.enter(self._ids)
            try:
                # Step by step as the event loop would do it: a wrapper around the whole could not
                # tell working from waiting.
                waits_for = steps.throw(error) if error else steps.send(sent)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._watch.leave()
            sent, error = None, None
            try:
                sent = yield waits_for
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 - belongs to the code, a cancel too
                error = thrown


def noted(watch: LoopWatch | None, **named: str) -> AbstractContextManager[None]:
    """Note what the loop is in, where somebody watches it."""
    return watch.inside(**named) if watch else nullcontext()


async def answer_of(
    watch: LoopWatch | None, function: Callable[..., Any], *args: Any, **named: str
) -> Any:
    """Call a function on the loop that may be async, and return what it says."""
    with noted(watch, **named):
        found = function(*args)
    if not isawaitable(found):
        return found
    return await (watch.watched(found, **named) if watch else found)
