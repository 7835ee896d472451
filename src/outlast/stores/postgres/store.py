"""The PostgreSQL store: the contract's methods, each handed to the part that does it.

One connection writes, two read; a lease has one of its own, and one is the process's alone.
All of it lives on the event loop that opened the store. What each method does is in the
module of its name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from outlast.clock import Clock
from outlast.core.codec import Packer
from outlast.core.record import FORMAT
from outlast.errors import InvalidInput, OutlastError, StoreUnavailable
from outlast.store import (
    NO_LIMITS,
    Admission,
    AdmissionReceipt,
    Claim,
    Commit,
    Committed,
    DeadLetter,
    DeliveryInfo,
    EffectClaim,
    KeyInfo,
    LaneInfo,
    Lease,
    Loaded,
    LogPage,
    OutboxCursor,
    Permit,
    PermitInfo,
    PermitRequest,
    Refused,
    RequestInfo,
    ScheduleInfo,
    SessionInfo,
    StoreCounts,
    StoredSecret,
    Transaction,
    WorkerInfo,
)
from outlast.stores.listener import EVERYTHING, Heard
from outlast.stores.postgres.admission import AdmissionItem
from outlast.stores.postgres.claim import ClaimItem, to_json
from outlast.stores.postgres.fork import check_process
from outlast.stores.postgres.limit import PermitItem
from outlast.stores.postgres.migration import look, migrate
from outlast.stores.postgres.parts import StoreParts
from outlast.stores.postgres.statement import load_queries
from outlast.stores.postgres.transaction import OpenTransaction, PostgresTransaction
from outlast.stores.postgres.url import read_url

FRESH = 0.05


class PostgresStore:
    """A `outlast.store.Store` in a schema. Nothing is connected to before `migrate()`."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._place = read_url(url)
        self._clock = clock or Clock()
        self._pid = os.getpid()
        self._queries = load_queries(self._place.schema)
        self._packer = Packer()
        self._opening = asyncio.Lock()
        self._open: StoreParts | None = None
        self._foreseen: tuple[float, int, int | None] | None = None

    def __repr__(self) -> str:
        return f"PostgresStore({self._place.label})"

    # Life

    async def migrate(self) -> None:
        check_process(self._pid)
        async with self._opening:
            if self._open is None:
                await migrate(self._place, self._clock, self._queries)
                self._open = StoreParts(self._place, self._clock, self._queries, self._packer)

    async def is_there(self) -> bool:
        """Whether the schema has been made; looking makes nothing."""
        return await look(self._place, self._clock, self._queries) > 0

    async def close(self) -> None:
        check_process(self._pid)
        async with self._opening:
            desk, self._open = self._open, None
            if desk:
                await desk.close()

    @property
    def _desk(self) -> StoreParts:
        check_process(self._pid)
        if self._open is None:
            raise StoreUnavailable(
                "this store is not open: use the app inside `async with app`, or open() it first;"
                " a store of your own is opened by migrate()"
            )
        if self._open.loop is not asyncio.get_running_loop():
            raise InvalidInput("this store was opened on another event loop; open one on each")
        return self._open

    # Arrivals

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        writer = self._desk.writer
        entries = [self._try_entry(admission) for admission in admissions]
        futures = [writer.submit(entry) for entry in entries if isinstance(entry, AdmissionItem)]
        results = iter(await asyncio.gather(*futures))
        return [next(results) if isinstance(e, AdmissionItem) else e for e in entries]

    def _try_entry(self, admission: Admission) -> AdmissionItem | OutlastError:
        try:
            return AdmissionItem(admission, self._packer)
        except OutlastError as error:
            return error

    # Ownership

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        return await self._desk.registry.enlist(worker, lease)

    async def find_dead(self) -> Sequence[str]:
        return await self._desk.registry.find_dead()

    async def workers(self) -> Sequence[WorkerInfo]:
        return await self._desk.registry.living()

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
        desk = self._desk
        errand = ClaimItem(
            self._queries,
            desk.registry.observer,
            *(worker, limit, held, agents, version, lanes, most),
        )
        claims, next_at = await desk.writer.submit(errand)
        self._foreseen = (self._clock.monotonic(), desk.writer.submitted, next_at)
        return list(claims)

    async def drain(self, worker: str) -> bool:
        return await self._desk.registry.drain(worker)

    # Limits

    async def acquire(self, wishes: Sequence[PermitRequest]) -> Sequence[Permit | Refused]:
        found: list[Permit | Refused]
        found = await self._desk.writer.submit(PermitItem(self._queries["acquire"], wishes))
        return found

    async def permits(
        self, session_id: str | None = None, name: str | None = None, limit: int = 500
    ) -> Sequence[PermitInfo]:
        return await self._desk.listing.permits(session_id, name, limit)

    async def pass_by(self, patience: int) -> int:
        return await self._desk.usher.pass_by(patience)

    # Commits

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self._desk.committer.commit(commits)

    def transaction(self, limit: float = 5.0) -> AbstractAsyncContextManager[Transaction]:
        return OpenTransaction(
            lambda: PostgresTransaction(self._desk.rooms, self._desk.committer, limit)
        )

    # Reading

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        return await self._desk.reading.load(session_id, lane, after)

    async def read(self, session_id: str, after: int, limit: int = 500) -> LogPage:
        return await self._desk.reading.read(session_id, after, limit)

    async def read_back(self, session_id: str, before: int, limit: int = 50) -> LogPage:
        return await self._desk.reading.read_back(session_id, before, limit)

    async def session(self, session_id: str) -> SessionInfo | None:
        return await self._desk.listing.session(session_id)

    async def sessions(
        self,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        parent: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[SessionInfo]:
        filters: dict[str, Any] = {
            "tenant": tenant,
            "agent": agent,
            "status": status,
            "parent": parent,
            "before": before,
            "limit": limit,
        }
        return await self._desk.listing.sessions(filters)

    async def lanes(
        self,
        *,
        session_id: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        worker: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 50,
    ) -> Sequence[LaneInfo]:
        after_session, after_lane = after or (None, None)
        filters: dict[str, Any] = {
            "session_id": session_id,
            "tenant": tenant,
            "agent": agent,
            "status": status,
            "worker": worker,
            "after": after_session,
            "after_lane": after_lane,
            "limit": limit,
        }
        return await self._desk.listing.lanes(filters)

    async def delivery(self, delivery_id: str) -> DeliveryInfo | None:
        return await self._desk.listing.delivery(delivery_id)

    async def deliveries(self, session_id: str) -> Sequence[DeliveryInfo]:
        return await self._desk.listing.deliveries(session_id)

    async def request(self, request_id: str) -> RequestInfo | None:
        return await self._desk.listing.request(request_id)

    async def requests(
        self,
        session_id: str | None = None,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        kinds: Sequence[str] | None = None,
        after: str | None = None,
        open_only: bool = True,
        limit: int = 500,
    ) -> Sequence[RequestInfo]:
        filters: dict[str, Any] = {
            "session_id": session_id,
            "tenant": tenant,
            "agent": agent,
            "kinds": None if kinds is None else to_json(list(kinds)),
            "after": after,
            "open_only": open_only,
            "limit": limit,
        }
        return await self._desk.listing.requests(filters)

    async def find_token(self, tenant: str, token: str, *, living: bool = True) -> str | None:
        return await self._desk.listing.find_token(tenant, token, living=living)

    async def tokens(self, session_id: str) -> Sequence[tuple[str, bool]]:
        return await self._desk.listing.tokens(session_id)

    async def effect(self, scope: str, key: str) -> EffectClaim | None:
        return await self._desk.listing.effect(scope, key)

    def counts(self) -> Mapping[str, int]:
        return self._open.writer.counts if self._open else {}

    async def find_arrivals(
        self, heads: Sequence[tuple[str, str, int]]
    ) -> Sequence[tuple[str, str]]:
        return await self._desk.listing.find_arrivals(heads)

    async def next_ready_at(self, after: int) -> int | None:
        """Answer from the claim just made, which has looked, or look."""
        desk, foreseen = self._desk, self._foreseen
        self._foreseen = None
        if foreseen:
            looked_at, submitted, next_at = foreseen
            is_fresh = self._clock.monotonic() - looked_at < FRESH
            is_last = submitted == desk.writer.submitted
            if is_fresh and is_last and (next_at is None or next_at > after):
                return next_at
        return await desk.listing.next_ready_at(after)

    async def census(self) -> StoreCounts:
        return await self._desk.listing.census()

    # Erasure

    async def erase(self, session_id: str) -> bool:
        return await self._desk.eraser.erase(session_id)

    async def doomed(self, limit: int = 100) -> Sequence[str]:
        return await self._desk.listing.doomed(limit)

    # Keys

    async def add_key(self, key: KeyInfo) -> None:
        await self._desk.keys.add(key)

    async def key(self, key_id: str) -> KeyInfo | None:
        return await self._desk.keys.find(key_id)

    async def keys(self, tenant: str | None = None) -> Sequence[KeyInfo]:
        return await self._desk.keys.listing(tenant)

    async def revoke_key(self, key_id: str, at: int) -> bool:
        return await self._desk.keys.revoke(key_id, at)

    # Secrets, and holds of names

    async def keep_secret(self, secret: StoredSecret, *, expected: int | None) -> bool:
        return await self._desk.vault.keep(secret, expected)

    async def secret(self, tenant: str, name: str) -> StoredSecret | None:
        return await self._desk.vault.find(tenant, name)

    async def drop_secret(self, tenant: str, name: str) -> bool:
        return await self._desk.vault.drop(tenant, name)

    async def hold(self, name: str, holder: str, length: int) -> bool:
        return await self._desk.vault.hold(name, holder, length)

    async def let_go(self, name: str, holder: str) -> None:
        await self._desk.vault.let_go(name, holder)

    # Schedules

    async def arm_schedule(self, schedule: ScheduleInfo) -> None:
        await self._desk.schedules.arm(schedule)

    async def schedules(self) -> Sequence[ScheduleInfo]:
        return await self._desk.schedules.listing()

    async def advance_schedule(
        self, name: str, seen: int | None, *, next_at: int | None, fired_at: int, session_id: str
    ) -> bool:
        step = {
            "name": name,
            "seen": seen,
            "next_at": next_at,
            "fired_at": fired_at,
            "session_id": session_id,
        }
        return await self._desk.schedules.advance(step)

    async def pause_schedule(self, name: str, paused: bool) -> bool:
        return await self._desk.schedules.pause(name, paused)

    async def drop_schedule(self, name: str) -> bool:
        return await self._desk.schedules.drop(name)

    # Outbox cursors

    async def take_cursors(self, limit: int, hold: int) -> Sequence[OutboxCursor]:
        return await self._desk.cursors.take(limit, hold)

    async def settle_cursor(
        self,
        cursor: OutboxCursor,
        *,
        position: int,
        again_at: int | None,
        tries: int = 0,
        error: str = "",
        dead: Sequence[DeadLetter] = (),
    ) -> bool:
        changes = {"position": position, "again_at": again_at, "tries": tries, "error": error}
        return await self._desk.cursors.settle(cursor, changes, dead)

    async def cursors(
        self,
        session_id: str | None = None,
        *,
        tenant: str | None = None,
        failing_only: bool = False,
        limit: int = 100,
    ) -> Sequence[OutboxCursor]:
        filters: dict[str, Any] = {
            "session_id": session_id,
            "tenant": tenant,
            "failing_only": failing_only,
            "limit": limit,
        }
        return await self._desk.cursors.listing(filters)

    async def next_due_at(self) -> int | None:
        return await self._desk.cursors.next_due_at()

    async def dead_letters(
        self, *, tenant: str | None = None, session_id: str | None = None, limit: int = 100
    ) -> Sequence[DeadLetter]:
        filters: dict[str, Any] = {"tenant": tenant, "session_id": session_id, "limit": limit}
        return await self._desk.cursors.dead_letters(filters)

    # Wake-ups

    def listen(self, heard: Heard, session_id: str = EVERYTHING) -> Callable[[], None]:
        desk = self._desk
        desk.direct.want()
        return desk.listeners.add(heard, session_id)
