"""Checks instants and spans of time that users give: all of them can be shown as a date.

Owns their conversion to the milliseconds that records hold. Settings are checked in `setting.py`.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from outlast.errors import InvalidInput

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST, LATEST = -62_135_596_800_000, 253_402_300_799_999
"""The first millisecond of the year 1 and the last of 9999: calendars end there."""
LONGEST = timedelta(days=365_250)

Span = timedelta | float
"""A length of time as users give it; a number is seconds."""


def seconds(span: Span) -> float:
    """Return a span of time that was checked already, in seconds."""
    return span.total_seconds() if isinstance(span, timedelta) else float(span)


def milliseconds(duration: Any) -> int:
    """Return a span of time, of a thousand years at most."""
    if isinstance(duration, timedelta):
        seconds: float = duration.total_seconds()
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = duration
    else:
        kind = type(duration).__name__
        raise InvalidInput(f"a duration has to be a timedelta or a number of seconds, not {kind}")
    if not seconds <= LONGEST.total_seconds():  # NaN is not either
        raise InvalidInput("a duration must not be longer than a thousand years")
    return int(max(float(seconds), 0.0) * 1000)


def since_epoch(what: str, at: Any) -> int:
    """Return an instant that has a time zone, in milliseconds."""
    if getattr(at, "tzinfo", None) is None:
        raise InvalidInput(f"{what} needs a time zone: datetime(…, tzinfo=UTC)")
    return not_too_late(what, milliseconds_at(at))


def read_instant(what: str, text: str) -> datetime:
    """Return an instant that came as a text."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{what} is an instant: 2099-01-31T12:00:00Z") from None
    if found.utcoffset() is None:
        raise InvalidInput(f"{what} says its offset from UTC: 2099-01-31T12:00:00Z")
    return found


def not_too_late(what: str, instant: int) -> int:
    if instant > LATEST:
        raise InvalidInput(f"{what} is before the year 10000")
    return instant


def milliseconds_at(at: datetime) -> int:
    """Return an instant in whole milliseconds since the epoch, without the error of a float."""
    # Whole numbers all the way: a float of today's microseconds is off in its last digits.
    return (at - EPOCH) // timedelta(milliseconds=1)


def date_of(instant: int) -> datetime:
    """Return an instant as a date; one beyond all dates as the first or the last of them.

    It may come from a log: no stored number keeps a list from being shown.
    """
    return EPOCH + timedelta(milliseconds=max(EARLIEST, min(instant, LATEST)))


def rfc3339(at: datetime) -> str:
    """Return an instant as RFC 3339 has it, in UTC and to the millisecond."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def date_or_none(instant: int | None) -> datetime | None:
    """Return an instant as a date; neither 0 nor None is one."""
    return date_of(instant) if instant else None
