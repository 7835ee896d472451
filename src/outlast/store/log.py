"""The log as it is read: to fold a lane, and page by page."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from outlast.core.record import (
    Entry,
    SessionCompleted,
    SessionEnded,
    SessionFailed,
    SessionStarted,
    StateChanged,
)
from outlast.store.commit import Snapshot

FULL_PAGE = 8 * 1024 * 1024
"""So many bytes of records are enough for a page, however few they are."""


class Loaded(Struct, frozen=True, gc=False):
    """What a fold needs: the newest snapshots with today's fold version, and what follows.

    `entries` are those of the lane, and the slice changes and ends of the whole session,
    after the offset asked for, or after the lane's snapshot (whose offset is then the
    start). `slices` stands likewise for the session's slices.
    """

    snapshot: Snapshot | None
    slices: Snapshot | None
    entries: tuple[Entry, ...]
    tail_bytes: int
    last_at: int = 0


class LogPage(Struct, frozen=True, gc=False):
    """Entries in order, and the cursor after them. `end` is the log's last offset."""

    entries: tuple[Entry, ...]
    cursor: int
    end: int


class LogReads(Protocol):
    """The logs of sessions."""

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        """Return what is needed to fold the lane: from its snapshot on, or after an offset."""
        ...

    async def read(self, session_id: str, after: int, limit: int = 500) -> LogPage:
        """Return the entries after a cursor, about `limit` of them, whole commits only.

        A page ends behind the commit with which it holds `limit` entries or `FULL_PAGE` bytes of
        them, large values included; so there is at least one on it if there is one at all.
        A cursor beyond the end is CursorAhead; an unknown session is UnknownSession.
        """
        ...

    async def read_back(self, session_id: str, before: int, limit: int = 50) -> LogPage:
        """Return the last entries before an offset, oldest first; the cursor is their start.

        A page ends as it does in `read`.
        """
        ...


OF_ALL_LANES = (SessionStarted, SessionCompleted, SessionFailed, SessionEnded)


def concerns(entry: Entry, lane: str, after: int, slices_after: int) -> bool:
    """Whether a lane's fold needs an entry, behind what it and the slices have seen."""
    kind = type(entry.record)
    if kind is StateChanged:
        return entry.offset > slices_after
    return entry.offset > after and (entry.lane == lane or kind in OF_ALL_LANES)
