"""Adding to a session's log: the next offsets, one row, and the blobs that it refers to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from outlast.core.record import Entry
from outlast.stores.sqlite.database import (
    OFFSETS,
    Database,
    Row,
    column_of,
    key_of,
)

ARRIVAL = 1
CHANGES_SLICES = 2
STARTS_OR_ENDS = 4

IS_MISSING = (0,)


class Appended(NamedTuple):
    """Where records stand in the log, and when they were written."""

    first_offset: int
    at: int


def find_end(db: Database, sid: int) -> tuple[int, int]:
    """Return the key of a session's next row, and the time of its last."""
    base = key_of(sid, 0)
    last = db.one("last_row", {"base": base, "top": base | OFFSETS})
    return (last[0] + last[1], last[2]) if last else (base | 1, 0)


def append(db: Database, key: int, lane: str, body: bytes, count: int, at: int, marks: int) -> int:
    """Write encoded records as the next row of a log, and return the first one's offset."""
    packed = db.packer.pack(body)
    if packed.blobs:
        keep_blobs(db, key >> 32, packed.blobs)
    db.written += len(packed.data)
    row = {
        "key": key,
        "records": count,
        "lane": column_of(lane),
        "at": at,
        "marks": marks,
        "data": packed.data,
    }
    db.run("append", row)
    return key & OFFSETS


def tenant_of(db: Database, sid: int) -> str:
    row = db.one("tenant", {"sid": sid})
    assert row is not None
    return str(row[0])


def keep_blobs(db: Database, sid: int, blobs: Mapping[str, bytes]) -> None:
    """Note that a session uses blobs, and write those that are new."""
    tenant = tenant_of(db, sid)
    for name, value in blobs.items():
        key = {"tenant": tenant, "hash": bytes.fromhex(name), "sid": sid}
        if db.one("use_blob", key) == IS_MISSING:
            data = db.packer.squeeze(value)
            db.written += len(data)
            db.run("put_blob", {**key, "data": data})


def last_commit(db: Database, sid: int, lane: str, *, has_records: bool) -> Appended:
    """Return where the last commit of a lane's owner stands."""
    base = key_of(sid, 0)
    bounds = {"base": base, "top": base | OFFSETS, "lane": column_of(lane)}
    if has_records and (row := db.one("last_commit", bounds)):
        return Appended(row[0] & OFFSETS, row[2])
    key, at = find_end(db, sid)
    return Appended(key & OFFSETS, at)


def arrivals_after(db: Database, sid: int, lane: str, seen: int, last: int) -> tuple[Entry, ...]:
    """Return what others added to a lane after the last arrival that its owner has seen."""
    rows: list[Row] = db.all(
        "arrivals",
        {
            "base": key_of(sid, 0),
            "first": key_of(sid, seen + 1),
            "last": key_of(sid, last),
            "lane": column_of(lane),
        },
    )
    tenant = tenant_of(db, sid)
    return tuple(entry for row in rows for entry in db.entries(tenant, row, seen))
