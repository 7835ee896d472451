"""The topic `work` in PostgreSQL: workers with their signs of life, claims of lanes, hints.

See `outlast.store.work` for the promises. The evidence that a worker is dead is in `liveness.py`,
its lease in `worker_lease.py`; functions/claim.sql gives lanes to it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec
from msgspec.structs import replace

from outlast.core.instant import date_of, date_or_none, milliseconds_at
from outlast.core.record import FORMAT
from outlast.errors import StoreUnavailable
from outlast.store import NO_LIMITS, Claim, TakeoverEvidence, Unfinished, WorkerInfo
from outlast.store.work import MOST_COUNTED, PAUSES, DeploymentInfo
from outlast.stores.listener import EVERYTHING, Heard
from outlast.stores.postgres.access import PostgresAccess
from outlast.stores.postgres.claim import ClaimItem, to_json, to_like
from outlast.stores.postgres.liveness import LivenessObserver, ObservedWorker, ProcessEvidence
from outlast.stores.postgres.pipeline import Row, Rows
from outlast.stores.postgres.statement import Statement
from outlast.stores.postgres.worker_lease import PostgresLease
from outlast.stores.postgres.writer import Hints

FRESH = 0.05
LOOK_AFTER = 1.0
NUMBERS = count()  # tell this process's lock files apart, whatever its clock says

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
            self._access.server_clock,
            *(worker, limit, held, agents, version, lanes, most),
        )
        claims, next_at = await writer.submit(item)
        # Good until this process writes something: that may have made a lane ready.
        self._foreseen = (self._clock.monotonic(), writer.submitted, next_at)
        return list(claims)

    async def next_ready_at(self, after: int) -> int | None:
        """Answer from the claim just made, which brought the answer along, or ask."""
        writer, foreseen = self._access.parts().writer, self._foreseen
        # Used once: the next question is about a later time.
        self._foreseen = None
        if foreseen:
            looked_at, submitted, next_at = foreseen
            is_fresh = self._clock.monotonic() - looked_at < FRESH
            is_last = submitted == writer.submitted
            if is_fresh and is_last and (next_at is None or next_at > after):
                return next_at
        [(ready_at,)] = await self._access.ask("next_ready_at", {"after": after})
        return ready_at if ready_at is None else int(ready_at)

    async def find_unfinished(
        self, agents: Sequence[str], lanes: Sequence[str] | None, living: Sequence[str]
    ) -> Unfinished:
        params = {
            "agents": to_json(list(agents)),
            "lanes": None if lanes is None else to_json([to_like(name) for name in lanes]),
            "living": to_json(list(living)),
            "version": FORMAT,
            "limit": MOST_COUNTED + 1,
        }
        *rows, (_, _, _, now) = await self._access.ask("unfinished", params)
        oldest_at = min((ready_at for *_, ready_at in rows), default=None)
        is_whole = sum(found for _, _, found, _ in rows) <= MOST_COUNTED
        sessions = {agent: count for agent, count, *_ in rows}
        ask = {"agents": params["agents"], "limit": MOST_COUNTED}
        unserved = {str(row[0]): int(row[1]) for row in await self._access.ask("unserved", ask)}
        return Unfinished(sessions, oldest_at, now, is_whole, unserved)

    async def find_arrivals(
        self, heads: Sequence[tuple[str, str, int]]
    ) -> Sequence[tuple[str, str]]:
        rows = await self._access.ask(
            "find_arrivals", {"heads": msgspec.json.encode(heads).decode()}
        )
        return [(session, lane) for session, lane in rows]

    def listen(self, heard: Heard, session_id: str = EVERYTHING) -> Callable[[], None]:
        parts = self._access.parts()
        # Hints come on the connection that shows the signs; who only listens opens it as well.
        parts.heartbeat.want()
        return parts.listeners.add(heard, session_id)

    # Lives and deaths

    async def enlist(self, worker: WorkerInfo, lease: int) -> PostgresLease:
        parts = self._access.parts()
        if earlier := self._leases.pop(worker.worker, None):
            await earlier.let_go()
        # On another host the lock of a file would not tell.
        await self._check_name(worker.worker)
        # Signs come before the row: a registered worker without them would look dead.
        name = f"{os.getpid()}-{next(NUMBERS)}-{self._clock.token()}"
        wanted = worker.liveness_address
        evidence = ProcessEvidence(worker.worker, name, wanted, self._clock.now())
        try:
            heart = parts.heartbeat
            sign = await heart.show(worker.worker) if heart.is_possible else None
        except BaseException:
            evidence.remove()
            raise
        held = PostgresLease(
            worker.worker,
            lease,
            self._access.address,
            self._access.guard,
            self._clock,
            self._queries,
            parts.heartbeat,
            sign,
            evidence,
        )
        try:
            if sign is not None:
                await asyncio.to_thread(held.show)
            row = evidence.row(parts.heartbeat.descriptor)
            if worker.deployment:
                named = {"deployment": worker.deployment, "agents": to_json(list(worker.agents))}
                named["digests"] = msgspec.json.encode(worker.digests).decode()
                statement = self._queries["add_deployment"].bind(named)
                await parts.writer.submit(SingleStatement(statement))
            await parts.writer.submit(self._enlist(worker, lease, sign, row))
            if worker.deployment:
                await self._have_look_first(worker.deployment)
        except BaseException:
            await held.let_go()
            raise
        self._leases[worker.worker] = held
        return held

    async def _check_name(self, worker: str) -> None:
        params = {"worker": worker, "class": self._access.address.number}
        if await self._access.ask("find_living_worker", params):
            raise StoreUnavailable(
                f"a living worker has this name already ({worker}); choose another name",
                worker=worker,
            )

    def _enlist(
        self, info: WorkerInfo, length: int, sign: int | None, evidence: Mapping[str, str]
    ) -> SingleStatement:
        params: dict[str, Any] = {
            **evidence,
            "worker": info.worker,
            "sign": sign,
            "host": info.host,
            "pid": info.pid,
            "started_at": milliseconds_at(info.started_at),
            "version": info.version,
            "concurrency": info.concurrency,
            "agents": to_json(list(info.agents)),
            "lanes": to_json(list(info.lanes)),
            "at_once": to_json(info.at_once),
            "counters": info.counters,
            "lease": length,
            "arrived_since": milliseconds_at(info.arrived_since) if info.arrived_since else 0,
            "deployment": info.deployment,
        }
        return SingleStatement(self._queries["enlist"].bind(params))

    async def drain(self, worker: str) -> bool:
        statement = self._queries["drain"].bind({"worker": worker})
        item = SingleStatement(statement, {"": True})
        return bool(await self._access.parts().writer.submit(item))

    async def deployments(self) -> Sequence[DeploymentInfo]:
        rows = await self._access.ask("current_deployments", {})
        current = {str(agent): str(name) for agent, name in rows}
        found = await self._access.ask("deployments", {})
        return [describe_deployment(row, current) for row in found]

    async def promote(self, deployment: str) -> bool:
        statement = self._queries["promote"].bind({"name": deployment})
        item = SingleStatement(statement, {"": True})
        is_known = bool(await self._access.parts().writer.submit(item))
        # Not in one transaction: where this is not reached, it only happens later.
        await self._have_look_first(deployment)
        return is_known

    async def _have_look_first(self, deployment: str) -> None:
        statement = self._queries["have_look_first"].bind({"name": deployment})
        await self._access.parts().writer.submit(SingleStatement(statement, {"": True}))

    async def retire(self, deployment: str, to: str) -> int | None:
        statement = self._queries["retire"].bind({"name": deployment, "to": to})
        item = SingleStatement(statement, {"": True})
        [(moved,)] = await self._access.parts().writer.submit(item)
        await self._have_look_first(to)
        return moved if moved is None else int(moved)

    async def find_dead(self) -> Mapping[str, TakeoverEvidence]:
        """Ask the database unless it was asked lately; lock files cost nothing to look at."""
        readers = self._access.parts().readers
        if self.observer.is_due(LOOK_AFTER):
            self.observer.note(await readers.ask(self.observer.look()))
        found: dict[str, TakeoverEvidence] = {}
        for worker, evidence in self.observer.find_dead().items():
            # Of several observers one is told that the row was there: that one counts the death.
            if await self._remove(worker, evidence):
                found[worker] = evidence
            self.observer.forget(worker)
        return found

    async def workers(self) -> Sequence[WorkerInfo]:
        rows = await self._access.ask("living_workers", {"class": self._access.address.number})
        return [info for row in rows if (info := self._describe(row))]

    def _describe(self, row: Row) -> WorkerInfo | None:
        """Return the worker of a row, unless it is seen to be dead."""
        *known, address, machine, lock_name, lock_device, lock_inode, is_silent = row
        lock = (machine, lock_name, lock_device, lock_inode)
        if self.observer.is_over(ObservedWorker(row[0], False, *lock, address, is_silent)):
            return None
        return replace(
            describe_worker(known),
            liveness_address=address,
            evidence=(("lock_file",) if lock_name else ()) + (("port_refused",) if address else ()),
            silent=is_silent,
        )

    async def _remove(self, worker: str, evidence: TakeoverEvidence) -> bool:
        params = {"worker": worker, "evidence": evidence, **PAUSES}
        item = SingleStatement(self._queries["remove_worker"].bind(params), {"": True})
        [(is_ours,)] = await self._access.parts().writer.submit(item)
        return bool(is_ours)

    async def close(self) -> None:
        """Remove all signs of life of this store's workers. The rows stay, as after a crash."""
        leases, self._leases = list(self._leases.values()), {}
        for lease in leases:
            await lease.let_go()
        await self.observer.close()


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
    " lease_until held draining arrived_since deployment"
).split()


def describe_worker(row: Sequence[Any]) -> WorkerInfo:
    fields = dict(zip(WORKER, row, strict=True))
    named = {name: _decode_names(fields[name]) for name in ("agents", "lanes")}
    instants = {name: date_of(fields[name]) for name in ("started_at", "seen_at", "lease_until")}
    at_once = _decode_numbers(fields["at_once"])
    since = date_or_none(fields["arrived_since"])
    return WorkerInfo(**{**fields, **named, **instants, "at_once": at_once, "arrived_since": since})


def describe_deployment(row: Sequence[Any], current: Mapping[str, str]) -> DeploymentInfo:
    name, agents, began_at, workers, pins, digests = row
    served = _decode_names(agents)
    turns, runs, sessions, oldest_at = msgspec.json.decode(pins)
    return DeploymentInfo(
        name=name,
        agents=served,
        current=tuple(agent for agent in served if current.get(agent) == name),
        began_at=date_of(began_at),
        workers=workers,
        turns=turns,
        runs=runs,
        sessions=sessions,
        oldest_at=date_or_none(oldest_at),
        digests=msgspec.json.decode(digests, type=dict[str, str]),
    )
