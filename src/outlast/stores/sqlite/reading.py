"""Reads the log, on a connection that reads: pages, and the rows and snapshots of a fold.

Changes nothing, and folds nothing: `log/` and `engine/lane_folds.py` do. `log.py` is the topic.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from math import inf
from typing import NamedTuple

from outlast.core.codec import checksum_of, size_of_row
from outlast.core.lane import FOLD
from outlast.core.record import Entry
from outlast.errors import StoreCorrupt
from outlast.store import FoldSnapshot, Loaded, LogPage
from outlast.store.log import PageFiller, check_snapshot, concerns
from outlast.store.refusal import cursor_ahead, unknown_session
from outlast.stores.sqlite.database import (
    OFFSETS,
    Database,
    Params,
    Row,
    column_of,
    key_of,
)


class SessionLogRows(NamedTuple):
    """A session's log, and how far it goes."""

    sid: int
    tenant: str
    end: int
    last_at: int


def find_log(db: Database, session_id: str) -> SessionLogRows:
    row = db.one("session_of_log", {"session_id": session_id})
    if row is None:
        raise unknown_session(session_id)
    return SessionLogRows(*row)


# Pages


def read(
    db: Database, session_id: str, after: int, limit: int, *, large: bool, lane: str | None
) -> LogPage:
    log = find_log(db, session_id)
    # Another history: the cursor was read from a log that was longer.
    if after > log.end:
        raise cursor_ahead(session_id, after, log.end)
    entries: list[Entry] = []
    name = "log_after" if lane is None else "log_of_lane_after"
    keys: Params = {**bounds(log, after), "lane": column_of(lane or "")}
    # Closed also where the page is full before: an open statement would keep its transaction.
    with closing(db.each(name, keys)) as rows:
        for found in until_full(db, log, rows, limit, after=after, large=large):
            entries += found
    cursor = entries[-1].offset if entries else after
    return LogPage(tuple(entries), cursor, log.end, checksum_at(db, log, after))


def checksum_at(db: Database, log: SessionLogRows, offset: int) -> str:
    """Return the checksum of the row that holds an offset; nothing where none does."""
    if not 0 < offset <= log.end:
        return ""
    base = key_of(log.sid, 0)
    row = db.one("row_at", {"base": base, "wanted": base | offset})
    return checksum_of(*row) if row else ""


def until_full(
    db: Database,
    log: SessionLogRows,
    rows: Iterable[Row],
    limit: int,
    after: int = 0,
    before: float = inf,
    *,
    large: bool = True,
) -> Iterator[list[Entry]]:
    """Yield the entries of each row that are between two offsets, until a page is full of them."""
    page = PageFiller(limit)
    for row in rows:
        expanded = db.expanded
        entries = db.entries(log.tenant, row, after, large=large)
        found = [e for e in entries if e.offset < before]
        page.add(len(found), size_of_row(row[4]) + db.expanded - expanded)
        yield found
        if page.is_full:
            return


def bounds(log: SessionLogRows, after: int) -> dict[str, int]:
    """Return the keys between which all rows lie that hold something after an offset."""
    base = key_of(log.sid, 0)
    return {"base": base, "first": base | after + 1, "last": base | log.end}


def read_back(db: Database, session_id: str, before: int, limit: int) -> LogPage:
    log = find_log(db, session_id)
    base = key_of(log.sid, 0)
    keys = {"base": base, "before": base | min(before, log.end + 1)}
    with closing(db.each("log_before", keys)) as rows:
        found = list(until_full(db, log, rows, limit, before=before))
    entries = tuple(entry for part in reversed(found) for entry in part)
    return LogPage(entries, entries[0].offset if entries else before, log.end)


# Folds


def load(db: Database, session_id: str, lane: str, after: int | None) -> Loaded:
    log = find_log(db, session_id)
    if after is not None:
        return follow(db, log, lane, None, None, after, after)
    try:
        snapshot = find_snapshot(db, log, "snapshot", {"sid": log.sid, "lane": lane})
        slices = find_snapshot(db, log, "slices", {"sid": log.sid})
    except StoreCorrupt as error:
        return Loaded(None, None, (), 0, damaged=error.message)
    start = snapshot.offset if snapshot else 0
    return follow(db, log, lane, snapshot, slices, start, slices.offset if slices else 0)


def find_snapshot(
    db: Database, log: SessionLogRows, name: str, key: dict[str, object]
) -> FoldSnapshot | None:
    """Return a snapshot made by today's rules; any other is as good as none."""
    row = db.one(name, {**key, "fold": FOLD})
    # Made by other rules, or never made: then all of the log is folded.
    if row is None:
        return None
    check_snapshot(row[0], log.end)
    return FoldSnapshot(row[0], row[1], db.packer.expand(row[2]))


def follow(
    db: Database,
    log: SessionLogRows,
    lane: str,
    snapshot: FoldSnapshot | None,
    slices: FoldSnapshot | None,
    after: int,
    slices_after: int,
) -> Loaded:
    """Return the snapshots with what comes after each of them."""
    # The slices are the session's, and their snapshot is made less often than the lane's.
    start = min(after, slices_after)
    entries: list[Entry] = []
    tail_bytes = 0
    for row in db.each("log_of_lane", {**bounds(log, start), "lane": column_of(lane)}):
        found = db.entries(log.tenant, row, start)
        entries += (e for e in found if concerns(e, lane, after, slices_after))
        # Stored bytes of the lane's own tail: when it is long, the owner makes another snapshot.
        tail_bytes += len(row[4]) if (row[0] & OFFSETS) + row[1] - 1 > after else 0
    checksum = checksum_at(db, log, after)
    return Loaded(snapshot, slices, tuple(entries), tail_bytes, log.last_at, checksum)
