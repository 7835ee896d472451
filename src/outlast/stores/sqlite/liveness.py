"""Signs of life: a lock on a file that goes away with its process, however that ends.

`flock` and never `lockf`: POSIX locks are dropped as soon as anything in the process
closes the file. A file that is missing or not ours to open says nothing: then the lease decides.
"""

import fcntl
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from outlast.clock import Clock
from outlast.errors import StoreUnavailable
from outlast.stores.sqlite.fork import guard

MISSING_FOR = 0.3
TRIES = 50
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine() -> str:
    """Name the running kernel: processes that share it share locks, also between containers."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return socket.gethostname()


def lock_path(directory: Path, worker: str) -> Path:
    return directory / f"{quote(worker, safe='')}.lock"


class LockFile:
    """A worker's lock. It is taken before the worker is registered."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def take(self) -> None:
        self.path.parent.mkdir(exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # A worker that looks for the dead holds the lock, shared, for a moment.
        tries = iter(range(TRIES))
        while not try_lock(descriptor, fcntl.LOCK_EX):
            if next(tries, None) is None:
                os.close(descriptor)
                raise StoreUnavailable(
                    f"a worker of this name is alive ({self.path.stem}); choose another name"
                )
            time.sleep(0.001)
        self._descriptor = descriptor
        guard(self)

    def drop(self) -> None:
        """Release the lock; other processes see that the worker is gone."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    abandon = drop

    def remove(self) -> None:
        """Delete the file. Call this only after the worker's end was recorded."""
        self.path.unlink(missing_ok=True)


def is_missing(path: Path) -> bool:
    """Whether the file is within sight and its lock is free."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class LivenessObserver:
    """Remembers since when it has seen a worker's lock missing."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._missing: dict[str, float] = {}

    def find_missing(self, workers: Iterable[str]) -> list[str]:
        """Return those whose lock is missing now, whatever was before."""
        return [worker for worker in workers if is_missing(lock_path(self._directory, worker))]

    def find_dead(self, workers: Iterable[str]) -> list[str]:
        """Return those whose lock is missing now, and was missing 300 ms ago or earlier."""
        now = self._clock.monotonic()
        before = self._missing
        self._missing = {worker: before.get(worker, now) for worker in self.find_missing(workers)}
        return [
            worker
            for worker, since in self._missing.items()
            if round(now - since, 3) >= MISSING_FOR
        ]
