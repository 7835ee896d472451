"""Adding to a session's log: the next offsets, one row, and the blobs that it refers to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.core.record import Entry
from holdfast.stores.sqlite.desk import Desk, column_of, key_of

ARRIVAL = 1
CHANGES_SLICES = 2
STARTS_OR_ENDS = 4


class Appended(NamedTuple):
    first_offset: int
    last_offset: int
    at: int
    tenant: str


def append(
    desk: Desk, sid: int, lane: str, body: bytes, count: int, at: int, marks: int
) -> Appended:
    """Write encoded records to the end of the log; no records make no row."""
    (head, at, tenant) = desk.db.one(  # type: ignore[misc]
        "advance_session", {"sid": sid, "count": count, "at": at if count else 0}
    )
    first = head - count + 1
    if count:
        packed = desk.packer.pack(body)
        if packed.blobs:
            keep_blobs(desk, tenant, packed.blobs, at)
        desk.db.run(
            "append",
            {
                "key": key_of(sid, first),
                "count": count,
                "lane": column_of(lane),
                "at": at,
                "marks": marks,
                "data": packed.data,
            },
        )
    return Appended(first, head, at, tenant)


def keep_blobs(desk: Desk, tenant: str, blobs: Mapping[str, bytes], at: int) -> None:
    """Write blobs that are new, and touch those that are there: they are needed again."""
    for name, value in blobs.items():
        key = {"tenant": tenant, "hash": bytes.fromhex(name), "at": at}
        if not desk.db.one("touch_blob", key):
            desk.db.run("put_blob", {**key, "data": desk.packer.squeeze(value)})


def arrivals_after(
    desk: Desk, sid: int, tenant: str, lane: str, seen: int, last: int
) -> tuple[Entry, ...]:
    """Return what others added to a lane after the last arrival that its owner has seen."""
    if last <= seen:
        return ()
    rows = desk.db.all(
        "arrivals",
        {
            "base": key_of(sid, 0),
            "first": key_of(sid, seen + 1),
            "last": key_of(sid, last),
            "lane": column_of(lane),
        },
    )
    return tuple(entry for row in rows for entry in desk.entries(tenant, row, seen))
