"""Moves what was written from the log beside the file into the file itself.

On a connection and a thread of its own, so that no commit waits for it.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import StoreError
from holdfast.stores.sqlite.connection import open_database
from holdfast.stores.sqlite.failure import is_passing

log = logging.getLogger("holdfast.sqlite")

LOG_SIZE = 16 * 1024 * 1024


class Checkpointer:
    """Watches the size of the log. Used by the writer's thread."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._log = str(path) + "-wal"
        self._limit = LOG_SIZE
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Begin a checkpoint if the log has grown large and none is under way."""
        if self._thread and self._thread.is_alive():
            return
        if self._size() < self._limit:
            return
        self._thread = threading.Thread(target=self._move, name="holdfast checkpoint", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait for a checkpoint that is under way, and make a last one."""
        if self._thread:
            self._thread.join()
        self._move()

    def _size(self) -> int:
        try:
            return os.stat(self._log).st_size
        except FileNotFoundError:
            return 0

    def _move(self) -> None:
        """First without being in anybody's way; then the little that came since, and cut the log.

        Where a reader is in the way the log stays, and is looked at again when it has grown.
        """
        try:
            with closing(open_database(self._path, self._clock)) as db:
                for mode in ("PASSIVE", "TRUNCATE"):
                    db.raw.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        except (sqlite3.Error, StoreError) as error:
            # The log keeps everything; a disk that stays broken is reported by the next commit.
            if not is_passing(error):
                log.warning("a checkpoint failed", extra={"error": str(error)})
        self._limit = self._size() + LOG_SIZE
