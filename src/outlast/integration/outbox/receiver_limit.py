"""Places at receivers: who may be visited now, who waits for it, and who is sent away.

Each receiver has so many places, and whoever finds them taken waits in its line. A line that
does not move is sent away, so that a receiver which is slow keeps its own places and not those
of others. Starts nothing and stores nothing itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from outlast.clock import Clock
from outlast.store import OutboxCursor

STUCK = 1.0
"""Seconds without a place getting free after which a line does not move."""

LONGEST_WAIT = 5.0
"""Seconds that anybody waits in a line: a hold on an outbox cursor is not for ever."""


class ReceiverSlots:
    """The places that are taken at one receiver, and its line."""

    def __init__(self, now: float) -> None:
        self.visits = 0
        self.line: deque[tuple[float, OutboxCursor]] = deque()
        self.freed_at = now


class ReceiverLimits:
    """Gives out places; `begin` is called with who gets one, at once or later."""

    def __init__(
        self, places: int, begin: Callable[[OutboxCursor, str], None], clock: Clock
    ) -> None:
        self._places = places
        self._begin = begin
        self._clock = clock
        self._receivers: dict[str, ReceiverSlots] = {}

    @property
    def waiting(self) -> int:
        """How many wait in lines."""
        return sum(len(receiver.line) for receiver in self._receivers.values())

    def let_in(self, cursor: OutboxCursor, name: str) -> bool:
        """Give a cursor a place at a receiver, or in its line; not in one that does not move."""
        now = self._clock.monotonic()
        receiver = self._receivers.setdefault(name, ReceiverSlots(now))
        if receiver.visits < self._places:
            receiver.visits += 1
            self._begin(cursor, name)
        elif self._is_stuck(receiver, now):
            return False
        else:
            receiver.line.append((now, cursor))
        return True

    def leave(self, name: str) -> None:
        """Free a place at a receiver, for the first in its line."""
        receiver = self._receivers[name]
        receiver.freed_at = self._clock.monotonic()
        if receiver.line:
            _, cursor = receiver.line.popleft()
            self._begin(cursor, name)
            return
        receiver.visits -= 1
        if not receiver.visits:
            del self._receivers[name]

    def send_away(self) -> list[OutboxCursor]:
        """Return those who wait in vain, and no longer."""
        now, away = self._clock.monotonic(), list[OutboxCursor]()
        for receiver in self._receivers.values():
            latest = now if self._is_stuck(receiver, now) else now - LONGEST_WAIT
            while receiver.line and receiver.line[0][0] <= latest:
                away.append(receiver.line.popleft()[1])
        return away

    def clear(self) -> list[OutboxCursor]:
        """Return all who wait, and no longer."""
        away = [cursor for receiver in self._receivers.values() for _, cursor in receiver.line]
        for receiver in self._receivers.values():
            receiver.line.clear()
        return away

    def _is_stuck(self, receiver: ReceiverSlots, now: float) -> bool:
        return receiver.visits >= self._places and now - receiver.freed_at > STUCK
