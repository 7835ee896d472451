"""Wrappers that hand everything on to another store: tests inject faults with them.

Each topic has a wrapper of its own; `WrappedStore` is all eight. Override the method that should go
wrong. Nothing in production code knows of it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from outlast.core.amount import BudgetKey, BudgetState, BudgetTerms
from outlast.core.record import FORMAT
from outlast.core.usage import TreeUsage, UsageRow
from outlast.errors import OutlastError
from outlast.store import (
    NO_LIMITS,
    Admission,
    AdmissionReceipt,
    BudgetInfo,
    BudgetMismatch,
    BudgetStore,
    BudgetUse,
    Claim,
    Commit,
    Committed,
    DeadLetter,
    DeliveryInfo,
    DeploymentInfo,
    Document,
    DocumentStore,
    EffectClaim,
    FailureFilter,
    LaneInfo,
    Lease,
    LimitStore,
    LineInfo,
    ListingStore,
    Loaded,
    LogPage,
    LogStore,
    OpenFilter,
    OpenLane,
    OutboxCursor,
    OutboxStore,
    Permit,
    PermitInfo,
    PermitRequest,
    Pin,
    Refused,
    RequestInfo,
    SessionInfo,
    Store,
    StoreClock,
    StoreCounts,
    TakeoverEvidence,
    Transaction,
    Unfinished,
    UsageFilter,
    UsageKey,
    UsageLine,
    UsageStore,
    WorkerInfo,
    WorkStore,
)
from outlast.store.listing import SessionKind


class Wrapper:
    """Knows the store that does the work."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def inner(self) -> Store:
        """The store that does the work; every call asks for it anew."""
        return self._store


class WrappedLog(Wrapper):
    """An `outlast.store.LogStore` that hands on to the one of another store."""

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        return await self.inner.log.admit(admissions)

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit(commits)

    def transaction(self, limit: float = 5.0) -> AbstractAsyncContextManager[Transaction]:
        return self.inner.log.transaction(limit)

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        return await self.inner.log.load(session_id, lane, after)

    async def read(
        self,
        session_id: str,
        after: int,
        limit: int = 500,
        *,
        large: bool = True,
        lane: str | None = None,
    ) -> LogPage:
        return await self.inner.log.read(session_id, after, limit, large=large, lane=lane)

    async def read_back(self, session_id: str, before: int, limit: int = 50) -> LogPage:
        return await self.inner.log.read_back(session_id, before, limit)

    async def effect(self, scope: str, key: str) -> EffectClaim | None:
        return await self.inner.log.effect(scope, key)

    async def erase(self, session_id: str) -> bool:
        return await self.inner.log.erase(session_id)

    async def drop_snapshots(self, session_id: str) -> None:
        await self.inner.log.drop_snapshots(session_id)

    async def find_orphans(self, limit: int = 100) -> Sequence[str]:
        return await self.inner.log.find_orphans(limit)


class WrappedWork(Wrapper):
    """An `outlast.store.WorkStore` that hands on to the one of another store."""

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        return await self.inner.work.enlist(worker, lease)

    async def find_dead(self) -> Mapping[str, TakeoverEvidence]:
        return await self.inner.work.find_dead()

    async def workers(self) -> Sequence[WorkerInfo]:
        return await self.inner.work.workers()

    async def deployments(self) -> Sequence[DeploymentInfo]:
        return await self.inner.work.deployments()

    async def promote(self, deployment: str) -> bool:
        return await self.inner.work.promote(deployment)

    async def retire(self, deployment: str, to: str) -> int | None:
        return await self.inner.work.retire(deployment, to)

    async def drain(self, worker: str) -> bool:
        return await self.inner.work.drain(worker)

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
        return await self.inner.work.claim(worker, limit, held, agents, version, lanes, most)

    async def find_arrivals(
        self, heads: Sequence[tuple[str, str, int]]
    ) -> Sequence[tuple[str, str]]:
        return await self.inner.work.find_arrivals(heads)

    async def find_unfinished(
        self, agents: Sequence[str], lanes: Sequence[str] | None, living: Sequence[str]
    ) -> Unfinished:
        return await self.inner.work.find_unfinished(agents, lanes, living)

    async def next_ready_at(self, after: int) -> int | None:
        return await self.inner.work.next_ready_at(after)

    def listen(
        self, heard: Callable[[str, bool], None], session_id: str = ""
    ) -> Callable[[], None]:
        return self.inner.work.listen(heard, session_id)


