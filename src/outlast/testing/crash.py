"""A crash at a commit of your choice: by SIGKILL, or by unwinding a worker in this process.

Wraps the store's contract and counts what a worker commits; nothing in production code
knows of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Literal, Never

from msgspec import Struct

from outlast.core.event import type_of
from outlast.store import Commit, Committed, Refused, Store, Transaction
from outlast.testing.wrapped_store import WrappedStore

When = Literal["before", "after"]
How = Literal["kill", "raise"]


class CrashPoint(Struct, frozen=True):
    """Where a crash happened: the commit, counted from 1, and what it was to write."""

    commit: int
    when: When
    writing: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = f" ({', '.join(dict.fromkeys(self.writing))})" if self.writing else ""
        return f"{self.when} commit {self.commit}{what}"


class Crashed(asyncio.CancelledError):
    """Unwinds a worker that is to be taken for dead.

    A cancellation, since that is what tools let pass, and the worker's tasks end without a word.
    """


class CrashingStore(WrappedStore):
    """Crashes before or after the commit number `at`; with 0 it only counts.

    `how="kill"` ends the whole process by SIGKILL. `how="raise"` raises Crashed from the commit
    and from every call after it, and sets `crashed`; the caller then drops the worker.
    """

    def __init__(self, store: Store, at: int = 0, when: When = "before", how: How = "kill") -> None:
        super().__init__(store)
        self.commits = 0
        self.crashed = asyncio.Event()
        self.point: CrashPoint | None = None
        self._at = at
        self._when = when
        self._how = how

    @property
    def inner(self) -> Store:
        if self.crashed.is_set():
            raise Crashed
        return self._store

    async def close(self) -> None:
        await self._store.close()

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        async def write(commit: Commit) -> Committed | Refused:
            [result] = await self.inner.log.commit([commit])
            return result

        return [await self.count(commit, write) for commit in commits]

    def transaction(self, limit: float = 5.0) -> AbstractAsyncContextManager[Transaction]:
        return CrashingTransaction(self, self.inner.log.transaction(limit))

    async def count(
        self, commit: Commit, write: Callable[[Commit], Awaitable[Committed | Refused]]
    ) -> Committed | Refused:
        """Write a commit, and crash on the way if it is the one."""
        self.commits += 1
        chosen = self.commits == self._at
        if chosen and self._when == "before":
            self._crash(commit)
        result = await write(commit)
        if chosen:
            self._crash(commit)
        if self.crashed.is_set():  # a dead process learns of nothing
            raise Crashed
        return result

    def _crash(self, commit: Commit) -> Never:
        if self._how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        writing = tuple(type_of(record) for record in commit.records)
        self.point = CrashPoint(self._at, self._when, writing)
        self.crashed.set()
        raise Crashed


class CrashingTransaction(AbstractAsyncContextManager[Transaction]):
    """A transaction whose commit is counted like any other."""

    def __init__(
        self, store: CrashingStore, transaction: AbstractAsyncContextManager[Transaction]
    ) -> None:
        self._store = store
        self._context = transaction

    async def __aenter__(self) -> CrashingTransaction:
        self._transaction = await self._context.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._context.__aexit__(kind, error, trace)

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        return await self._transaction.execute(sql, params)

    async def fetch(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return await self._transaction.fetch(sql, params)

    async def fetch_one(self, sql: str, params: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        return await self._transaction.fetch_one(sql, params)

    @property
    def raw(self) -> Any:
        return self._transaction.raw

    async def commit(self, commit: Commit) -> Committed | Refused:
        return await self._store.count(commit, self._transaction.commit)
