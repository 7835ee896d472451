"""Keeps a store's file, and the directory of its workers, to the store's own user.

A user who can read the file reads every message, and the secrets of tokens and webhooks. SQLite
makes the files beside it (`-wal`, `-shm`) with the rights of the file itself.
"""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from outlast.errors import StoreUnavailable
from outlast.log_context import get_logger

log = get_logger("outlast.stores")

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(path: Path) -> None:
    """Make an empty file that only this user can open, unless there is one.

    It gets its name when it is closed: closing a file drops all locks that this process has on it,
    and another store of this process may hold some. Where that cannot be done, SQLite says why, or
    makes the file itself and `warn_if_open` tells.
    """
    if path.exists():
        return
    with suppress(OSError):
        descriptor, made = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        os.close(descriptor)
        try:
            os.link(made, path)  # refused if another process was quicker
        finally:
            os.unlink(made)


def warn_if_open(path: Path) -> None:
    """Say so if others on this machine have rights to a file that was made without care."""
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0
    if mode & OTHERS:
        log.warning(
            "the database is open to other users of this machine: chmod 600",
            extra={"path": str(path), "mode": f"{mode:03o}"},
        )


def make_private_directory(path: Path) -> None:
    """Make a directory that only this user can enter, or close one of its own to others."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        return
    found = path.stat()
    if found.st_mode & OTHERS and found.st_uid == os.geteuid():
        path.chmod(0o700)


def refuse_foreign_directory(path: Path, database: Path) -> None:
    """Refuse a directory of workers that another user has put there, or that leads elsewhere.

    Its owner could remove a living worker's lock, and others would take it for dead. It belongs
    to this user or to the database's: an administrator may look at a service's store.
    """
    try:
        found = path.lstat()
    except OSError:
        return  # there is none yet, or its use will say why it cannot be reached
    owners = {os.geteuid(), *([database.stat().st_uid] if database.exists() else [])}
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners:
        raise StoreUnavailable(
            f"{path} is where processes on this database see that others live, and it is no"
            " directory of the database's own user: find out who made it, then remove it"
        )
