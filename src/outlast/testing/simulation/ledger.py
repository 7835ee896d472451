"""Rows that users keep in the same database as the log: tools' transactions change both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from outlast.clock import Clock
from outlast.store import Commit, Committed, Refused, Transaction
from outlast.stores.memory import MemoryStore

Row = tuple[Any, ...]


class LedgerStore(MemoryStore):
    """A memory store with one table beside it, whatever the statements say."""

    def __init__(self, clock: Clock, rows: list[Row]) -> None:
        super().__init__(clock)
        self.rows = rows

    def transaction(self, limit: float = 5.0) -> AbstractAsyncContextManager[Transaction]:
        return booking(self)


@asynccontextmanager
async def booking(store: LedgerStore) -> AsyncIterator[Transaction]:
    yield LedgerTransaction(store)


class LedgerTransaction:
    """A transaction: its rows are added with its commit, or never."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self._rows: list[Row] = []

    @property
    def raw(self) -> Any:
        return self._store

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        self._rows.append(tuple(params))
        return 1

    async def fetch(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        return [*self._store.rows, *self._rows]

    async def fetch_one(self, sql: str, params: Sequence[Any] = ()) -> Row | None:
        return next(iter(await self.fetch(sql, params)), None)

    async def commit(self, commit: Commit) -> Committed | Refused:
        [result] = await self._store.commit([commit])
        if isinstance(result, Committed):
            self._store.rows += self._rows
        return result
