"""Limits on calls: how many run at once, and how many begin within a span of time.

A rate is kept as one number, the instant up to which starts are paid for: each start pays for
`per / rate` more, and may begin as long as no more than `per` is paid for in advance. So a burst
of `rate` starts is allowed, and no counters have to be reset. It is counted in microseconds: in
milliseconds a rate of some hundreds in a second would be another.
"""

from collections.abc import Collection

from msgspec import Struct

from outlast.core import record as r


class Bound(Struct, frozen=True, gc=False):
    """A limit by its name: so many calls at once, so many starts in `per` milliseconds.

    0 is any number. All bounds of one name are of the same kind, places or starts; where they
    differ in number, each call is held to what was said for it.
    """

    name: str
    concurrency: int = 0
    rate: int = 0
    per: int = 0


def start_at(bound: Bound, paid_until: int, ahead: int, now: int) -> int:
    """Return when a call may begin that has so many ahead of it, in milliseconds as `now` is."""
    if not bound.rate:
        return now
    begins = max(paid_until, now * 1000) + (ahead + 1 - bound.rate) * price_of(bound)
    return max(now, -(-begins // 1000))


def pay(bound: Bound, paid_until: int, now: int) -> int:
    """Return the instant up to which starts are paid for, in microseconds, after one more."""
    return max(paid_until, now * 1000) + price_of(bound)


def price_of(bound: Bound) -> int:
    """Return how many microseconds a start pays for: rather one too many than one too few."""
    return -(-bound.per * 1000 // bound.rate)


CALL_ENDS = frozenset(
    {
        r.ToolCompleted,
        r.ToolFailed,
        r.ToolInterrupted,
        r.ToolDenied,
        r.ToolWaiting,
        r.RequestOpened,
        r.MessageCompleted,
        r.ModelRetrying,
        r.ModelSwitched,
        r.ProviderUnavailable,
        r.ProviderStillUnavailable,
        r.CompactionCompleted,
        r.SummaryFailed,
        r.ContextOverflowed,
    }
)
TURN_ENDS = frozenset({r.TurnCompleted, r.TurnFailed, r.TurnCancelled, r.ContextRewound})
"""With these nothing runs any more. A view goes back between turns, and stops a summary."""


def freed_by(record: r.AnyRecord, permits: Collection[str]) -> list[str]:
    """Return which of the calls with permits have no more use for them, by a record.

    A call that a crash cut off keeps its own: what it began may still be going on.
    """
    kind = type(record)
    if isinstance(record, r.RequestOpened) and record.origin:
        return []  # a request of a session elsewhere: the call goes on meanwhile
    if kind in CALL_ENDS:
        return [call_id for call_id in permits if call_id == record.call_id]  # type: ignore[union-attr]
    return list(permits) if kind in TURN_ENDS else []
