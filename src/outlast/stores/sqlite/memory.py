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
from outlast.stores.listener import EVERYTHING, Heard, Listeners
from outlast.stores.sqlite import erasure
from outlast.stores.sqlite.database import Database
from outlast.stores.sqlite.listing import workers
from outlast.stores.sqlite.migration import migrate
from outlast.stores.sqlite.store import SqliteStore
from outlast.stores.sqlite.transaction import SqliteTransaction, authorize
from outlast.stores.sqlite.unit_of_work import UnitOfWork, to_json
from outlast.stores.sqlite.worker_lease import bury
from outlast.stores.sqlite.writer import Do, Work, do_works

T = TypeVar("T")

NOWHERE = Path(":memory:")


class MemoryStore(SqliteStore):
    """A `outlast.store.Store` in this process. Any number of workers may share the object."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._listeners = Listeners()
        raw = sqlite3.connect(
            NOWHERE, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        finalize(self, raw.close)  # `close()` must not: the object keeps what was written
        self._desk = UnitOfWork(Database(raw, NOWHERE, self._clock), self._clock)
        migrate(self._desk.db)
        self.locked = threading.RLock()  # a lease is renewed by a thread of its own
        self._leases: dict[str, MemoryLease] = {}
        self._dead: set[str] = set()
        self._transaction: MemoryTransaction | None = None
        self._kept: list[Work] = []

    def __repr__(self) -> str:
        return "MemoryStore()"

    async def migrate(self) -> None:
        """Do nothing: the schema was made with the object."""

    async def close(self) -> None:
        """Stop all listening. What was written stays for as long as the object does."""
        self._listeners.clear()

    # Reading and writing

    async def _read(self, question: Callable[[UnitOfWork], T]) -> T:
        # Also while a tool's transaction is open: that may write to tables of its own only.
        with self.locked:
            return question(self._desk)

    async def _write(self, *works: Work, size: int = 0) -> list[Any]:
        return await self._write_all(do_works, works)

    async def _write_all(
        self, do: Do, items: Sequence[Any], size: int = 0, session: str = ""
    ) -> list[Any]:
        await self._until_free()
        return list(self._write_now(lambda desk: do(desk, items)))

    async def _until_free(self) -> None:
        """Wait for the end of a tool's transaction: there is one connection."""
        while self._transaction:
            await self._transaction.over.wait()

    def _write_now(self, work: Callable[[UnitOfWork], T]) -> T:
        desk = self._desk
        with self.locked:
            desk.hints = {}
            desk.db.begin()
            try:
                result = work(desk)
                desk.db.commit()
            finally:
                desk.db.roll_back()
            hints = desk.hints
        self.announce(hints)
        return result

    def write_beside(self, work: Callable[[UnitOfWork], T]) -> T:
        """Write what waits for no tool's transaction, and stays though that is undone."""
        with self.locked:
            if self._transaction:
                self._kept.append(work)
            return work(self._desk)

    def announce(self, hints: Mapping[str, bool]) -> None:
        for session_id, arrived in hints.items():
            asyncio.get_running_loop().call_soon(self._listeners.tell, session_id, arrived)

    # Transactions of tools

    @asynccontextmanager
    async def transaction(self, limit: float = 5.0) -> AsyncIterator[Transaction]:
        await self._until_free()
        transaction = MemoryTransaction(self, self._desk, limit)
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
            if self._desk.db.raw.in_transaction:
                self._desk.db.roll_back()
                for work in kept:
                    work(self._desk)

    # Workers

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        if earlier := self._leases.pop(worker.worker, None):
            earlier.is_over = True
        self._dead.discard(worker.worker)
        await self._write(partial(register, info=worker, length=lease))
        held = self._leases[worker.worker] = MemoryLease(self, worker.worker, self._clock)
        return held

    def declare_dead(self, worker: str) -> None:
        """Make a worker look as if it had been killed: the next `find_dead` finds it."""
        self._dead.add(worker)

    async def find_dead(self) -> Sequence[str]:
        if not self._dead:
            return []
        await self._until_free()
        dead, self._dead = sorted(self._dead), set()

        def strike(desk: UnitOfWork) -> list[str]:
            found = [worker for worker in dead if bury(desk.db, worker)]
            if found:
                desk.tell("", arrived=True)
            return found

        return self._write_now(strike)

    async def workers(self) -> Sequence[WorkerInfo]:
        return [info for info in await self._read(workers) if info.worker not in self._dead]

    async def drain(self, worker: str) -> bool:
        def ask(desk: UnitOfWork) -> bool:
            key = {"worker": worker, "now": desk.clock.now()}
            is_there = desk.db.one("drain", key) is not None
            if is_there:
                desk.tell("", arrived=True)
            return is_there

        (is_there,) = await self._write(ask)
        return bool(is_there)

    # The rest

    async def erase(self, session_id: str) -> bool:
        (erased,) = await self._write(partial(erasure.write_erasure, session_id=session_id))
        has_more = erased.has_more
        while has_more:
            (has_more,) = await self._write(erasure.go_on)
        return bool(erased.was_there)

    def listen(self, heard: Heard, session_id: str = EVERYTHING) -> Callable[[], None]:
        return self._listeners.add(heard, session_id)

    def counts(self) -> Mapping[str, int]:
        return {}


