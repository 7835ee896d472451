"""The store as one process reaches it: over a wire that is slow, breaks, and forgets to answer.

A request that was sent arrives even if its sender has died meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, TypeVar

from outlast.errors import OutlastError, StoreUnavailable
from outlast.store import (
    Admission,
    AdmissionReceipt,
    Claim,
    Commit,
    Committed,
    Document,
    EffectClaim,
    Lease,
    Loaded,
    LogPage,
    Permit,
    PermitRequest,
    Refused,
    RequestInfo,
    SessionInfo,
    Store,
    TakeoverEvidence,
    Transaction,
    WorkerInfo,
)
from outlast.store.clock import MeasuredStoreClock
from outlast.testing.simulation.clock import VirtualClock
from outlast.testing.simulation.fault_plan import FaultPlan
from outlast.testing.simulation.history import FaultInjected, History
from outlast.testing.simulation.loop import ProcessLife
from outlast.testing.wrapped_store import WrappedStore, WrappedTransaction

T = TypeVar("T")

SERVER = Context()
"""The database does its work outside all simulated processes."""


class SimulatedConnection(WrappedStore):
    """One process's way to the store."""

    def __init__(
        self,
        store: Store,
        life: ProcessLife,
        fault_plan: FaultPlan,
        history: History,
        clock: VirtualClock,
    ) -> None:
        super().__init__(store)
        self._server_clock = MeasuredStoreClock(clock)
        self.life = life
        self.renewals_fail = False
        self.is_cut = False
        self._has_enlisted = False
        self._fault_plan = fault_plan
        self._history = history

    async def close(self) -> None:
        """The store outlives this process."""

    # The wire

    async def _send(self, work: Callable[[], Awaitable[T]], fault: str = "") -> T:
        """Have the store do something, some time later, and hear of it later still."""
        if self.is_cut:
            raise asyncio.CancelledError
        if fault:
            self._note(fault)
        there, back = self._delay(), self._delay()

        async def serve() -> tuple[T, int]:
            await asyncio.sleep(there)
            if fault.endswith(("lost", "failed", "before commit")):
                raise StoreUnavailable("the connection was lost")
            result, time = await work(), self.inner.clock.date()
            if fault.startswith("crash"):
                self.life.stop()
            await asyncio.sleep(back)
            if fault.endswith("unacknowledged"):
                raise StoreUnavailable("the connection was lost before the answer came")
            return result, time

        asked_at = self._server_clock.asking()
        if fault == "crash before commit":
            self.life.stop()
        served = asyncio.get_running_loop().create_task(serve(), context=SERVER.copy())
        served.add_done_callback(heed)
        result, time = await asyncio.shield(served)
        self._server_clock.note(asked_at, time)
        return result

    def _delay(self) -> float:
        delay = self._fault_plan.between(0.0005, 0.005)
        if self._fault_plan.strikes("slow"):
            self._note("slow")
            delay += self._fault_plan.between(0.05, 1.0)
        if self._fault_plan.strikes("very slow"):
            self._note("very slow")
            delay += self._fault_plan.between(1.0, 20.0)
        return delay

    def _note(self, fault: str) -> None:
        self._history.note(FaultInjected, what=fault, whom=self.life.name)

    def _read_fault(self) -> str:
        return self._fault_plan.first(["read failed"])

    @property
    def clock(self) -> MeasuredStoreClock:
        """The store's time, as this process knows it from the answers that it got."""
        return self._server_clock

    # Requests

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        fault = self._fault_plan.first(["admission lost", "admission unacknowledged"])
        return await self._send(lambda: self.inner.log.admit(admissions), fault)

    async def claim(self, worker: str, limit: int, *args: Any, **options: Any) -> Sequence[Claim]:
        fault = self._fault_plan.first(["claim lost", "claim unacknowledged"])
        return await self._send(
            lambda: self.inner.work.claim(worker, limit, *args, **options), fault
        )

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        kinds = ["crash before commit", "crash after commit", "commit lost"]
        fault = self._fault_plan.first([*kinds, "commit unacknowledged"])
        return await self._send(lambda: self.inner.log.commit(commits), fault)

    @asynccontextmanager
    async def transaction(self, limit: float = 5.0) -> AsyncIterator[Transaction]:
        async with self.inner.log.transaction(limit) as inner:
            yield WiredTransaction(inner, self)

    async def run(self, statement: Callable[[], Awaitable[T]]) -> T:
        """Have a statement of a transaction run."""
        return await self._send(statement, self._fault_plan.first(["statement failed"]))

    async def conclude(self, commit: Callable[[], Awaitable[T]]) -> T:
        """Have a transaction end with a commit."""
        kinds = ["crash before commit", "crash after commit"]
        fault = self._fault_plan.first([*kinds, "transaction lost", "transaction unacknowledged"])
        return await self._send(commit, fault)

    async def acquire(self, requests: Sequence[PermitRequest]) -> Sequence[Permit | Refused]:
        kinds = ["crash after permit", "permit lost", "permit unacknowledged"]
        return await self._send(
            lambda: self.inner.limit.acquire(requests), self._fault_plan.first(kinds)
        )

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        return await self._send(
            lambda: self.inner.log.load(session_id, lane, after), self._read_fault()
        )

    async def read(
        self,
        session_id: str,
        after: int,
        limit: int = 500,
        *,
        large: bool = True,
        lane: str | None = None,
    ) -> LogPage:
        return await self._send(
            lambda: self.inner.log.read(session_id, after, limit, large=large, lane=lane),
            self._read_fault(),
        )

    async def session(self, session_id: str) -> SessionInfo | None:
        return await self._send(lambda: self.inner.listing.session(session_id), self._read_fault())

    async def request(self, request_id: str) -> RequestInfo | None:
        return await self._send(lambda: self.inner.listing.request(request_id), self._read_fault())

    async def effect(self, scope: str, key: str) -> EffectClaim | None:
        return await self._send(lambda: self.inner.log.effect(scope, key), self._read_fault())

    async def find_token(self, tenant: str, token: str, *, living: bool = True) -> str | None:
        return await self._send(
            lambda: self.inner.listing.find_token(tenant, token, living=living), self._read_fault()
        )

    async def put(
        self, document: Document, *, expected: int | None, lifetime: int | None = None
    ) -> bool:
        fault = self._fault_plan.first(["document lost", "document unacknowledged"])
        return await self._send(
            lambda: self.inner.document.put(document, expected=expected, lifetime=lifetime), fault
        )

    async def get(self, kind: str, tenant: str, name: str) -> Document | None:
        return await self._send(
            lambda: self.inner.document.get(kind, tenant, name), self._read_fault()
        )

    async def delete(self, document: Document) -> bool:
        return await self._send(lambda: self.inner.document.delete(document), self._read_fault())

    async def find_dead(self) -> Mapping[str, TakeoverEvidence]:
        return await self._send(lambda: self.inner.work.find_dead(), self._read_fault())

    async def resize(self, name: str, concurrency: int) -> int:
        fault = self._fault_plan.first(["permit lost", "permit unacknowledged"])
        return await self._send(lambda: self.inner.limit.resize(name, concurrency), fault)

    async def skip_stale(self, timeout: int, line: str = "") -> int:
        fault = self._read_fault()
        return await self._send(lambda: self.inner.limit.skip_stale(timeout, line), fault)

    async def find_arrivals(
        self, heads: Sequence[tuple[str, str, int]]
    ) -> Sequence[tuple[str, str]]:
        return await self._send(lambda: self.inner.work.find_arrivals(heads), self._read_fault())

    async def next_ready_at(self, after: int) -> int | None:
        return await self._send(lambda: self.inner.work.next_ready_at(after), self._read_fault())

    # Wake-ups and leases

    def listen(
        self, heard: Callable[[str, bool], None], session_id: str = ""
    ) -> Callable[[], None]:
        def hear(written: str, arrived: bool) -> None:
            for delay in self._wake_ups():
                loop.call_later(delay, heard, written, arrived, context=context.copy())

        loop, context = asyncio.get_running_loop(), self.life.context()
        return self.inner.work.listen(hear, session_id)

    def _wake_ups(self) -> list[float]:
        """Return after how long a wake-up comes, each time that it does."""
        if self._fault_plan.strikes("wake-up lost"):
            self._note("wake-up lost")
            return []
        delays = [self._fault_plan.between(0.0, 0.005)]
        if self._fault_plan.strikes("wake-up late"):
            self._note("wake-up late")
            delays = [self._fault_plan.between(0.05, 3.0)]
        if self._fault_plan.strikes("wake-up repeated"):
            self._note("wake-up repeated")
            delays.append(self._fault_plan.between(0.0, 3.0))
        return delays

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        fault = self._fault_plan.first(["enlisting failed"]) if self._has_enlisted else ""
        found = await self._send(lambda: self.inner.work.enlist(worker, lease), fault)
        self._has_enlisted = True
        return WiredLease(found, self)

    def check_renewal(self) -> None:
        """Raise if a lease cannot be renewed now."""
        if self.is_cut or self.renewals_fail:
            raise StoreUnavailable("the connection was lost")
        if self._fault_plan.strikes("renewal failed"):
            self._note("renewal failed")
            raise StoreUnavailable("the connection was lost")


class WiredTransaction(WrappedTransaction):
    """A transaction whose statements go over the wire."""

    def __init__(self, transaction: Transaction, connection: SimulatedConnection) -> None:
        super().__init__(transaction)
        self._connection = connection

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        return await self._connection.run(lambda: self.inner.execute(sql, params))

    async def commit(self, commit: Commit) -> Committed | Refused:
        return await self._connection.conclude(lambda: self.inner.commit(commit))


class WiredLease:
    """A lease that is renewed over the wire."""

    def __init__(self, lease: Lease, connection: SimulatedConnection) -> None:
        self._lease = lease
        self._connection = connection

    def renew(self, counters: str = "") -> Any:
        self._connection.check_renewal()
        return self._lease.renew(counters)

    def release(self) -> None:
        self._connection.check_renewal()
        self._lease.release()


def heed(task: asyncio.Task[Any]) -> None:
    """Retrieve a request's result, since its sender may be gone."""
    if not task.cancelled():
        task.exception()
