"""`memory://`: the SQLite store's own statements on a connection in memory.

For tests and for trying things out: no file, no thread, and nothing survives the object. It has
one connection, so a write is a transaction that begins and ends without an `await`. Locks of
files stand for a worker's life in `store.py`; here that is a set of names (`declare_dead`).
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import finalize

from outlast.clock import Clock
from outlast.errors import NotInTransaction
from outlast.store import Lease, Renewal, Transaction, WorkerInfo
from outlast.store.clock import LocalStoreClock
from outlast.stores.listener import Heard, Listeners
from outlast.stores.sqlite import listing
from outlast.stores.sqlite.budget import SqliteBudget
from outlast.stores.sqlite.database import Database
from outlast.stores.sqlite.document import SqliteDocument
from outlast.stores.sqlite.limit import SqliteLimit
from outlast.stores.sqlite.listing import SqliteListing
from outlast.stores.sqlite.log import SqliteLog
from outlast.stores.sqlite.migration import migrate
from outlast.stores.sqlite.outbox import SqliteOutbox
from outlast.stores.sqlite.transaction import SqliteTransaction, authorize
from outlast.stores.sqlite.usage import SqliteUsage
from outlast.stores.sqlite.work import Deaths, LaneWork, register
from outlast.stores.sqlite.worker_lease import bury
from outlast.stores.sqlite.writer import Do, Work, do_works

T = TypeVar("T")

NOWHERE = Path(":memory:")


class MemoryAccess:
    """The one connection, and the listeners. See `file.py` for the same with a file."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.listeners = Listeners()
        raw = sqlite3.connect(
            NOWHERE, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        finalize(self, raw.close)  # `close()` must not: the object keeps what was written
        self._db = Database(raw, NOWHERE, clock)
        migrate(self._db)
        self.locked = threading.RLock()  # a lease is renewed by a thread of its own
        self._transaction: MemoryTransaction | None = None
        self._kept: list[Work] = []

    async def read(self, question: Callable[[Database], T]) -> T:
        # Also while a tool's transaction is open: that may write to tables of its own only.
        with self.locked:
            return question(self._db)

    async def write(self, *works: Work, size: int = 0) -> list[Any]:
        return await self.write_all(do_works, works)

    async def write_all(
        self, do: Do, items: Sequence[Any], size: int = 0, session: str = ""
    ) -> list[Any]:
        """Write at once; see `Writer.submit` for the arguments."""
        while self._transaction:  # there is one connection, and a tool has it
            await self._transaction.over.wait()
        return list(self._write_now(lambda db: do(db, items)))

    def _write_now(self, work: Callable[[Database], T]) -> T:
        db = self._db
        with self.locked:
            db.hints = {}
            db.begin()
            try:
                result = work(db)
                db.commit()
            finally:
                db.roll_back()
            hints = db.hints
        self.announce(hints)
        return result

    def write_outside_transaction(self, work: Callable[[Database], T]) -> T:
        """Write without waiting for a tool's transaction; this stays though that is undone."""
        with self.locked:
            if self._transaction:
                # Done now and, should the tool's transaction be undone, once more: both are on the
                # one connection.
                self._kept.append(work)
            return work(self._db)

    def announce(self, hints: Mapping[str, bool]) -> None:
        for session_id, arrived in hints.items():
            asyncio.get_running_loop().call_soon(self.listeners.tell, session_id, arrived)

    @asynccontextmanager
    async def transaction(self, limit: float) -> AsyncIterator[Transaction]:
        while self._transaction:
            await self._transaction.over.wait()
        transaction = MemoryTransaction(self, self._db, limit)
        self._transaction = transaction
        try:
            transaction.begin()
            yield transaction
        finally:
            transaction.end()

    def end_transaction(self) -> None:
        """Undo what a transaction has not committed, and let others write."""
        with self.locked:
            kept, self._kept, self._transaction = self._kept, [], None
            if self._db.raw.in_transaction:
                self._db.roll_back()
                for work in kept:
                    work(self._db)

    def listen(self, heard: Heard, session_id: str) -> Callable[[], None]:
        return self.listeners.add(heard, session_id)

    async def wipe(self) -> None:
        """Do nothing: no file keeps what was erased."""


class MemoryStore:
    """A `outlast.store.Store` in this process. Any number of workers may share the object."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._access = MemoryAccess(clock or Clock())
        self.clock = LocalStoreClock(self._access.clock)
        self.log = SqliteLog(self._access)
        self.work = MemoryWork(self._access)
        self.listing = SqliteListing(self._access)
        self.limit = SqliteLimit(self._access)
        self.outbox = SqliteOutbox(self._access)
        self.document = SqliteDocument(self._access)
        self.usage = SqliteUsage(self._access)
        self.budget = SqliteBudget(self._access)
        self.declare_dead = self.work.declare_dead
        self.write_outside_transaction = self._access.write_outside_transaction

    def __repr__(self) -> str:
        return "MemoryStore()"

    async def migrate(self) -> None:
        """Do nothing: the schema was made with the object."""

    async def close(self) -> None:
        """Stop all listening. What was written stays for as long as the object does."""
        self._access.listeners.clear()

    def counts(self) -> Mapping[str, int]:
        return {}


class MemoryWork(LaneWork):
    """See `outlast.store.WorkStore`. A worker is dead when `declare_dead` was called for it."""

    def __init__(self, access: MemoryAccess) -> None:
        super().__init__(access)
        self._memory = access
        self._leases: dict[str, MemoryLease] = {}
        self._dead: set[str] = set()

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        if earlier := self._leases.pop(worker.worker, None):
            earlier.is_over = True
        self._dead.discard(worker.worker)
        await self._access.write(partial(register, info=worker, length=lease, machine="memory"))
        held = self._leases[worker.worker] = MemoryLease(self._memory, worker.worker)
        return held

    def declare_dead(self, worker: str) -> None:
        """Make a worker look as if it had been killed: the next `find_dead` finds it."""
        self._dead.add(worker)

    async def find_dead(self) -> Deaths:
        if not self._dead:
            return {}
        # A name in the set stands for a lock that is free.
        dead: Deaths = dict.fromkeys(sorted(self._dead), "lock_file")
        found = await self._bury(dead)
        self._dead.difference_update(dead)
        return found

    async def workers(self) -> Sequence[WorkerInfo]:
        found = await self._access.read(listing.workers)
        return [info for info in found if info.worker not in self._dead]


class MemoryLease:
    """See `outlast.store.Lease`."""

    def __init__(self, access: MemoryAccess, worker: str) -> None:
        self._access = access
        self._worker = worker
        self.is_over = False

    def renew(self, counters: str = "") -> Renewal:
        """Extend the lease; say whether the worker is still known, and may go on."""
        now = self._access.clock.now()
        return self._access.write_outside_transaction(lambda db: self._renew(db, now, counters))

    def _renew(self, db: Database, now: int, counters: str) -> Renewal:
        row = None if self.is_over else db.one("find_lease", {"worker": self._worker})
        if row is None:
            return Renewal(alive=False)
        db.run("renew", {"worker": self._worker, "now": now, "counters": counters})
        draining, lease_until = row
        return Renewal(alive=True, draining=bool(draining), lapsed=lease_until <= now)

    def release(self) -> None:
        """Strike the worker from the registry and free its lanes."""
        if not self.is_over:
            self._access.write_outside_transaction(lambda db: bury(db, self._worker, "released"))
            self.is_over = True


class MemoryTransaction(SqliteTransaction):
    """A tool's statements, each run at once on the store's one connection.

    Other writes wait until it is over; its limit is a timer of the event loop.
    """

    def __init__(self, access: MemoryAccess, db: Database, limit: float) -> None:
        super().__init__(limit)
        self._access = access
        self._db = db
        self.over = asyncio.Event()

    def begin(self) -> None:
        # An empty context: the timer is the store's, and fires though the tool's process is
        # one that a simulation has stopped.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limit, self._expire, self._db, context=Context())
        self._db.hints = {}
        self._db.begin()

    async def _ask(self, work: Callable[[Database], T]) -> T:
        if self._over:
            raise self._over
        with self._access.locked:
            return work(self._db)

    def _run(self, db: Database, statement: Callable[[Database], T]) -> T:
        # For this statement only: reads and leases of others use the connection in between.
        db.raw.set_authorizer(authorize)
        try:
            return super()._run(db, statement)
        finally:
            db.raw.set_authorizer(None)

    def _make_durable(self, db: Database) -> None:
        db.commit()
        self._access.announce(db.hints)

    async def leave(self) -> None:
        self.end()

    def _expire(self, db: Database) -> None:
        super()._expire(db)
        self.end()

    def end(self) -> None:
        """End the transaction; what was not committed is undone."""
        if self.over.is_set():
            return
        self._timer.cancel()
        self._end(NotInTransaction("this transaction is over; open another one"))
        self._access.end_transaction()
        self.over.set()
