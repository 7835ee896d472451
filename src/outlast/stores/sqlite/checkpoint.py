"""The write-ahead log beside the file: given room, and moved into the file when it is large.

Writing over a part of a file costs the disk half of what growing it does. So the log is
grown in steps as large as it is, and begun again from its start instead of being cut. Moving it
happens on a thread and a connection of its own, so that no commit waits for it.
"""

import logging
import os
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

from outlast.clock import Clock
from outlast.errors import StoreError
from outlast.stores.sqlite.database import CACHE_SIZE, LOG_SIZE, Database, open_database
from outlast.stores.sqlite.error import is_passing

log = logging.getLogger("outlast.sqlite")

LOOK_AFTER = 64 * 1024
COMMIT = 4096  # what a commit adds besides its own bytes, about
SMALL = 128 * 1024
STEP = 4 * 1024 * 1024
PAUSE = 0.01
MOVING = 1000  # another checkpoint is under way, and that ends
IN_USE = 20


class Checkpointer:
    """Watches the size of the log. Used by the thread that has the writer's turn; never waits."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._log = str(path) + "-wal"
        self._size = 0
        self._written = 0
        self._thread: threading.Thread | None = None

    def look(self, written: int) -> bool:
        """After some commits: move a log that is large; say whether it has grown and wants room."""
        self._written += written + COMMIT
        if self._written < LOOK_AFTER:
            return False
        self._written = 0
        before, size = self._size, self._measure()
        # Only one that has grown: a log that was begun again keeps its size, and is written over.
        if size > before and size >= LOG_SIZE:
            self._move_aside(size)
            return False
        self._size = size
        return size > max(before, SMALL)

    def make_room(self, db: Database) -> None:
        """Make the log as large again. It takes the disk a while."""
        reserve(db, min(self._size, STEP))
        self._size = self._measure()

    def _move_aside(self, size: int) -> None:
        # A reader that takes long holds it up; a second one would wait for the same.
        if self._thread is not None and self._thread.is_alive():
            return
        self._size = size + STEP  # should a reader be in the way, try again only then
        thread = threading.Thread(
            target=self._move, args=("PASSIVE", "RESTART"), name="outlast checkpoint", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # what was committed stands, and its log may grow
            log.warning("a checkpoint has no thread", extra={"error": str(error)})
        else:
            self._thread = thread

    def stop(self) -> None:
        """Wait for a checkpoint that is under way, and make a last one."""
        if self._thread:
            self._thread.join()
        self._move("PASSIVE")

    def _measure(self) -> int:
        try:
            return os.stat(self._log).st_size
        except OSError:  # there is none yet, or nothing can be known of it
            return 0

    def _move(self, *modes: str) -> None:
        """First without being in anybody's way; then the little that came since, with a pause.

        A log that was moved whole is begun again. `journal_size_limit` cuts it then, should
        it have grown beyond its size during a long read.
        """
        try:
            with closing(open_database(self._path, self._clock)) as db:
                for mode in modes:
                    try_often(db, self._clock, mode, IN_USE)
        except (sqlite3.Error, StoreError) as error:
            # The log keeps everything; a disk that stays broken is reported by the next commit.
            if not is_passing(error):
                log.warning("a checkpoint failed", extra={"error": str(error)})


def wipe(path: Path, clock: Clock) -> None:
    """Move the whole log into the file and cut it, so that nothing deleted is left in it.

    A reader that needs the log keeps it; then it goes when the log is next begun again, or with
    the last process that closes the file.
    """
    try:
        with closing(open_database(path, clock)) as db:
            is_wiped = try_often(db, clock, "PASSIVE", MOVING) and try_often(
                db, clock, "TRUNCATE", IN_USE
            )
    except (sqlite3.Error, StoreError) as error:
        log.warning("a log could not be wiped", extra={"error": str(error)})
        return
    if not is_wiped:
        log.info("a log is in use and was not wiped")


def try_often(db: Database, clock: Clock, mode: str, tries: int) -> bool:
    """Make a checkpoint, and wait for others that make one or use the log."""
    for _ in range(tries):
        (is_busy, *_) = db.raw.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        if not is_busy:
            return True
        time.sleep(clock.jitter(PAUSE))
    return False


def reserve(db: Database, size: int) -> None:
    """Make the log larger than it is, by a transaction that does not fit and is undone."""
    try:
        # Pages that do not fit into the cache spill into the log: that makes it grow.
        db.raw.execute("PRAGMA cache_size = 10")
        try:
            if db.try_begin():  # it can be done some other time
                db.run("fill", {"size": size})
        finally:
            db.roll_back()
            db.raw.execute(CACHE_SIZE)
    except sqlite3.Error as error:
        # Where there is no room to reserve, commits go on as long as there is room for them.
        log.info("no room could be reserved", extra={"error": str(error)})
