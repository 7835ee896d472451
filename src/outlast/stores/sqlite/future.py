"""Results that the store's threads hand to event loops: many with one wake-up."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from outlast.stores.sqlite.notify import Hints, LoopListener

Loop = asyncio.AbstractEventLoop
Future = asyncio.Future[Any]


@dataclass(slots=True)
class PendingResult:
    """A pending result. `future` is None when the caller reads `result` itself or needs none."""

    future: Future | None
    result: Any = None
    error: BaseException | None = None


def make_future() -> Future:
    return asyncio.get_running_loop().create_future()


def resolve(
    answers: Sequence[PendingResult],
    listeners: Mapping[Loop, LoopListener] | None = None,
    hints: Hints | None = None,
    here: Loop | None = None,
) -> None:
    """Resolve the answers' futures and pass on the hints, each on its own event loop.

    `here` is the loop of this very thread, if there is one. Its futures are resolved at once, and
    the caller calls its listeners, after it has released the writer's lock.
    """
    by_loop: dict[Loop, list[PendingResult]] = {
        loop: [] for loop in listeners or () if loop is not here
    }
    for answer in answers:
        if answer.future:
            by_loop.setdefault(answer.future.get_loop(), []).append(answer)
    for loop, own in by_loop.items():
        if loop is here:
            wake(own)
            continue
        listener = listeners.get(loop) if listeners else None
        with suppress(RuntimeError):  # the loop was closed, and its waiters with it
            loop.call_soon_threadsafe(wake, own, listener, hints)


def wake(
    answers: Sequence[PendingResult],
    listener: LoopListener | None = None,
    hints: Hints | None = None,
) -> None:
    for answer in answers:
        future = answer.future
        if future is None or future.done():
            continue
        if answer.error:
            future.set_exception(answer.error)
        else:
            future.set_result(answer.result)
    if listener and hints:
        listener.hear(hints)
