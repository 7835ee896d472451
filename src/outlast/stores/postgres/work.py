"""The topic `work` in PostgreSQL: workers with their signs of life, claims of lanes, hints.

See `outlast.store.work` for the promises. A worker shows that it lives by locks that its
connections hold (`liveness.py`) and by its lease (`worker_lease.py`); functions/claim.sql gives
lanes to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from outlast.core.record import FORMAT
from outlast.errors import StoreUnavailable
from outlast.store import NO_LIMITS, Claim, WorkerInfo
from outlast.stores.listener import EVERYTHING, Heard
from outlast.stores.postgres.access import PostgresAccess
from outlast.stores.postgres.claim import ClaimItem, to_json
from outlast.stores.postgres.liveness import LivenessObserver
from outlast.stores.postgres.pipeline import Row, Rows
from outlast.stores.postgres.statement import Statement
from outlast.stores.postgres.worker_lease import PostgresLease
from outlast.stores.postgres.writer import Hints

FRESH = 0.05
LOOK_AFTER = 1.0

_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_numbers = msgspec.json.Decoder(dict[str, int]).decode


class PostgresWork:
    """See `outlast.store.WorkStore`."""

    def __init__(self, access: PostgresAccess) -> None:
        self._access = access
        self._clock = access.clock
        self._queries = access.queries
        self._leases: dict[str, PostgresLease] = {}
        self._foreseen: tuple[float, int, int | None] | None = None
        self.observer = LivenessObserver(access.address, access.clock, access.queries)

    async def claim(
        self,
        worker: str,
        limit: int,
        held: Sequence[tuple[str, str]] = (),
        agents: Sequence[str] | None = None,
        version: int = FORMAT,
        lanes: Sequence[str] | None = None,
        most: Mapping[str, int] = NO_LIMITS,
    ) -> Sequence[Claim]:
        writer = self._access.parts().writer
        item = ClaimItem(
            self._queries,
            self.observer,
            *(worker, limit, held, agents, version, lanes, most),
        )
        claims, next_at = await writer.submit(item)
        self._foreseen = (self._clock.monotonic(), writer.submitted, next_at)
        return list(claims)

    async def next_ready_at(self, after: int) -> int | None:
        """Answer from the claim just made, which brought the answer along, or ask."""
        writer, foreseen = self._access.parts().writer, self._foreseen
        self._foreseen = None
        if foreseen:
            looked_at, submitted, next_at = foreseen
            is_fresh = self._clock.monotonic() - looked_at < FRESH
            is_last = submitted == writer.submitted
            if is_fresh and is_last and (next_at is None or next_at > after):
                return next_at
        [(ready_at,)] = await self._access.ask("next_ready_at", {"after": after})
        return ready_at if ready_at is None else int(ready_at)

    async def find_arrivals(
        self, heads: Sequence[tuple[str, str, int]]
    ) -> Sequence[tuple[str, str]]:
        rows = await self._access.ask(
            "find_arrivals", {"heads": msgspec.json.encode(heads).decode()}
        )
        return [(session, lane) for session, lane in rows]

    def listen(self, heard: Heard, session_id: str = EVERYTHING) -> Callable[[], None]:
        parts = self._access.parts()
        parts.heartbeat.want()
        return parts.listeners.add(heard, session_id)

    # Lives and deaths

    async def enlist(self, worker: WorkerInfo, lease: int) -> PostgresLease:
        parts = self._access.parts()
        if earlier := self._leases.pop(worker.worker, None):
            await earlier.let_go()
        await self._check_name(worker.worker)
        # Both signs come before the row: a registered worker without them would look dead.
        sign = await parts.heartbeat.show(worker.worker) if parts.heartbeat.is_possible else None
        held = PostgresLease(
            worker.worker,
            lease,
            self._access.address,
            self._clock,
            self._queries,
            parts.heartbeat,
            sign,
        )
        try:
            if sign is not None:
                await asyncio.to_thread(held.show)
            await parts.writer.submit(self._enlist(worker, lease, sign))
        except BaseException:
            await held.let_go()
            raise
        self._leases[worker.worker] = held
        return held

    async def _check_name(self, worker: str) -> None:
        params = {"worker": worker, "class": self._access.address.number}
        if await self._access.ask("find_living_worker", params):
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
            "counters": info.counters,
            "lease": length,
        }
        return SingleStatement(self._queries["enlist"].bind(params))

    async def drain(self, worker: str) -> bool:
        statement = self._queries["drain"].bind({"worker": worker})
        item = SingleStatement(statement, {"": True})
        return bool(await self._access.parts().writer.submit(item))

    async def find_dead(self) -> Sequence[str]:
        """Look unless a look is recent, and again if a sign was missing."""
        self._access.parts()
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
            if await self._remove(worker):
                found.append(worker)
        return found

    async def workers(self) -> Sequence[WorkerInfo]:
        rows = await self._access.ask("living_workers", {})
        signs = await self._access.parts().readers.ask(self.observer.look())
        missing = {worker for worker, _ in signs}
        return [info for info in map(describe_worker, rows) if info.worker not in missing]

    async def _look(self) -> None:
        self.observer.note(await self._access.parts().readers.ask(self.observer.look()))

    async def _remove(self, worker: str) -> bool:
        statement = self._queries["remove_worker"].bind({"worker": worker})
        item = SingleStatement(statement, {"": True})
        [(is_ours,)] = await self._access.parts().writer.submit(item)
        return bool(is_ours)

    async def close(self) -> None:
        """Remove all signs of life of this store's workers. The rows stay, as after a crash."""
        leases, self._leases = list(self._leases.values()), {}
        for lease in leases:
            await lease.let_go()


class SingleStatement:
    """One statement as an item of the writer's next group, and the hints to give after it."""

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


WORKER = (
    "worker host pid started_at version concurrency agents lanes at_once counters seen_at"
    " lease_until held draining"
).split()


def describe_worker(row: Row) -> WorkerInfo:
    fields = dict(zip(WORKER, row, strict=True))
    named = {name: _decode_names(fields[name]) for name in ("agents", "lanes")}
    at_once = _decode_numbers(fields["at_once"])
    return WorkerInfo(**{**fields, **named, "at_once": at_once})
