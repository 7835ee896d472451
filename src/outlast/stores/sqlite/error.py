"""Translates SQLite's errors: wait and try again, or raise one of ours.

Owns which number means what. The waiting itself is in `database.py`; a connection that met an error
of the disk is replaced by `writer.py`.
"""

import os
import sqlite3
from pathlib import Path

from outlast.errors import OutlastError, StoreCorrupt, StoreError, StoreFull, StoreUnavailable

# PROTOCOL: two processes met while one of them recovered the log; the next try is past it.
PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
UNREADABLE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
# A quota or a limit on the size of files shows as a failed write, not as a full disk.
OUT_OF_ROOM = {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
UNREACHABLE = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
}


def code_of(error: BaseException) -> int:
    """Return SQLite's own number for an error, or 0 for one that is not SQLite's."""
    return getattr(error, "sqlite_errorcode", 0)


def is_passing(error: BaseException) -> bool:
    """Whether another connection has the file locked just now."""
    return code_of(error) & 0xFF in PASSING


def is_of_the_disk(error: BaseException) -> bool:
    """Whether the file could not be read or written, whatever was asked of it."""
    kinds = {sqlite3.SQLITE_FULL, *UNREADABLE, *UNREACHABLE}
    return code_of(error) & 0xFF in kinds or isinstance(error, StoreUnavailable)


def explain(error: sqlite3.Error, path: Path) -> OutlastError:
    """Return the error that says what happened, and what to do about it."""
    code = code_of(error)
    if code & 0xFF in UNREADABLE:
        return StoreCorrupt(
            f"{path} is damaged or is no SQLite database ({error}); restore it from a backup",
            path=str(path),
        )
    if code in OUT_OF_ROOM and is_read_only(path):
        return StoreUnavailable(
            f"the disk of {path} has become read-only ({error}); nothing was lost: mend or replace"
            " the disk, and mount it for writing",
            path=str(path),
        )
    if code & 0xFF == sqlite3.SQLITE_FULL or code in OUT_OF_ROOM:
        return StoreFull(
            f"there is no room to write to {path} ({error}); nothing was lost: free some space"
            " on the disk and go on",
            path=str(path),
        )
    if code & 0xFF in UNREACHABLE:
        return StoreUnavailable(
            f"{path} cannot be read or written ({error}); check that its disk works and that"
            " this user may write to the file and its directory",
            path=str(path),
        )
    return StoreError(f"SQLite refused: {error}", path=str(path))


def is_read_only(path: Path) -> bool:
    """Whether the file system takes no writes: SQLite has one number for that and for no room."""
    try:
        return bool(os.statvfs(path.parent).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def locked_for_too_long(path: Path, seconds: float) -> StoreUnavailable:
    return StoreUnavailable(
        f"another program has kept {path} locked for {seconds:.0f} s; end it (a database shell,"
        " a backup) and try again",
        path=str(path),
    )
