"""The topic `log`: the logs of sessions, how they are written, read and erased.

Arrivals come in by `admit`, the owner of a lane writes by `commit`, and readers page through what
was committed. Which worker owns a lane is the topic `work`; what is listed without reading a log
is the topic `listing`.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

from outlast.core.record import (
    Entry,
    SessionCompleted,
    SessionEnded,
    SessionFailed,
    SessionStarted,
)
from outlast.core.slice import STATE_RECORDS
from outlast.errors import OutlastError, StoreCorrupt
from outlast.store.admission import Admission, AdmissionReceipt
from outlast.store.commit import Commit, Committed, EffectClaim, FoldSnapshot, Refused, Transaction

FULL_PAGE = 8 * 1024 * 1024
"""A page is full when its records have this many bytes, however few records they are."""


class Loaded(Struct, frozen=True, gc=False):
    """The newest snapshots with today's fold version, and the entries that follow them.

    `entries` are those of the lane, and the slice changes and ends of the whole session,
    after the offset asked for, or after the lane's snapshot (whose offset is then the
    start). `slices` stands likewise for the session's slices. `checksum` is that of the record at
    the offset asked for, or at the lane's snapshot; it is empty where the log has no such record.
    `damaged` says why a snapshot cannot be read, if so: then there is nothing else to load from
    here, and the lane is loaded after the offset 0.
    """

    snapshot: FoldSnapshot | None
    slices: FoldSnapshot | None
    entries: tuple[Entry, ...]
    tail_bytes: int
    last_at: int = 0
    checksum: str = ""
    damaged: str = ""


class LogPage(Struct, frozen=True, gc=False):
    """Entries in order, and the cursor after them. `end` is the log's last offset.

    `checksum` is that of the record at the cursor that was asked for: a reader compares it with
    what it has read there, and so knows whether the log is still the same one. It is empty at the
    beginning, and in pages that are read backwards.
    """

    entries: tuple[Entry, ...]
    cursor: int
    end: int
    checksum: str = ""


class LogStore(Protocol):
    """The logs of all sessions."""

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        """Add each arrival to its lane's inbox, and return a receipt or an error for each.

        A repeated dispatch returns the first receipt, marked as duplicate; with other
        content it is DispatchConflict, and of a session that was erased it is SessionErased.
        A new session, its first delivery, its token and its outbox cursors are one admission; a
        token in use is TokenTaken. A session that is over is SessionOver, one that does not exist
        UnknownSession. An answer closes its request in the same transaction: to a closed or
        expired one it is RequestClosed, to one that never was UnknownRequest. A message to a
        queue that is full is QueueFull, to a session that is full SessionTooLarge. A cancel that
        names no turn is given the turn that is open at its place in the log. Each admitted
        arrival makes its lane ready at once.
        """
        ...

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        """Write each commit whole or not at all, and say which for each.

        A commit whose fence or number is no longer the lane's is refused by itself; the
        others are written. So is one that stands on more than the log has, or that was made in
        another epoch of the database: see `Refused`. One that parks or releases is refused when
        something arrived that it has not seen. Offsets rise by one per session without gaps; `at`
        never decreases. A commit repeated after a lost acknowledgement is found to have landed.
        One that ends the session makes its other lanes ready, and counts as arrived for them; of
        two ends the first says how it ended.
        When this returns, what was written survives the loss of power.
        """
        ...

    def transaction(self, limit: float = 5.0) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction for a tool's own statements; leaving it without commit undoes all.

        Nothing else is written through this store while it is open, and after `limit`
        seconds it is rolled back and its further use raises.
        """
        ...

    async def effect(self, scope: str, key: str) -> EffectClaim | None:
        """Return the call that holds an idempotency key in a scope, or None."""
        ...

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        """Return the snapshots and entries that fold the lane, or the entries after an offset."""
        ...

    async def read(
        self,
        session_id: str,
        after: int,
        limit: int = 500,
        *,
        large: bool = True,
        lane: str | None = None,
    ) -> LogPage:
        """Return the entries after a cursor, about `limit` of them, whole commits only.

        Without `large`, values over 64 KiB are not read, and are empty. With a `lane`, only its
        entries are read.

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

    async def drop_snapshots(self, session_id: str) -> None:
        """Delete the snapshots of a session's lanes and slices; its log has all that they have."""
        ...

    async def erase(self, session_id: str) -> bool:
        """Remove a session and everything recorded about it; return whether there was one.

        Its log, deliveries, requests, tokens, slices, permits, idempotency keys and outbox cursors
        are gone, and so are values that no other session's log points at. An owner of one of its
        lanes is refused from now on. Two things stay, without content: the names of its dispatches
        (see `admit`), and its holds on idempotency keys that other sessions share, as `unknown`.
        The sessions that it started are to be erased next; `find_orphans` returns them.
        """
        ...

    async def find_orphans(self, limit: int = 100) -> Sequence[str]:
        """Return sessions whose parent was erased and that are to be erased too, oldest first."""
        ...


OF_ALL_LANES = (SessionStarted, SessionCompleted, SessionFailed, SessionEnded)


def concerns(entry: Entry, lane: str, after: int, slices_after: int) -> bool:
    """Return whether a lane's fold needs an entry after what it and the slices have folded."""
    kind = type(entry.record)
    if kind in STATE_RECORDS:
        return entry.offset > slices_after
    return entry.offset > after and (entry.lane == lane or kind in OF_ALL_LANES)


class PageFiller:
    """A page while rows are put on it, until they hold enough records or bytes.

    The first row always fits.
    """

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
