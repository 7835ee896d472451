"""A call under way: its task, and how long there is patience with it.

No timer of its own: the lane that waits for its work looks at all of it when the first is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from msgspec import Struct

from outlast.clock import Clock


class CallTimeouts(Struct, frozen=True, gc=False):
    """How many seconds a call may take, and how many it may show no sign of life."""

    whole: float
    silence: float = float("inf")


class RunningCall:
    """One call. `due_at` is when patience with it ends, in seconds of the monotonic clock.

    `is_awaited` until it has ended, or nobody has the patience any more to see it end. `is_stopped`
    if it was told to end, by its turn (`is_cancelled`), for being late (`is_overdue`), or with its
    lane: a cancellation otherwise is the call's own.
    """

    task: asyncio.Task[None]

    def __init__(self, call_id: str, patience: CallTimeouts, clock: Clock) -> None:
        self.call_id = call_id
        self.is_awaited = True
        self.is_stopped = False
        self.is_cancelled = False
        self.is_overdue = False
        self.is_ending = False
        self._clock = clock
        self._silence = patience.silence
        self._end_at = clock.monotonic() + patience.whole
        self.show_life()

    def show_life(self) -> None:
        """Begin to count the silence anew."""
        self.due_at = min(self._end_at, self._clock.monotonic() + self._silence)

    def give_up(self, grace: float) -> None:
        """Stop it for having taken too long. It has a little time to end by itself."""
        self.is_overdue = True
        self.due_at = self._clock.monotonic() + grace
        self.stop()

    def cancel(self) -> None:
        """Stop it because its turn is being stopped, once: the turn's patience counts now."""
        self.is_cancelled = True
        self.due_at = float("inf")
        self.stop()

    def stop(self) -> None:
        self.is_stopped = True
        self.task.cancel()

    def end(self) -> None:
        """Have patience from now on: what it came to is known, and only has to be recorded."""
        self.is_ending = True
        self.due_at = float("inf")


async def to_its_end(commit: Awaitable[Any]) -> None:
    """Stay until it is known what became of a commit, even if the call is stopped meanwhile."""
    committing = asyncio.ensure_future(commit)
    stopped: asyncio.CancelledError | None = None
    while not committing.done():
        try:
            await asyncio.wait([committing])
        except asyncio.CancelledError as error:
            stopped = error
    committing.result()
    if stopped:
        raise stopped
