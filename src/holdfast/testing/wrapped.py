"""A store that hands everything on to another: what faults are injected with.

Override what should go wrong. Nothing in production code knows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from holdfast.core.record import FORMAT
from holdfast.errors import HoldfastError
from holdfast.store import (
    NO_LIMITS,
    Admission,
    Claim,
    Commit,
    Committed,
    DeliveryInfo,
    Effect,
    LaneInfo,
    Lease,
    Loaded,
    Page,
    Permit,
    PermitInfo,
    Receipt,
    Refused,
    RequestInfo,
    SessionInfo,
    Store,
    Transaction,
    Wish,
    WorkerInfo,
)


class WrappedStore:
    """A `holdfast.store.Store` round another one."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def inner(self) -> Store:
        """The store that does the work; every call asks for it anew."""
        return self._store

    async def migrate(self) -> None:
        await self.inner.migrate()

    async def close(self) -> None:
        await self.inner.close()

    async def admit(self, admissions: Sequence[Admission]) -> Sequence[Receipt | HoldfastError]:
        return await self.inner.admit(admissions)

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        return await self.inner.enlist(worker, lease)

    async def find_dead(self) -> Sequence[str]:
        return await self.inner.find_dead()

    async def workers(self) -> Sequence[WorkerInfo]:
        return await self.inner.workers()

    async def drain(self, worker: str) -> bool:
        return await self.inner.drain(worker)

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
        return await self.inner.claim(worker, limit, held, agents, version, lanes, most)

    async def acquire(self, wishes: Sequence[Wish]) -> Sequence[Permit | Refused]:
        return await self.inner.acquire(wishes)

    async def permits(
        self, session_id: str | None = None, name: str | None = None, limit: int = 500
    ) -> Sequence[PermitInfo]:
        return await self.inner.permits(session_id, name, limit)

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.commit(commits)

    def transaction(self, limit: float = 5.0) -> AbstractAsyncContextManager[Transaction]:
        return self.inner.transaction(limit)

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        return await self.inner.load(session_id, lane, after)

    async def read(self, session_id: str, after: int, limit: int = 500) -> Page:
        return await self.inner.read(session_id, after, limit)

    async def read_back(self, session_id: str, before: int, limit: int = 50) -> Page:
        return await self.inner.read_back(session_id, before, limit)

    async def session(self, session_id: str) -> SessionInfo | None:
        return await self.inner.session(session_id)

    async def sessions(
        self,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[SessionInfo]:
        return await self.inner.sessions(
            tenant=tenant, agent=agent, status=status, before=before, limit=limit
        )

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
        return await self.inner.lanes(
            session_id=session_id,
            tenant=tenant,
            agent=agent,
            status=status,
            worker=worker,
            after=after,
            limit=limit,
        )

    async def delivery(self, delivery_id: str) -> DeliveryInfo | None:
        return await self.inner.delivery(delivery_id)

    async def deliveries(self, session_id: str) -> Sequence[DeliveryInfo]:
        return await self.inner.deliveries(session_id)

    async def request(self, request_id: str) -> RequestInfo | None:
        return await self.inner.request(request_id)

    async def requests(
        self, session_id: str | None = None, *, open_only: bool = True, limit: int = 500
    ) -> Sequence[RequestInfo]:
        return await self.inner.requests(session_id, open_only=open_only, limit=limit)

    async def find_token(self, tenant: str, token: str) -> str | None:
        return await self.inner.find_token(tenant, token)

    async def tokens(self, session_id: str) -> Sequence[tuple[str, bool]]:
        return await self.inner.tokens(session_id)

    async def effect(self, scope: str, key: str) -> Effect | None:
        return await self.inner.effect(scope, key)

    async def next_ready_at(self, after: int) -> int | None:
        return await self.inner.next_ready_at(after)

    def listen(
        self, heard: Callable[[str, bool], None], session_id: str = ""
    ) -> Callable[[], None]:
        return self.inner.listen(heard, session_id)
