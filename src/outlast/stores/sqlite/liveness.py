"""Signs of life: each worker holds a lock on a file beside the database (`stores/lock_file.py`).

A file that is missing or not ours to open says nothing: then the lease decides.
"""

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from outlast.clock import Clock
from outlast.stores.lock_file import is_free

MISSING_FOR = 0.3


def workers_directory(path: Path) -> Path:
    """Return where the locks and sockets of a store's processes are, beside its file."""
    return Path(f"{path}-workers")


def lock_path(directory: Path, worker: str) -> Path:
    return directory / f"{quote(worker, safe='')}.lock"


class LivenessObserver:
    """Remembers since when it has seen a worker's lock missing."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._missing: dict[str, float] = {}

    def find_missing(self, workers: Iterable[str]) -> list[str]:
        """Return those whose lock is missing now, whatever was before."""
        return [worker for worker in workers if is_free(lock_path(self._directory, worker))]

    def find_dead(self, workers: Iterable[str]) -> list[str]:
        """Return those whose lock is missing now, and was missing 300 ms ago or earlier."""
        now = self._clock.monotonic()
        before = self._missing
        self._missing = {worker: before.get(worker, now) for worker in self.find_missing(workers)}
        return [
            worker
            for worker, since in self._missing.items()
            # To the millisecond: a clock of a test adds up to a little less than the sum of its
            # steps.
            if round(now - since, 3) >= MISSING_FOR
        ]
