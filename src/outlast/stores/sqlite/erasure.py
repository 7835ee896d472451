"""Erasing a session, with all that is known of it.

One transaction makes it vanish. A large log and large blobs are then taken out of the file in
pieces, each in a transaction of its own: zeros are written over all of it (see `secure_delete` in
`database.py`), and no commit shall wait for gigabytes of that. Until then the session is in
`outlast_erasures`; the next process that opens the file or erases goes on there.
"""

from contextlib import closing
from typing import NamedTuple

from outlast.stores.sqlite.budget import erase_uses
from outlast.stores.sqlite.database import OFFSETS, Database, key_of
from outlast.stores.sqlite.limit import wake_those_with_a_place

PIECE = 4 * 1024 * 1024
ROW = 32  # what a row takes besides its data, about

# Snapshots are found by their lanes, so those go after them.
PARTS = (
    "strip_deliveries",
    "erase_requests",
    "erase_tokens",
    "erase_tags",
    "erase_snapshots",
    "erase_slices",
    "erase_own_effects",
    "erase_free_effects",
    "forget_outcomes",
    "erase_outbox_cursors",
    "erase_dead_letters",
    "mark_orphans",
    "keep_usage",
    "erase_usage",
    "erase_pins",
    "erase_lanes",
    "erase_session",
)


class ErasureResult(NamedTuple):
    """Whether there was such a session, and whether something erased is still in the file."""

    was_there: bool
    has_more: bool


def write_erasure(db: Database, session_id: str) -> ErasureResult:
    """Make a session vanish, mark those it started, and wake calls that waited for its permits."""
    row = db.one("session_to_erase", {"session_id": session_id})
    if row is None:
        return ErasureResult(was_there=False, has_more=has_unfinished(db))
    sid, base = row[0], key_of(row[0], 0)
    # First, while the lanes are there by which permits are found.
    limits = db.all("erase_permits", {"sid": sid})
    keys = {"sid": sid, "session_id": session_id, "base": base, "top": base | OFFSETS}
    erase_uses(db, row[1], sid, session_id)
    for part in PARTS:
        db.run(part, keys)
    wake_those_with_a_place(db, (name for (name,) in limits))
    has_more = erase_piece(db, sid)
    if has_more:
        db.run("add_erasure", {"sid": sid})
    # Its readers and its owner, so that they find out now.
    db.tell(session_id, arrived=True)
    return ErasureResult(was_there=True, has_more=has_more)


def find_orphans(db: Database, limit: int) -> list[str]:
    """Return sessions whose parent was erased."""
    return [session_id for (session_id,) in db.all("orphans", {"limit": max(0, limit)})]


def has_unfinished(db: Database) -> bool:
    return db.one("unfinished_erasure") is not None


def go_on(db: Database) -> bool:
    """Take another piece of what was erased out of the file, and say whether there is more."""
    if row := db.one("unfinished_erasure"):
        (sid,) = row
        if not erase_piece(db, sid):
            db.run("end_erasure", {"sid": sid})
    return has_unfinished(db)


def erase_piece(db: Database, sid: int) -> bool:
    """Erase as much of a log and its blobs as takes little time, and say whether there is more."""
    room = erase_log(db, sid, PIECE)
    if room > 0:
        room = erase_blobs(db, sid, room)
    db.written += PIECE - room
    return room <= 0


def erase_log(db: Database, sid: int, room: int) -> int:
    """Delete rows until there is no room in this piece; return what is left of that."""
    base = key_of(sid, 0)
    last = top = base | OFFSETS
    with closing(db.each("log_sizes", {"base": base, "top": top})) as rows:
        for key, size in rows:
            room -= size + ROW
            if room <= 0:
                last = key
                break
    db.run("erase_log", {"base": base, "top": last})
    return room


def erase_blobs(db: Database, sid: int, room: int) -> int:
    """Drop the use of blobs likewise; delete those that no other session uses."""
    for tenant, digest, size in db.all("blobs_of_session", {"sid": sid}):
        if room <= 0:
            break
        key = {"tenant": tenant, "hash": digest, "sid": sid}
        if db.run("erase_unshared_blob", key):
            room -= size
        db.run("let_go_of_blob", key)
    return room


def drop_snapshots(db: Database, session_id: str) -> None:
    """Delete what is derived from a session's log, to be folded from it again."""
    if row := db.one("session_to_erase", {"session_id": session_id}):
        db.run("erase_snapshots", {"sid": row[0]})
        db.run("erase_slices", {"sid": row[0]})
