"""The store's clock, as a process knows it, and which clock each date comes from.

Two clocks are never compared. A date, where it comes from, and what it is compared with:

- Leases, `ready_at`, permits, holds of cursors, lifetimes of documents: the store's own time, in
  the statement that writes or compares them.
- Timers, expiry of requests and callbacks, pauses before a retry, pauses of the outbox, all that is
  a span from now: `latest()` plus the span. Due when `earliest()` is there.
- Deadlines and `wait_until`: the instant that the caller named, or a span as above. Due when
  `earliest()` is there; so are the instants of a schedule.
- An access token's life, which must not be taken for longer than it is: `earliest()` before it is
  asked for plus the span. Over when `latest()` is there.
- `at` and `since` of records: `date()`, and never before the record above. The `at` of an arrival
  is its sender's `date()`, or the store's own time where that is behind it.
- Timestamps of signatures, `Retry-After` as a date, a deadline that an HTTP client gives as a span:
  this machine's wall clock (`Clock.now`), since the other side has no other.
- Timeouts of calls, pauses and patience within a process: `Clock.monotonic`.
- How fresh a worker's lease is: `Clock.boottime`, since a lease runs out while a machine is
  suspended.

So nothing is due before its time by the store's clock, however late an answer of the store comes,
and no span is cut short by what this process does not know of the store's clock.
"""

from collections.abc import Callable
from math import floor
from typing import Protocol

from msgspec import Struct

from outlast.clock import Clock

DRIFT = 0.0005
"""By how much two clocks may run apart: NTP moves a clock by no more than this at a time."""

STEP = 100
"""Milliseconds by which wall clock and boot time may come to differ before one of them was set."""

WIDE = 50
"""Milliseconds of doubt that are worth a further measurement."""

STALE = 10_000
"""Milliseconds after which a measurement is made anew."""


class StoreClock(Protocol):
    """The store's time as far as this process knows it, in milliseconds since the epoch.

    By the store's own clock it is `earliest()` or later now, and `latest()` or earlier.
    """

    def earliest(self) -> int:
        """Return a time that has come: what is due by then is due."""
        ...

    def latest(self) -> int:
        """Return a time that has not passed: a span that counts from here is not cut short."""
        ...

    def date(self) -> int:
        """Return the likeliest time, between the two others, for dating what is written."""
        ...


class LocalStoreClock:
    """The clock of a store whose time is this machine's wall clock, by definition."""

    def __init__(self, clock: Clock) -> None:
        # Nothing is in doubt, so all three are one; a step asks eight times.
        self.earliest = self.latest = self.date = clock.now


class ClockBounds(Struct, frozen=True, gc=False):
    """The store's time is ahead of boot time by `least` to `most` milliseconds.

    `known_at` is the boot time at which this was so, and `wall` is how far the wall clock was
    ahead of it then.
    """

    least: float
    most: float
    known_at: float
    wall: float


class MeasuredStoreClock:
    """The clock of a server, known from its answers.

    An answer says what time it was at the server at some moment between question and answer. The
    bounds that follow hold as boot time goes on, but for the drift of two clocks; a later answer
    makes them narrower, or takes their place where it contradicts them: then the server's clock
    was set. Where this machine's wall clock and its boot time have come to differ, one of them was
    set, or the machine stood still in a way that only one of them noticed. Either may be right
    until the next answer, so the bounds are as wide as both together.

    `measure` asks for a further answer, without waiting for it. All methods may be called from any
    thread.
    """

    def __init__(self, clock: Clock, measure: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._measure = measure
        self._bounds: ClockBounds | None = None

    def asking(self) -> float:
        """Return when a question goes out: what `note` is given with its answer."""
        return self._clock.boottime()

    def note(self, asked_at: float, time: int) -> None:
        """Learn that the server's time was `time` at some moment since `asked_at`."""
        boot, wall = self._local()
        # The answer's way and the question's together: the server looked at its clock somewhere in
        # between.
        took = boot - asked_at * 1000
        new = ClockBounds(
            least=time - boot,
            most=time - boot + took * (1 + DRIFT) + 1,  # a server's time is in whole milliseconds
            known_at=boot,
            wall=wall - boot,
        )
        self._bounds = self._joined(new)

    def _joined(self, new: ClockBounds) -> ClockBounds:
        known = self._bounds
        # A clock here was set, or the machine stood still: what was known before says nothing any
        # more.
        if known is None or abs(new.wall - known.wall) > STEP:
            return new
        drift = DRIFT * max(0.0, new.known_at - known.known_at)
        # Both are true: the store's clock is where they overlap.
        least, most = max(known.least - drift, new.least), min(known.most + drift, new.most)
        return ClockBounds(least, most, new.known_at, new.wall) if least <= most else new

    def earliest(self) -> int:
        return self._read()[0]

    def latest(self) -> int:
        return self._read()[2]

    def date(self) -> int:
        """Return what the wall clock shows, as far as the server's time may be that."""
        earliest, wall, latest = self._read()
        return min(max(earliest, wall), latest)

    def _read(self) -> tuple[int, int, int]:
        boot, wall = self._local()
        known = self._bounds
        if known is None:
            self._measure()
            return wall, wall, wall
        age = max(0.0, boot - known.known_at)
        jump = wall - boot - known.wall
        if abs(jump) <= STEP:
            jump = 0.0
        # Asked for, not waited for: until the answer comes the bounds are wide, and right.
        if jump or age > STALE or known.most - known.least > WIDE:
            self._measure()
        least, most = known.least - DRIFT * age, known.most + DRIFT * age
        if jump:  # known to a millisecond, as the wall clock is
            least, most = least + min(0.0, jump - 1), most + max(0.0, jump + 1)
        return floor(boot + least), wall, floor(boot + most)

    def _local(self) -> tuple[float, int]:
        return self._clock.boottime() * 1000, self._clock.now()
