"""Limits for each receiver: how many cursors are delivered to it at once, and which ones wait.

A receiver has a fixed number of slots; a cursor that finds them taken waits in its queue. A queue
that does not move is handed back, so that a slow receiver uses up its own slots and not those of
others.
Starts no task and writes nothing: `begin` and the dispatcher do.
"""

from collections import deque
from collections.abc import Callable

from outlast.clock import Clock
from outlast.store import OutboxCursor

STALLED = 1.0
"""Seconds without a freed slot after which a queue counts as stalled."""

LONGEST_WAIT = 5.0
"""The most seconds in a queue: the hold on a cursor expires."""


class ReceiverSlots:
    """The slots of one receiver that are taken, and its queue."""

    def __init__(self, now: float) -> None:
        self.taken = 0
        self.queue: deque[tuple[float, OutboxCursor]] = deque()
        self.freed_at = now


class ReceiverLimits:
    """Gives out slots. `begin` is called with each cursor that gets one, at once or later."""

    def __init__(
        self, slots: int, begin: Callable[[OutboxCursor, str], None], clock: Clock
    ) -> None:
        self._slots = slots
        self._begin = begin
        self._clock = clock
        self._receivers: dict[str, ReceiverSlots] = {}

    @property
    def waiting(self) -> int:
        """The number of cursors in all queues."""
        return sum(len(receiver.queue) for receiver in self._receivers.values())

    def add(self, cursor: OutboxCursor, name: str) -> bool:
        """Give a cursor a slot at a receiver, or queue it; return False if the queue is stalled."""
        now = self._clock.monotonic()
        receiver = self._receivers.setdefault(name, ReceiverSlots(now))
        if receiver.taken < self._slots:
            receiver.taken += 1
            self._begin(cursor, name)
        elif self._is_stalled(receiver, now):
            return False
        else:
            receiver.queue.append((now, cursor))
        return True

    def release(self, name: str) -> None:
        """Free a slot at a receiver, and give it to the first cursor in its queue."""
        receiver = self._receivers[name]
        receiver.freed_at = self._clock.monotonic()
        if receiver.queue:
            _, cursor = receiver.queue.popleft()
            self._begin(cursor, name)
            return
        receiver.taken -= 1
        if not receiver.taken:
            del self._receivers[name]

    def take_stalled(self) -> list[OutboxCursor]:
        """Remove and return the cursors of stalled queues, and those that wait too long."""
        now, stalled = self._clock.monotonic(), list[OutboxCursor]()
        for receiver in self._receivers.values():
            latest = now if self._is_stalled(receiver, now) else now - LONGEST_WAIT
            while receiver.queue and receiver.queue[0][0] <= latest:
                stalled.append(receiver.queue.popleft()[1])
        return stalled

    def take_all(self) -> list[OutboxCursor]:
        """Remove and return the cursors of all queues."""
        waiting = [cursor for receiver in self._receivers.values() for _, cursor in receiver.queue]
        for receiver in self._receivers.values():
            receiver.queue.clear()
        return waiting

    def _is_stalled(self, receiver: ReceiverSlots, now: float) -> bool:
        return receiver.taken >= self._slots and now - receiver.freed_at > STALLED
