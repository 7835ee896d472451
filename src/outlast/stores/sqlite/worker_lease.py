"""A worker's lease: renewed on the caller's thread, with a connection of its own.

A blocked event loop or a busy writer must not cost a worker its lanes.
"""

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from outlast.clock import Clock
from outlast.store import Renewal, TakeoverEvidence
from outlast.store.work import PAUSES
from outlast.stores.lock_file import LockFile
from outlast.stores.sqlite.database import Database, check_process, open_database
from outlast.stores.sqlite.error import explain
from outlast.stores.sqlite.path import FileWatch

T = TypeVar("T")


class SqliteLease:
    """See `outlast.store.Lease`. `length` is in milliseconds."""

    def __init__(
        self,
        worker: str,
        length: int,
        lock: LockFile,
        path: Path,
        watch: FileWatch,
        clock: Clock,
    ) -> None:
        self.worker = worker
        self._watch = watch
        self._length = length
        self._sign = lock
        self._path = path
        self._clock = clock
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._database: Database | None = None
        self._released = False

    def renew(self, counters: str = "") -> Renewal:
        """Extend the lease; say whether the worker is still known, and may go on."""
        check_process(self._pid)
        with self._mutex:
            if self._released:
                return Renewal(alive=False)
            return self._write(lambda db: self._renew(db, counters))

    def release(self) -> None:
        """Strike the worker from the registry, free its lanes and let go of its lock."""
        check_process(self._pid)
        with self._mutex:
            if self._released:
                return
            self._released = True
            try:
                self._write(self._strike)
                # After the row is gone: without the file the end of this worker could not be seen
                # any more.
                self._sign.remove()
            finally:
                self._close()

    def let_go(self) -> None:
        """Drop the lock and the connection, and leave the row: as if the process had died."""
        with self._mutex:
            self._released = True
            self._close()

    def _close(self) -> None:
        self._sign.drop()
        if self._database:
            self._database.close()
            self._database = None

    def _renew(self, db: Database, counters: str) -> Renewal:
        now = self._clock.now()
        row = db.one("find_lease", {"worker": self.worker})
        if row is None:
            return Renewal(alive=False)
        db.run("renew", {"worker": self.worker, "now": now, "counters": counters})
        draining, lease_until = row
        # As it was before this renewal: others may have taken lanes in between.
        return Renewal(alive=True, draining=bool(draining), lapsed=lease_until <= now)

    def _strike(self, db: Database) -> bool:
        return bury(db, self.worker, "released")

    def _write(self, work: Callable[[Database], T]) -> T:
        # A lease in a file that is not there any more keeps no other worker away.
        self._watch.check()
        db = self._open()
        try:
            db.begin(self._timeout)
            result = work(db)
            db.commit()
        except sqlite3.Error as error:
            raise explain(error, self._path) from error
        finally:
            db.roll_back()
        return result

    @property
    def _timeout(self) -> float:
        return self._length / 1000

    def _open(self) -> Database:
        # NORMAL: a renewal that a power failure takes back is one of a worker that is dead.
        if self._database is None:
            self._database = open_database(
                self._path, self._clock, synchronous="NORMAL", timeout=self._timeout
            )
        return self._database


def bury(db: Database, worker: str, evidence: TakeoverEvidence) -> bool:
    """Record that a worker is gone, and free its lanes; say whether this was news."""
    was_known = db.one("bury", {"worker": worker}) is not None
    # Of several that find the same death one counts it: each lane's deaths would grow twice.
    if was_known:
        freed = {"worker": worker, "evidence": evidence, "now": db.clock.now(), **PAUSES}
        db.run("free_lanes", freed)
    return was_known
