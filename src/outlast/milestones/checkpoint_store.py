"""A store that has a function told of every commit before the commit's author goes on.

So a checkpoint is on the disk before the next model call or tool begins. All else is the wrapped
store's own. What is written then is in `recorder.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from outlast.store import Commit, Committed, LogStore, Refused, Store, Transaction

Told = Callable[[Commit], Awaitable[None]]
"""Is given each commit that was written."""


class CheckpointingStore:
    """An `outlast.store.Store` whose commits are told."""

    def __init__(self, store: Store, told: Told) -> None:
        self.log = CheckpointingLog(store.log, told)
        self.work = store.work
        self.listing = store.listing
        self.limit = store.limit
        self.outbox = store.outbox
        self.document = store.document
        self.usage = store.usage
        self.budget = store.budget
        self.clock = store.clock
        self.migrate = store.migrate
        self.close = store.close
        self.counts = store.counts


class CheckpointingLog:
    """An `outlast.store.LogStore` whose commits are told."""

    def __init__(self, log: LogStore, told: Told) -> None:
        self._log = log
        self._told = told
        self.admit = log.admit
        self.effect = log.effect
        self.load = log.load
        self.read = log.read
        self.read_back = log.read_back
        self.erase = log.erase
        self.find_orphans = log.find_orphans
        self.drop_snapshots = log.drop_snapshots

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        results = await self._log.commit(commits)
        for commit, result in zip(commits, results, strict=True):
            if isinstance(result, Committed):
                await self._told(commit)
        return results

    def transaction(self, limit: float = 5.0) -> AbstractAsyncContextManager[Transaction]:
        return CheckpointingTransaction(self._log.transaction(limit), self._told)


class CheckpointingTransaction(AbstractAsyncContextManager[Transaction]):
    """A tool's transaction whose commit is told when it has ended: its author holds the store."""

    def __init__(self, transaction: AbstractAsyncContextManager[Transaction], told: Told) -> None:
        self._context = transaction
        self._told = told
        self._written: Commit | None = None

    async def __aenter__(self) -> CheckpointingTransaction:
        self._transaction = await self._context.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        is_handled = await self._context.__aexit__(kind, error, trace)
        if self._written is not None:
            await self._told(self._written)
        return is_handled

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
        result = await self._transaction.commit(commit)
        if isinstance(result, Committed):
            self._written = commit
        return result
