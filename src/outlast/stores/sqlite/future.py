"""How the store's threads answer who waits on an event loop: many with one wake-up."""

from __future__ import annotations

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
    """What somebody on an event loop waits for. Without a future he looks at it himself."""

    future: Future | None
    result: Any = None
    error: BaseException | None = None


def make_future() -> Future:
    return asyncio.get_running_loop().create_future()


def resolve(
    answers: Sequence[PendingResult],
    ears: Mapping[Loop, LoopListener] | None = None,
    hints: Hints | None = None,
    here: Loop | None = None,
) -> None:
    """Resolve the answers' futures and pass on the hints, each on its own event loop.

    `here` is the loop whose thread this is, if it is one's: there the answers are given at once,
    and listeners are left to who calls, so that what they do is none of the writer's business.
    """
    by_loop: dict[Loop, list[PendingResult]] = {loop: [] for loop in ears or () if loop is not here}
    for answer in answers:
        if answer.future:
            by_loop.setdefault(answer.future.get_loop(), []).append(answer)
    for loop, own in by_loop.items():
        if loop is here:
            wake(own)
            continue
        ear = ears.get(loop) if ears else None
        with suppress(RuntimeError):  # the loop was closed: there is nobody left to tell
            loop.call_soon_threadsafe(wake, own, ear, hints)


def wake(
    answers: Sequence[PendingResult], ear: LoopListener | None = None, hints: Hints | None = None
) -> None:
    for answer in answers:
        future = answer.future
        if future is None or future.done():
            continue
        if answer.error:
            future.set_exception(answer.error)
        else:
            future.set_result(answer.result)
    if ear and hints:
        ear.hear(hints)
