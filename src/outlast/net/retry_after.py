"""The header `Retry-After`, as any server may send it: a number of seconds, a date, or garbage.

Stands alone so that nothing of httpx is loaded with it.
"""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST = 24 * 3600.0
"""More seconds than this are not believed."""
MOST_DIGITS = 9


def retry_after(text: str, now: int) -> float:
    """Return the seconds that a server wants to be left alone, from 0 up to a day.

    `now` is in milliseconds. What cannot be read is 0: the caller has pauses of its own.
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:MOST_DIGITS]), LONGEST)
    try:
        at = parsedate_to_datetime(text)
        # A date without a zone is in UTC; one with a zone may lie outside what Python can count.
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        wanted = (at - datetime.fromtimestamp(now / 1000, UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError, OSError, IndexError):
        return 0.0
    return min(max(0.0, wanted), LONGEST)
