"""How much of a log goes on a page: whole rows, until they hold enough records or bytes.

Bytes are counted as they are in memory, not as they are stored: what was said may be a thousand
times as large as what is kept of it.
"""

import zstandard

from outlast.core.codec import COMPRESSED
from outlast.errors import StoreCorrupt
from outlast.store.log import FULL_PAGE


def size_of_row(data: bytes) -> int:
    """Return how large a row of the log is when it is unpacked, without what is kept beside it."""
    return size_of_value(data[2:]) if data[1:2] and data[1] & COMPRESSED else len(data)


def size_of_value(data: bytes) -> int:
    """Return how large a compressed value is, of which the first 18 bytes are given at least."""
    try:
        return max(len(data), zstandard.frame_content_size(data))
    except zstandard.ZstdError:  # whoever unpacks it says what is wrong with it
        return len(data)


class PageFiller:
    """A page while rows are put on it. The first of them always fits."""

    def __init__(self, limit: int) -> None:
        self._records = limit
        self._bytes = FULL_PAGE

    def add(self, records: int, size: int) -> None:
        self._records -= records
        self._bytes -= size

    @property
    def is_full(self) -> bool:
        return self._records <= 0 or self._bytes <= 0


def check_snapshot(offset: int, end: int) -> None:
    """Refuse a snapshot of more than there is in the log."""
    if offset > end:
        raise StoreCorrupt(f"a snapshot holds all up to {offset}, and the log ends at {end}")
