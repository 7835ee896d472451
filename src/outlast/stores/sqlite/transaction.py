"""A tool's own statements in the writer's transaction, ended by the record of its outcome.

The writer's thread serves one transaction at a time and nothing else meanwhile; the
tool's statements come to it one by one. After its limit a transaction is undone, whatever
the tool is doing: a real timer sees to that, since it is the file's only writer.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from outlast.errors import InvalidInput, NotInTransaction, OutlastError, StoreUnavailable
from outlast.store import Commit, Committed, Refused
from outlast.stores.sqlite.commit import write_commits
from outlast.stores.sqlite.database import Database
from outlast.stores.sqlite.error import explain, is_of_the_disk
from outlast.stores.sqlite.notify import PendingResult, make_future, resolve
from outlast.stores.sqlite.writer import Writer

T = TypeVar("T")
Asked = tuple[Callable[[Database], Any], "asyncio.Future[Any]"]

OURS = "outlast_"
NEVER = {
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT,
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_PRAGMA,
    sqlite3.SQLITE_ANALYZE,
    # Temporary tables belong to the connection, and would outlive the transaction in it.
    sqlite3.SQLITE_CREATE_TEMP_INDEX,
    sqlite3.SQLITE_CREATE_TEMP_TABLE,
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
    sqlite3.SQLITE_CREATE_TEMP_VIEW,
}
READS = {sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION}


def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Allow what a tool may do: anything with tables of its own, and reading ours."""
    if action in NEVER:
        return sqlite3.SQLITE_DENY
    touches_ours = any(name and name.lower().startswith(OURS) for name in (first, second))
    if touches_ours and action not in READS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


