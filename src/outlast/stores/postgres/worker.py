"""Which workers there are: their signs of life, their rows, and their deaths."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from outlast.clock import Clock
from outlast.errors import StoreUnavailable
from outlast.store import WorkerInfo
from outlast.stores.postgres.claim import to_json
from outlast.stores.postgres.listing import describe_worker
from outlast.stores.postgres.liveness import HeartbeatConnection, LivenessObserver
from outlast.stores.postgres.pipeline import Rows
from outlast.stores.postgres.reader import Readers
from outlast.stores.postgres.statement import Query, Statement
from outlast.stores.postgres.url import StoreAddress
from outlast.stores.postgres.worker_lease import PostgresLease
from outlast.stores.postgres.writer import Hints, Writer

LOOK_AFTER = 1.0


class Registry:
    """The workers of this store, and its view of all others."""

    def __init__(
        self,
        place: StoreAddress,
        clock: Clock,
        queries: Mapping[str, Query],
        direct: HeartbeatConnection,
        readers: Readers,
        writer: Writer,
    ) -> None:
        self._place = place
        self._clock = clock
        self._queries = queries
        self._direct = direct
        self._readers = readers
        self._writer = writer
        self._leases: dict[str, PostgresLease] = {}
        self.observer = LivenessObserver(place, clock, queries)

    async def enlist(self, info: WorkerInfo, length: int) -> PostgresLease:
        """Show both signs first: a worker that is registered and shows none would look dead."""
        if earlier := self._leases.pop(info.worker, None):
            await earlier.let_go()
        await self._check_name(info.worker)
        sign = await self._direct.show(info.worker) if self._direct.is_possible else None
        lease = PostgresLease(
            info.worker, length, self._place, self._clock, self._queries, self._direct, sign
        )
        try:
            if sign is not None:
                await asyncio.to_thread(lease.show)
            await self._writer.submit(self._enlist(info, length, sign))
        except BaseException:
            await lease.let_go()
            raise
        self._leases[info.worker] = lease
        return lease

    async def _check_name(self, worker: str) -> None:
        params = {"worker": worker, "class": self._place.number}
        if await self._readers.ask(self._queries["namesake"].bind(params)):
            raise StoreUnavailable(
                f"a worker of this name is alive ({worker}); choose another name", worker=worker
            )

    def _enlist(self, info: WorkerInfo, length: int, sign: int | None) -> SingleStatement:
        params: dict[str, Any] = {
            "worker": info.worker,
            "sign": sign,
            "host": info.host,
            "pid": info.pid,
            "started_at": info.started_at,
            "version": info.version,
            "concurrency": info.concurrency,
            "agents": to_json(list(info.agents)),
            "lanes": to_json(list(info.lanes)),
            "at_once": to_json(info.at_once),
            "tally": info.tally,
            "lease": length,
        }
        return SingleStatement(self._queries["enlist"].bind(params))

    async def drain(self, worker: str) -> bool:
        """Ask a living worker to leave, and hint at it."""
        statement = self._queries["drain"].bind({"worker": worker})
        return bool(await self._writer.submit(SingleStatement(statement, {"": True})))

    async def find_dead(self) -> Sequence[str]:
        """Look if nobody has for a while, and again where somebody was missing."""
        if not self.observer.is_due(LOOK_AFTER):
            return []
        if pause := self.observer.pause:
            await asyncio.sleep(pause)
        await self._look()
        if pause := self.observer.pause:
            await asyncio.sleep(pause)
            await self._look()
        found = []
        for worker in self.observer.take_dead():
            if await self._bury(worker):
                found.append(worker)
        return found

    async def living(self) -> list[WorkerInfo]:
        """Return those whose lease holds, without those that show no sign of life now."""
        rows = await self._readers.ask(self._queries["living_workers"].bind({}))
        missing = {worker for worker, _ in await self._readers.ask(self.observer.look())}
        return [info for info in map(describe_worker, rows) if info.worker not in missing]

    async def _look(self) -> None:
        self.observer.note(await self._readers.ask(self.observer.look()))

    async def _bury(self, worker: str) -> bool:
        statement = self._queries["bury"].bind({"worker": worker})
        [(is_ours,)] = await self._writer.submit(SingleStatement(statement, {"": True}))
        return bool(is_ours)

    async def close(self) -> None:
        """Let go of all signs of life. The rows stay, as after a crash."""
        leases, self._leases = list(self._leases.values()), {}
        for lease in leases:
            await lease.let_go()


class SingleStatement:
    """One statement that goes out with a group, and what to say to those who listen."""

    limits = ()
    size = 0

    def __init__(self, statement: Statement, hints: Hints | None = None) -> None:
        self._statement = statement
        self._hints = hints or {}

    def compose(self) -> Sequence[Statement]:
        return [self._statement]

    def take(self, answers: Sequence[Rows], hints: Hints) -> Rows:
        hints.update(self._hints)
        [rows] = answers
        return rows
