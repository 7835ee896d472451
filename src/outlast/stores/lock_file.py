"""A lock on a file that goes away with its process, however that ends.

A free lock proves that its process is gone, to every process that sees the same file under the same
kernel. `flock` and never `lockf`: POSIX locks are dropped as soon as anything in the process closes
the file. A file that is missing or not ours to open says nothing.
"""

import fcntl
import os
import socket
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from outlast.errors import StoreUnavailable
from outlast.stores.fork import guard

TRIES = 50
A_DAY = 86_400_000
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of our own in it, checked below
"""Not emptied by age, gone after a reboot, and not private to a service as /tmp may be."""


def machine() -> str:
    """Name the running kernel: processes that share it share locks, also between containers."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return socket.gethostname()


class FileIdentity(NamedTuple):
    """Which file a name leads to: containers of one kernel may have different ones."""

    device: str
    inode: str


def identity_of(descriptor: int) -> FileIdentity:
    found = os.fstat(descriptor)
    return FileIdentity(str(found.st_dev), str(found.st_ino))


class LockFile:
    """A worker's lock. It is taken before the worker is registered."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def take(self) -> FileIdentity:
        """Create the file and lock it; say which file it is."""
        # Closed to others: who could lock a file in it could pass for a worker that lives.
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # A worker that looks for the dead holds the lock, shared, for a moment.
        tries = iter(range(TRIES))
        # For some milliseconds only: a lock that stays is a living worker's.
        while not try_lock(descriptor, fcntl.LOCK_EX):
            if next(tries, None) is None:
                os.close(descriptor)
                raise StoreUnavailable(
                    f"a living worker has this name already ({self.path.stem}); choose another name"
                )
            time.sleep(0.001)
        self._descriptor = descriptor
        # A forked child shares the lock: while it lived, this worker's death could not be seen.
        guard(self)
        return identity_of(descriptor)

    def drop(self) -> None:
        """Release the lock; other processes see that the worker is gone."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    abandon = drop

    def remove(self) -> None:
        """Delete the file. Call this only after the worker's end was recorded."""
        self.path.unlink(missing_ok=True)


def is_free(path: Path, identity: FileIdentity | None = None) -> bool:
    """Whether the file is within sight, is the one that is meant, and its lock is free."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        is_it = identity is None or identity == identity_of(descriptor)
        return is_it and try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def own_directory() -> Path | None:
    """Return this user's directory for lock files under the running kernel, if there can be one.

    All processes of the user on this machine come to the same one. It lies where any user may
    create files, so it counts only if it is this user's and closed to others.
    """
    name = f"outlast-{os.geteuid()}-{quote(machine(), safe='')}"
    for parent in (SHARED_MEMORY, Path(tempfile.gettempdir())):
        path = parent / name
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            found = path.lstat()
        except OSError:
            continue
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if is_ours and not found.st_mode & 0o077 and os.access(path, os.W_OK):
            return path
    return None


def remove_leftovers(directory: Path, now: int) -> None:
    """Delete files of processes that died a day ago or earlier, and that no observer recorded."""
    with suppress(OSError):
        for path in directory.iterdir():
            # Old enough that no observer is about to take it for evidence.
            if path.lstat().st_mtime * 1000 < now - A_DAY and is_free(path):
                path.unlink(missing_ok=True)
