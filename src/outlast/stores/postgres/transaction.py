"""A tool's own statements in one transaction with the record of its outcome.

Each transaction has a connection of its own (`transaction_pool.py`), so nothing else waits for it.
After its time limit it is rolled back, whatever the tool is doing. Parameters are psycopg's: `%s`.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import msgspec
import psycopg
from psycopg.pq import TransactionStatus

from outlast.errors import InvalidInput, NotInTransaction, OutlastError, StoreUnavailable
from outlast.store import Commit, Committed, Refused
from outlast.stores.postgres.answer_watch import SILENCE, answered_within
from outlast.stores.postgres.commit import UNDONE, CommitItem, Committer
from outlast.stores.postgres.error import (
    explain,
    is_of_the_connection,
    is_passing,
    is_put_off,
    lost,
)
from outlast.stores.postgres.transaction_pool import TransactionPool
from outlast.stores.postgres.writer import GroupBuffer, Hints, WriteAnswer

FIRST_WORD = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*(?:(?!/\*).)*?\*/)*([a-zA-Z]+|[(])", re.DOTALL)
NEVER = set(
    "abort begin commit end prepare release rollback savepoint start set reset listen discard"
    " deallocate".split()
)


class PostgresTransaction:
    """See `outlast.store.Transaction`."""

    def __init__(self, pool: TransactionPool, committer: Committer, limit: float) -> None:
        self._pool = pool
        self._committer = committer
        self._limit = limit
        self._over: OutlastError | None = None
        self._turn = asyncio.Lock()
        self._running: asyncio.Future[Any] | None = None
        self._undoing: asyncio.Task[None] | None = None

    # For the tool

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        cursor = await self._run(sql, params)
        return max(0, cursor.rowcount)

    async def fetch(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = await self._run(sql, params)
        return [tuple(row) for row in await cursor.fetchall()] if cursor.description else []

    async def fetch_one(self, sql: str, params: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        rows = await self.fetch(sql, params)
        return rows[0] if rows else None

    @property
    def raw(self) -> Any:
        """The driver's connection; code that ends the transaction on it loses the commit."""
        if self._over:
            raise self._over
        return self._connection

    async def _run(self, sql: str, params: Sequence[Any]) -> psycopg.AsyncCursor[Any]:
        check_statement(sql)
        # Without parameters the driver would send several statements at once; asked for
        # binary answers it does not.
        may_be_several = not params and ";" in sql.strip().rstrip(";")
        try:
            async with self._turn:
                cursor: psycopg.AsyncCursor[Any] = await self._do(
                    self._connection.execute(sql, params or None, binary=may_be_several)
                )
                return cursor
        except psycopg.Error as error:
            if self._over:
                raise self._over from error
            if is_of_the_connection(error):
                raise self._end(lost(self._pool.place.label)) from error
            raise  # for the tool

    async def _do(self, work: Awaitable[Any]) -> Any:
        """Await one thing on the connection; if the time limit interrupts it, say so."""
        if self._over:
            close = getattr(work, "close", None)
            if close:
                close()
            raise self._over
        self._running = asyncio.ensure_future(work)
        try:
            result = await self._running
        except asyncio.CancelledError:
            if self._over:
                raise self._over from None
            raise
        finally:
            self._running = None
        # A tool that has the driver's connection (`raw`) can end it there.
        if self._connection.pgconn.transaction_status == TransactionStatus.IDLE:
            raise self._end(NotInTransaction("this transaction was ended inside; open another one"))
        return result

    # Its beginning and its end

    async def begin(self) -> None:
        self._connection = await self._pool.enter()
        try:
            with answered_within(SILENCE, self._connection):
                await self._begin()
        except BaseException as error:
            await self._connection.close()
            if isinstance(error, psycopg.Error):
                raise explain(error, self._pool.place.label) from error
            raise
        self._timer = asyncio.get_running_loop().call_later(self._limit, self._expire)

    async def _begin(self) -> None:
        # A little later than the timer of this process, which can say why.
        milliseconds = int(self._limit * 1000) + 1000
        await self._connection.execute("BEGIN")
        # If this process or its machine dies, the server ends the transaction.
        await self._set("idle_in_transaction_session_timeout", str(milliseconds))
        if self._pool.clock.is_shared:
            await self._set("outlast_clock.now", str(self._pool.clock.now()))

    async def _set(self, name: str, value: str) -> None:
        async with psycopg.AsyncRawCursor(self._connection) as cursor:
            await cursor.execute(self._pool.queries["set_here"].text, [name, value])

    async def commit(self, commit: Commit) -> Committed | Refused:
        """Write the commit last, and end the transaction with it."""
        async with self._turn:
            if self._over:
                raise self._over
            self._timer.cancel()
            self._over = NotInTransaction("this transaction was committed; open another one")
            hints: Hints = {}
            item = self._committer.item(commit)
            is_written = False
            try:
                with answered_within(SILENCE, self._connection):
                    found = await self._write(item, hints)
                    is_written = bool(hints)  # only what was written leaves a hint
                    await self._connection.execute("COMMIT" if is_written else "ROLLBACK")
            except psycopg.Error as error:
                # COMMIT may have arrived: only the log knows, and it is asked by the commit's
                # number.
                if is_of_the_connection(error):
                    return await self._committer.find_out(commit)
                if is_written and is_put_off(error):
                    raise  # for the tool, as if its statement had failed
                told = self._explain(error)
                if isinstance(told, StoreUnavailable):
                    return UNDONE  # the server itself says that it did not
                raise told from error
        return await self._committer.finish(item, found, hints)

    async def _write(self, item: CommitItem, hints: Hints) -> Committed | Refused:
        """Have the commit written; once more, changed, if its answer says so."""
        while True:
            if found := item.accept(await self._ask(item, hints), hints):
                return found

    async def _ask(self, item: CommitItem, hints: Hints) -> list[Any]:
        buffer = GroupBuffer()
        rounds = msgspec.json.encode([[item.prepare(buffer)]]).decode()
        async with psycopg.AsyncRawCursor(self._connection) as cursor:
            await cursor.execute(self._pool.queries["write"].text, [rounds, buffer.join()])
            row = await cursor.fetchone()
        assert row is not None
        written = msgspec.json.decode(row[0], type=WriteAnswer)
        hints.update(dict.fromkeys(written.woken, True))
        return written.answers[0]

    def _explain(self, error: psycopg.Error) -> OutlastError:
        if isinstance(error, psycopg.errors.InFailedSqlTransaction):
            return NotInTransaction(
                "a statement of this transaction failed, so PostgreSQL undid all of it"
            )
        if is_passing(error):
            return StoreUnavailable("another transaction was in the way; begin this one again")
        return explain(error, self._pool.place.label)

    def _expire(self) -> None:
        if self._over is None:
            self._over = NotInTransaction(
                f"this transaction was open for more than {self._limit:g} s and was undone;"
                " do less in it, and wait for nothing"
            )
            self._undoing = asyncio.create_task(self._undo())

    def _end(self, reason: OutlastError) -> OutlastError:
        """Take no more; the first reason stays."""
        self._over = self._over or reason
        return self._over

    async def _undo(self) -> None:
        with answered_within(SILENCE, self._connection):
            await self._roll_back()

    async def _roll_back(self) -> None:
        if self._running:
            self._running.cancel()
        async with self._turn:
            if self._connection.pgconn.transaction_status != TransactionStatus.IDLE:
                try:
                    await self._connection.execute("ROLLBACK")
                except psycopg.Error:
                    await self._connection.close()

    async def leave(self) -> None:
        """End the transaction; what was not committed is undone when this returns."""
        self._timer.cancel()
        self._end(NotInTransaction("this transaction is over; open another one"))
        await self._undo()
        if self._undoing:
            await self._undoing
        await self._pool.leave(self._connection)


def check_statement(sql: str) -> None:
    """Refuse what would end the transaction, or outlive it on its connection."""
    found = FIRST_WORD.match(sql)
    if found is None or found[1].lower() in NEVER:
        raise InvalidInput(
            "a tool's transaction is ended by Outlast: leave out BEGIN, COMMIT, ROLLBACK,"
            " SAVEPOINT, PREPARE and SET"
        )


class OpenTransaction(AbstractAsyncContextManager[PostgresTransaction]):
    """Opens a transaction; leaving without a commit undoes all."""

    def __init__(self, make: Callable[[], PostgresTransaction]) -> None:
        self._make = make

    async def __aenter__(self) -> PostgresTransaction:
        self._transaction = self._make()
        await self._transaction.begin()
        return self._transaction

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A call that is cancelled must not leave its connection in the middle of a transaction.
        await asyncio.shield(self._transaction.leave())
