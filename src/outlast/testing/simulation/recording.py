"""Wraps the store itself and notes what that says it has done, when it did it.

Stands behind the faults (`connection.py`), so a note is true even where the answer was lost on its
way to the worker.
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from outlast.clock import Clock
from outlast.core import record as r
from outlast.core.event import type_of
from outlast.core.name import OF_QUEUE
from outlast.errors import OutlastError
from outlast.store import (
    Admission,
    AdmissionReceipt,
    Claim,
    Commit,
    Committed,
    Lease,
    Permit,
    PermitRequest,
    Refused,
    Store,
    Transaction,
    WorkerInfo,
)
from outlast.testing.simulation.history import (
    ArrivalAdmitted,
    CallPermitted,
    CallQueued,
    CommitWritten,
    History,
    LaneClaimed,
    LaneGivenOut,
    LanePinned,
    PermitKept,
)
from outlast.testing.wrapped_store import WrappedStore, WrappedTransaction

AWAY = (r.ProviderUnavailable, r.ProviderStillUnavailable)
AT_WORK = (r.ModelStarted, r.TurnCompleted, r.TurnFailed, r.TurnCancelled)


class RecordingStore(WrappedStore):
    """Notes what a store says it has done, at the instant at which it did it."""

    def __init__(self, store: Store, history: History, clock: Clock) -> None:
        super().__init__(store)
        self._history = history
        self._clock = clock
        self._waiting: dict[tuple[str, str], str] = {}
        self._deployments: dict[str, str] = {}

    async def close(self) -> None:
        """Others use it."""

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        results = await self.inner.log.admit(admissions)
        for admission, result in zip(admissions, results, strict=True):
            if isinstance(result, AdmissionReceipt):
                self._history.note(
                    ArrivalAdmitted,
                    session_id=result.session_id,
                    lane=result.lane,
                    delivery_id=result.delivery_id,
                    kind=admission.kind,
                    offset=result.offset,
                    duplicate=result.duplicate,
                    size=len(repr(admission.records)),
                )
        return results

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        self._deployments[worker.worker] = worker.deployment
        return await self.inner.work.enlist(worker, lease)

    async def claim(self, worker: str, limit: int, *args: Any, **options: Any) -> Sequence[Claim]:
        claims = await self.inner.work.claim(worker, limit, *args, **options)
        limited = any(claim.agent in options.get("most", {}) for claim in claims)
        at_work = await self._count_lanes() if limited else Counter()
        for claim in claims:
            self._history.note(
                LaneClaimed,
                worker=worker,
                session_id=claim.session_id,
                lane=claim.lane,
                fence=claim.fence,
                at_work=at_work[claim.agent],
            )
        await self._note_deployments(worker, claims)
        return claims

    async def _note_deployments(self, worker: str, claims: Sequence[Claim]) -> None:
        """Note by which deployment lanes were taken, and what they were pinned to."""
        known = await self.inner.work.deployments() if claims else ()
        if not known:
            return
        workers = await self.inner.work.workers()
        tended = {(w.deployment, a) for w in workers if not w.draining for a in w.agents}
        current = {agent: each.name for each in known for agent in each.current}
        for claim in claims:
            lanes = await self.inner.listing.lanes(session_id=claim.session_id, limit=1000)
            [lane] = [lane for lane in lanes if lane.lane == claim.lane]
            deployment = self._deployments[worker]
            self._history.note(
                LaneGivenOut,
                deployment=deployment,
                session_id=claim.session_id,
                lane=claim.lane,
                in_turn=bool(lane.turn),
                pinned_to=claim.pin.deployment,
                stays=claim.pin.stays,
                is_tended=(claim.pin.deployment, claim.agent) in tended,
                is_current=current.get(claim.agent) == deployment,
            )

    async def _count_lanes(self) -> Counter[str]:
        """Count the lanes that living workers have, by agent."""
        living = {info.worker for info in await self.inner.work.workers()}
        lanes = await self.inner.listing.lanes(limit=10_000)
        return Counter(lane.agent for lane in lanes if lane.worker in living)

    async def acquire(self, requests: Sequence[PermitRequest]) -> Sequence[Permit | Refused]:
        results = await self.inner.limit.acquire(requests)
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, Permit) and result.granted:
                self._history.note(
                    CallPermitted,
                    session_id=request.session_id,
                    call_id=request.call_id,
                    bounds=request.bounds,
                    clock=self._clock.now(),
                )
            elif isinstance(result, Permit):
                self._history.note(
                    CallQueued,
                    session_id=request.session_id,
                    call_id=request.call_id,
                    bounds=request.bounds,
                    held=await self._places_of(request),
                )
        return results

    async def _places_of(self, request: PermitRequest) -> tuple[str, ...]:
        """Return in which of a queue's lines a turn has its place, though it waits in another."""
        if len(request.bounds) < 2 or not request.bounds[0].name.startswith(OF_QUEUE):
            return ()
        rows = await self.inner.limit.permits(request.session_id)
        return tuple(row.name for row in rows if row.held and row.call_id == request.call_id)

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        results = await self.inner.log.commit(commits)
        for commit, result in zip(commits, results, strict=True):
            if isinstance(result, Committed):
                self.note(commit, result)
                await self._note_kept(commit)
                if commit.pin and commit.pin.deployment:
                    await self._note_pin(commit)
        return results

    async def _note_pin(self, commit: Commit) -> None:
        pins = await self.inner.listing.pins(commit.session_id)
        if pin := pins.get(commit.lane):
            self._history.note(
                LanePinned, session_id=commit.session_id, lane=commit.lane, to=pin.deployment
            )

    async def _note_kept(self, commit: Commit) -> None:
        """Look which permits are held by a model call that waits for its provider.

        It may hold its place in the provider's line: no other call has a use for that.
        """
        place = (commit.session_id, commit.lane)
        parks = commit.release
        for e in commit.records:
            if isinstance(e, AWAY):
                self._waiting[place], parks = e.call_id, True
            elif isinstance(e, AT_WORK):
                self._waiting.pop(place, None)
        if not (parks and place in self._waiting):
            return
        for row in await self.inner.limit.permits(commit.session_id):
            of_user = not row.name.startswith("provider:")
            if row.held and of_user and row.call_id == self._waiting[place]:
                self._history.note(
                    PermitKept, session_id=row.session_id, call_id=row.call_id, name=row.name
                )

    @asynccontextmanager
    async def transaction(self, limit: float = 5.0) -> AsyncIterator[Transaction]:
        async with self.inner.log.transaction(limit) as inner:
            yield RecordedTransaction(inner, self)

    def note(self, commit: Commit, result: Committed) -> None:
        """Note that a commit was written."""
        self._history.note(
            CommitWritten,
            worker=commit.worker,
            session_id=commit.session_id,
            lane=commit.lane,
            fence=commit.fence,
            commit=commit.number,
            first_offset=result.first_offset,
            records=tuple(type_of(record) for record in commit.records),
            size=len(commit.body),
            parked=commit.ready_at is None
            or commit.status in ("waiting", "sleeping", "idle", "failed"),
            released=commit.release,
            frees=tuple(sorted(commit.frees)),
            clock=self._clock.now(),
        )


class RecordedTransaction(WrappedTransaction):
    """Notes the commit that a tool's transaction ends with."""

    def __init__(self, transaction: Transaction, store: RecordingStore) -> None:
        super().__init__(transaction)
        self._store = store

    async def commit(self, commit: Commit) -> Committed | Refused:
        result = await self.inner.commit(commit)
        if isinstance(result, Committed):
            self._store.note(commit, result)
        return result