class SqliteTransaction:
    """See `outlast.store.Transaction`."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._asked: SimpleQueue[Asked | None] = SimpleQueue()
        self._mutex = threading.Lock()
        self._over: OutlastError | None = None
        self.opened = make_future()
        self.ended = make_future()

    # On the tool's event loop

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        def run(db: Database) -> int:
            return max(0, db.raw.execute(sql, tuple(params)).rowcount)

        return await self._ask(lambda db: self._run(db, run))

    async def fetch(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        def run(db: Database) -> list[tuple[Any, ...]]:
            return db.raw.execute(sql, tuple(params)).fetchall()

        return await self._ask(lambda db: self._run(db, run))

    async def fetch_one(self, sql: str, params: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        rows = await self.fetch(sql, params)
        return rows[0] if rows else None

    @property
    def raw(self) -> Any:
        """Not to be had: SQLite's connection belongs to the thread of the store's writer."""
        raise InvalidInput("SQLite gives tools no connection of its own; use execute and fetch")

    async def commit(self, commit: Commit) -> Committed | Refused:
        result: Committed | Refused = await self._ask(lambda db: self._commit(db, commit))
        await self.leave()
        return result

    async def leave(self) -> None:
        """End the transaction; what was not committed is undone when this returns."""
        self._asked.put(None)
        await asyncio.shield(self.ended)

    async def _ask(self, work: Callable[[Database], T]) -> T:
        future = make_future()
        with self._mutex:
            if self._over:
                raise self._over
            self._asked.put((work, future))
        answer: T = await future
        return answer

    # On the writer's thread

    def serve(self, writer: Writer, db: Database) -> None:
        """Do what the tool asks for, until it leaves or its time is up."""
        self._writer = writer
        timer = threading.Timer(self._limit, self._expire, args=(db,))
        timer.daemon = True
        try:
            db.begin()
        except (sqlite3.Error, OutlastError) as error:
            self.refuse(writer.explain(error))
            return
        try:
            db.hints = {}
            # Asked while a statement is compiled, so that no text, however written, gets past it.
            db.raw.set_authorizer(authorize)
            # A real timer, not the loop's: the tool may be what blocks the loop.
            start(timer)
            resolve([PendingResult(self.opened)])
            self._answer_all(db)
        except OutlastError as error:
            resolve([PendingResult(self.opened, error=error)])
        finally:
            timer.cancel()
            self._end(NotInTransaction("this transaction is over; open another one"))
            self._refuse_the_rest()
            db.raw.set_authorizer(None)
            # Whatever the tool has left open is undone before the writer serves anybody else.
            writer.mend(db)
            resolve([PendingResult(self.ended)])

    def refuse(self, error: Exception) -> None:
        self._end(NotInTransaction("the transaction was never opened"))
        resolve([PendingResult(self.opened, error=error), PendingResult(self.ended)])

    def _answer_all(self, db: Database) -> None:
        """Answer until it is over; a tool that hangs after its commit holds nothing up."""
        while self._over is None and (asked := self._asked.get()) is not None:
            work, future = asked
            answer = PendingResult(future)
            try:
                answer.result = work(db)
            except Exception as error:  # noqa: BLE001 - the tool gets it
                answer.error = error
            resolve([answer])

    def _run(self, db: Database, statement: Callable[[Database], T]) -> T:
        """Run one statement of the tool's; its own errors are its own affair."""
        if self._over:
            raise self._over
        try:
            return statement(db)
        except sqlite3.Error as error:
            if self._over:
                raise self._over from error
            if is_denied(error):
                raise InvalidInput(
                    "a tool's transaction is ended by Outlast, and its tables are Outlast's:"
                    " leave out BEGIN, COMMIT, ROLLBACK, SAVEPOINT, ATTACH and PRAGMA, and"
                    f" write to tables of your own ({error})"
                ) from error
            if is_of_the_disk(error):
                raise explain(error, db.path) from error
            raise
        finally:
            # OR ROLLBACK and a full disk end it: the next statement would commit by itself.
            if not db.raw.in_transaction:
                self._end(
                    NotInTransaction("SQLite has rolled this transaction back; begin it again")
                )

    def _commit(self, db: Database, commit: Commit) -> Committed | Refused:
        with self._mutex:  # from here on the timer has no say
            if self._over:
                raise self._over
            self._over = NotInTransaction("this transaction was committed; open another one")
        # From here on the statements are the store's own.
        db.raw.set_authorizer(None)
        try:
            [result] = write_commits(db, [commit])
            if isinstance(result, Committed):
                self._make_durable(db)
        except sqlite3.Error as error:
            raise explain(error, db.path) from error
        return result

    def _make_durable(self, db: Database) -> None:
        self._writer.commit(db)
        self._writer.announce(db, [], db.hints)

    def _expire(self, db: Database) -> None:
        """On the timer's thread: stop the statement that runs, and refuse any other."""
        with self._mutex:
            if self._over is None:
                self._over = NotInTransaction(
                    f"this transaction was open for more than {self._limit:g} s and was undone;"
                    " do less in it, and wait for nothing"
                )
                # The only call that another thread may make on a connection that is in use.
                db.raw.interrupt()
                self._asked.put(None)

    def _end(self, reason: OutlastError) -> None:
        """Take no more; the first reason stays."""
        with self._mutex:
            self._over = self._over or reason

    def _refuse_the_rest(self) -> None:
        """Answer what was asked for before the end and not done."""
        while not self._asked.empty():
            if asked := self._asked.get_nowait():
                resolve([PendingResult(asked[1], error=self._over)])


def start(timer: threading.Timer) -> None:
    """Start what ends a transaction in time; without it none may be open."""
    try:
        timer.start()
    except RuntimeError as error:
        raise StoreUnavailable(
            f"no transaction can be opened ({error}); let this process have more threads"
        ) from error


def is_denied(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_AUTH


class OpenTransaction(AbstractAsyncContextManager[SqliteTransaction]):
    """Waits for the writer's turn; leaving without a commit undoes all."""

    def __init__(self, writer: Callable[[], Writer], limit: float) -> None:
        self._writer = writer
        self._limit = limit

    async def __aenter__(self) -> SqliteTransaction:
        self._transaction = SqliteTransaction(self._limit)
        self._writer().hand_over(self._transaction)
        try:
            await self._transaction.opened
        except asyncio.CancelledError:
            # The order is with the writer already: it would open a transaction that is never ended.
            await self._transaction.leave()
            raise
        return self._transaction

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._transaction.leave()