def register(desk: UnitOfWork, info: WorkerInfo, length: int) -> None:
    row = {
        "worker": info.worker,
        "machine": "memory",
        "host": info.host,
        "pid": info.pid,
        "started_at": info.started_at,
        "version": info.version,
        "lease": length,
        "now": desk.clock.now(),
        "concurrency": info.concurrency,
        "agents": to_json(info.agents),
        "lanes": to_json(info.lanes),
        "at_once": to_json(info.at_once),
        "tally": info.tally,
    }
    desk.db.run("enlist", row)


class MemoryLease:
    """See `outlast.store.Lease`."""

    def __init__(self, store: MemoryStore, worker: str, clock: Clock) -> None:
        self._store = store
        self._worker = worker
        self._clock = clock
        self.is_over = False

    def renew(self, tally: str = "") -> Renewal:
        """Extend the lease; say whether the worker is still known, and may go on."""
        now = self._clock.now()
        return self._store.write_beside(lambda desk: self._renew(desk, now, tally))

    def _renew(self, desk: UnitOfWork, now: int, tally: str) -> Renewal:
        row = None if self.is_over else desk.db.one("find_lease", {"worker": self._worker})
        if row is None:
            return Renewal(alive=False)
        desk.db.run("renew", {"worker": self._worker, "now": now, "tally": tally})
        draining, lease_until = row
        return Renewal(alive=True, draining=bool(draining), lapsed=lease_until <= now)

    def release(self) -> None:
        """Strike the worker from the registry and free its lanes."""
        if not self.is_over:
            self._store.write_beside(lambda desk: bury(desk.db, self._worker))
            self.is_over = True


class MemoryTransaction(SqliteTransaction):
    """A tool's statements, each run at once on the store's one connection.

    Other writes wait until it is over; its limit is a timer of the event loop.
    """

    def __init__(self, store: MemoryStore, desk: UnitOfWork, limit: float) -> None:
        super().__init__(limit)
        self._store = store
        self._desk = desk
        self.over = asyncio.Event()

    def begin(self) -> None:
        # An empty context: the timer is the store's, and fires though the tool's process is
        # one that a simulation has stopped.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limit, self._expire, self._desk, context=Context())
        self._desk.hints = {}
        self._desk.db.begin()

    async def _ask(self, work: Callable[[UnitOfWork], T]) -> T:
        if self._over:
            raise self._over
        with self._store.locked:
            return work(self._desk)

    def _run(self, desk: UnitOfWork, statement: Callable[[UnitOfWork], T]) -> T:
        # For this statement only: reads and leases of others use the connection in between.
        desk.db.raw.set_authorizer(authorize)
        try:
            return super()._run(desk, statement)
        finally:
            desk.db.raw.set_authorizer(None)

    def _make_durable(self, desk: UnitOfWork) -> None:
        desk.db.commit()
        self._store.announce(desk.hints)

    async def leave(self) -> None:
        self.end()

    def _expire(self, desk: UnitOfWork) -> None:
        super()._expire(desk)
        self.end()

    def end(self) -> None:
        """End the transaction; what was not committed is undone."""
        if self.over.is_set():
            return
        self._timer.cancel()
        self._end(NotInTransaction("this transaction is over; open another one"))
        self._store.end_transaction()
        self.over.set()