class WrappedListing(Wrapper):
    """An `outlast.store.ListingStore` that hands on to the one of another store."""

    async def pins(self, session_id: str) -> Mapping[str, Pin]:
        return await self.inner.listing.pins(session_id)

    async def session(self, session_id: str) -> SessionInfo | None:
        return await self.inner.listing.session(session_id)

    async def sessions(
        self,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        parent: str | None = None,
        tags: Mapping[str, str] | None = None,
        failed: FailureFilter | None = None,
        kind: SessionKind | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[SessionInfo]:
        return await self.inner.listing.sessions(
            tenant=tenant,
            agent=agent,
            status=status,
            parent=parent,
            tags=tags,
            failed=failed,
            kind=kind,
            before=before,
            limit=limit,
        )

    async def lanes(
        self,
        *,
        session_id: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        worker: str | None = None,
        failed: FailureFilter | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 50,
    ) -> Sequence[LaneInfo]:
        return await self.inner.listing.lanes(
            session_id=session_id,
            tenant=tenant,
            agent=agent,
            status=status,
            worker=worker,
            failed=failed,
            after=after,
            limit=limit,
        )

    async def past_failures(
        self, failed: FailureFilter, *, tenant: str | None = None, agent: str | None = None
    ) -> int:
        return await self.inner.listing.past_failures(failed, tenant=tenant, agent=agent)

    async def open_lanes(
        self,
        sought: OpenFilter,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 50,
    ) -> Sequence[OpenLane]:
        return await self.inner.listing.open_lanes(
            sought, tenant=tenant, agent=agent, after=after, limit=limit
        )

    async def delivery(self, delivery_id: str) -> DeliveryInfo | None:
        return await self.inner.listing.delivery(delivery_id)

    async def deliveries(self, session_id: str) -> Sequence[DeliveryInfo]:
        return await self.inner.listing.deliveries(session_id)

    async def request(self, request_id: str) -> RequestInfo | None:
        return await self.inner.listing.request(request_id)

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
        return await self.inner.listing.requests(
            session_id,
            tenant=tenant,
            agent=agent,
            kinds=kinds,
            after=after,
            open_only=open_only,
            limit=limit,
        )

    async def find_token(self, tenant: str, token: str, *, living: bool = True) -> str | None:
        return await self.inner.listing.find_token(tenant, token, living=living)

    async def tokens(self, session_id: str) -> Sequence[tuple[str, bool]]:
        return await self.inner.listing.tokens(session_id)

    async def census(self) -> StoreCounts:
        return await self.inner.listing.census()


class WrappedLimit(Wrapper):
    """An `outlast.store.LimitStore` that hands on to the one of another store."""

    async def acquire(self, requests: Sequence[PermitRequest]) -> Sequence[Permit | Refused]:
        return await self.inner.limit.acquire(requests)

    async def resize(self, name: str, concurrency: int) -> int:
        return await self.inner.limit.resize(name, concurrency)

    async def skip_stale(self, timeout: int, line: str = "") -> int:
        return await self.inner.limit.skip_stale(timeout, line)

    async def permits(
        self, session_id: str | None = None, name: str | None = None, limit: int = 500
    ) -> Sequence[PermitInfo]:
        return await self.inner.limit.permits(session_id, name, limit)

    async def lines(self, start: str) -> Sequence[LineInfo]:
        return await self.inner.limit.lines(start)


class WrappedOutbox(Wrapper):
    """An `outlast.store.OutboxStore` that hands on to the one of another store."""

    async def take(self, limit: int, hold: int) -> Sequence[OutboxCursor]:
        return await self.inner.outbox.take(limit, hold)

    async def settle(
        self,
        cursor: OutboxCursor,
        *,
        position: int,
        again_at: int | None,
        tries: int = 0,
        error: str = "",
        dead: Sequence[DeadLetter] = (),
    ) -> bool:
        return await self.inner.outbox.settle(
            cursor, position=position, again_at=again_at, tries=tries, error=error, dead=dead
        )

    async def cursors(
        self,
        session_id: str | None = None,
        *,
        tenant: str | None = None,
        failing_only: bool = False,
        limit: int = 100,
    ) -> Sequence[OutboxCursor]:
        return await self.inner.outbox.cursors(
            session_id, tenant=tenant, failing_only=failing_only, limit=limit
        )

    async def next_due_at(self) -> int | None:
        return await self.inner.outbox.next_due_at()

    async def dead_letters(
        self, *, tenant: str | None = None, session_id: str | None = None, limit: int = 100
    ) -> Sequence[DeadLetter]:
        return await self.inner.outbox.dead_letters(
            tenant=tenant, session_id=session_id, limit=limit
        )


class WrappedDocument(Wrapper):
    """An `outlast.store.DocumentStore` that hands on to the one of another store."""

    async def get(self, kind: str, tenant: str, name: str) -> Document | None:
        return await self.inner.document.get(kind, tenant, name)

    async def find(self, kind: str, name: str) -> Document | None:
        return await self.inner.document.find(kind, name)

    async def scan(
        self, kind: str, *, tenant: str | None = None, prefix: str = ""
    ) -> Sequence[Document]:
        return await self.inner.document.scan(kind, tenant=tenant, prefix=prefix)

    async def put(
        self, document: Document, *, expected: int | None, lifetime: int | None = None
    ) -> bool:
        return await self.inner.document.put(document, expected=expected, lifetime=lifetime)

    async def delete(self, document: Document) -> bool:
        return await self.inner.document.delete(document)


class WrappedUsage(Wrapper):
    """An `outlast.store.UsageStore` that hands on to the one of another store."""

    async def by(
        self,
        key: UsageKey | None,
        wanted: UsageFilter,
        *,
        after: str | None = None,
        limit: int = 50,
    ) -> Sequence[UsageLine]:
        return await self.inner.usage.by(key, wanted, after=after, limit=limit)

    async def tree(self, session_id: str) -> TreeUsage:
        return await self.inner.usage.tree(session_id)

    async def rows(self, session_id: str) -> Sequence[UsageRow]:
        return await self.inner.usage.rows(session_id)


class WrappedBudget(Wrapper):
    """An `outlast.store.BudgetStore` that hands on to the one of another store."""

    async def newest_budget(self) -> int:
        return await self.inner.budget.newest_budget()

    async def find_budgets(self, tenant: str, keys: Sequence[BudgetKey]) -> Sequence[BudgetState]:
        return await self.inner.budget.find_budgets(tenant, keys)

    async def set_budget(
        self, tenant: str, key: BudgetKey, terms: BudgetTerms | None, *, expected: int | None
    ) -> BudgetInfo | None:
        return await self.inner.budget.set_budget(tenant, key, terms, expected=expected)

    async def list_budgets(
        self, tenant: str | None = None, *, after: BudgetInfo | None = None, limit: int = 100
    ) -> Sequence[BudgetInfo]:
        return await self.inner.budget.list_budgets(tenant, after=after, limit=limit)

    async def budget_uses(self, session_id: str) -> Sequence[BudgetUse]:
        return await self.inner.budget.budget_uses(session_id)

    async def budget_mismatches(self) -> Sequence[BudgetMismatch]:
        return await self.inner.budget.budget_mismatches()

    async def balance_budgets(self) -> int:
        return await self.inner.budget.balance_budgets()


class WrappedStore(
    WrappedLog,
    WrappedWork,
    WrappedListing,
    WrappedLimit,
    WrappedOutbox,
    WrappedDocument,
    WrappedUsage,
    WrappedBudget,
):
    """An `outlast.store.Store` round another one.

    It is its own eight topics, so that one subclass can override methods of several of them and
    keep what it counts in one place. No name stands in two topics.
    """

    @property
    def log(self) -> LogStore:
        return self

    @property
    def work(self) -> WorkStore:
        return self

    @property
    def listing(self) -> ListingStore:
        return self

    @property
    def limit(self) -> LimitStore:
        return self

    @property
    def outbox(self) -> OutboxStore:
        return self

    @property
    def document(self) -> DocumentStore:
        return self

    @property
    def usage(self) -> UsageStore:
        return self

    @property
    def budget(self) -> BudgetStore:
        return self

    @property
    def clock(self) -> StoreClock:
        return self.inner.clock

    async def migrate(self) -> None:
        await self.inner.migrate()

    async def close(self) -> None:
        await self.inner.close()

    def counts(self) -> Mapping[str, int]:
        return self.inner.counts()


class WrappedTransaction:
    """A `outlast.store.Transaction` round another one."""

    def __init__(self, transaction: Transaction) -> None:
        self.inner = transaction

    @property
    def raw(self) -> Any:
        return self.inner.raw

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        return await self.inner.execute(sql, params)

    async def fetch(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return await self.inner.fetch(sql, params)

    async def fetch_one(self, sql: str, params: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        return await self.inner.fetch_one(sql, params)

    async def commit(self, commit: Commit) -> Committed | Refused:
        return await self.inner.commit(commit)
