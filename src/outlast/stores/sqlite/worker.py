"""Which workers there are: their signs of life, their rows, and their deaths."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from outlast.clock import Clock
from outlast.store import WorkerInfo
from outlast.stores.sqlite.listing import workers
from outlast.stores.sqlite.liveness import LivenessObserver, LockFile, lock_path, machine
from outlast.stores.sqlite.unit_of_work import UnitOfWork, to_json
from outlast.stores.sqlite.worker_lease import SqliteLease, bury
from outlast.stores.sqlite.writer import Work

LONG_GONE = 24 * 3_600_000

Read = Callable[[Callable[[UnitOfWork], list[str]]], Awaitable[list[str]]]


class WriteFunction(Protocol):
    async def __call__(self, *works: Work) -> list[Any]: ...


class Registry:
    """The workers of this store, and its view of all others."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._directory = Path(f"{path}-workers")
        self._observer = LivenessObserver(self._directory, clock)
        self._machine = machine()
        self._leases: dict[str, SqliteLease] = {}

    async def enlist(self, info: WorkerInfo, length: int, write: WriteFunction) -> SqliteLease:
        """Take the lock first: a worker that is registered and shows no life would look dead."""
        if earlier := self._leases.pop(info.worker, None):
            earlier.let_go()
        lock = LockFile(lock_path(self._directory, info.worker))
        await asyncio.to_thread(lock.take)
        lease = SqliteLease(info.worker, length, lock, self._path, self._clock)
        try:
            await write(partial(self._register, info=info, length=length))
        except BaseException:
            lease.let_go()
            raise
        self._leases[info.worker] = lease
        return lease

    def _register(self, desk: UnitOfWork, info: WorkerInfo, length: int) -> None:
        desk.db.run(
            "enlist",
            {
                "worker": info.worker,
                "machine": self._machine,
                "host": info.host,
                "pid": info.pid,
                "started_at": info.started_at,
                "version": info.version,
                "lease": length,
                "now": self._clock.now(),
                "concurrency": info.concurrency,
                "agents": to_json(info.agents),
                "lanes": to_json(info.lanes),
                "at_once": to_json(info.at_once),
                "tally": info.tally,
            },
        )

    async def drain(self, worker: str, write: WriteFunction) -> bool:
        (is_there,) = await write(partial(self._ask_to_drain, worker=worker))
        return bool(is_there)

    def _ask_to_drain(self, desk: UnitOfWork, worker: str) -> bool:
        is_there = desk.db.one("drain", {"worker": worker, "now": self._clock.now()}) is not None
        if is_there:
            desk.tell("", arrived=True)
        return is_there

    async def find_dead(self, read: Read, write: WriteFunction) -> Sequence[str]:
        dead = await read(self._look)
        if not dead:
            return []
        recorded = await write(*(partial(self._bury, worker=worker) for worker in dead))
        found = [worker for worker, is_ours in zip(dead, recorded, strict=True) if is_ours]
        for worker in found:
            LockFile(lock_path(self._directory, worker)).remove()
        return found

    def _look(self, desk: UnitOfWork) -> list[str]:
        """On a reader's thread: those visibly dead, and those not heard of for a day."""
        gone = desk.db.all("long_gone_workers", {"before": self._clock.now() - LONG_GONE})
        visibly = self._observer.find_dead(self._within_sight(desk))
        return list(dict.fromkeys([*visibly, *(worker for (worker,) in gone)]))

    def living(self, desk: UnitOfWork) -> list[WorkerInfo]:
        """On a reader's thread: those whose lease holds, without those that show no life now."""
        missing = self._observer.find_missing(self._within_sight(desk))
        return [info for info in workers(desk) if info.worker not in missing]

    def _within_sight(self, desk: UnitOfWork) -> list[str]:
        rows = desk.db.all("workers_on_machine", {"machine": self._machine})
        return [worker for (worker,) in rows]

    def _bury(self, desk: UnitOfWork, worker: str) -> bool:
        is_ours = bury(desk.db, worker)
        if is_ours:
            desk.tell("", arrived=True)
        return is_ours

    async def close(self) -> None:
        """Let go of all signs of life. The rows stay, as after a crash."""
        leases, self._leases = list(self._leases.values()), {}
        for lease in leases:
            await asyncio.to_thread(lease.let_go)
