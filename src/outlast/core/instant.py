"""Instants and spans of time that somebody gives: none that could not be shown as a date."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from outlast.errors import InvalidInput

LATEST = 253_402_300_799_999
"""The last millisecond of the year 9999, since the epoch: calendars end there."""
LONGEST = timedelta(days=365_250)


def milliseconds(duration: Any) -> int:
    """Return a span of time, of a thousand years at most."""
    if not isinstance(duration, timedelta):
        raise InvalidInput(f"a duration is a timedelta, not {type(duration).__name__}")
    if duration > LONGEST:
        raise InvalidInput("a duration is a thousand years at most")
    return int(duration.total_seconds() * 1000)


def since_epoch(what: str, at: Any) -> int:
    """Return an instant that has a time zone, in milliseconds."""
    if getattr(at, "tzinfo", None) is None:
        raise InvalidInput(f"{what} needs a time zone: datetime(…, tzinfo=UTC)")
    return not_too_late(what, int(at.timestamp() * 1000))


def not_too_late(what: str, instant: int) -> int:
    if instant > LATEST:
        raise InvalidInput(f"{what} is before the year 10000")
    return instant


def date_of(instant: int) -> datetime:
    """Return an instant as a date; one beyond all dates, from an older log, as the last."""
    return datetime.fromtimestamp(min(instant, LATEST) / 1000, UTC)
