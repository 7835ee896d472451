"""A reader's place in a session's log: an offset, and the checksum of the row that it stands on.

By the checksum a reader is told for ever that what it has read is gone, as after a restored backup,
however far the log has grown since. Written as text it is `17-5f2e9c01`. An offset alone is a
cursor too, of which only is known whether the log is long enough.
"""

import re
from typing import Any, NamedTuple

from outlast.core.codec import CHECKSUM_DIGITS
from outlast.errors import InvalidInput

MOST_DIGITS = 16
TEXT = rf"^[0-9]{{1,{MOST_DIGITS}}}(-[0-9a-f]{{{CHECKSUM_DIGITS}}})?$"
_text = re.compile(TEXT)


class Cursor(NamedTuple):
    """A place in a log. Without a checksum nothing is said of what is there."""

    offset: int
    checksum: str = ""

    def __str__(self) -> str:
        return f"{self.offset}-{self.checksum}" if self.checksum else str(self.offset)


BEGINNING = Cursor(0)


def cursor_of(given: Any) -> Cursor:
    """Return a cursor from its text, or from an offset; refuse what can be neither."""
    if isinstance(given, str) and _text.match(given):
        offset, _, checksum = given.partition("-")
        return Cursor(int(offset), checksum)
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return Cursor(given)
    raise InvalidInput(
        f"a cursor is the `cursor` of an event, its offset, or 0 for all events, not {given!r}"
    )
