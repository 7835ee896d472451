"""Sits on the store itself and notes what that says it has done, when it did it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.clock import Clock
from holdfast.core.event import type_of
from holdfast.errors import HoldfastError
from holdfast.store import Admission, Claim, Commit, Committed, Receipt, Refused, Store
from holdfast.testing.simulation.history import Admitted, Claimed, History, Wrote
from holdfast.testing.wrapped import WrappedStore


class RecordingStore(WrappedStore):
    """Notes what a store says it has done, at the instant at which it did it."""

    def __init__(self, store: Store, history: History, clock: Clock) -> None:
        super().__init__(store)
        self._history = history
        self._clock = clock

    async def close(self) -> None:
        """Others use it."""

    async def admit(self, admissions: Sequence[Admission]) -> Sequence[Receipt | HoldfastError]:
        results = await self.inner.admit(admissions)
        for admission, result in zip(admissions, results, strict=True):
            if isinstance(result, Receipt):
                self._history.note(
                    Admitted,
                    session_id=result.session_id,
                    lane=result.lane,
                    delivery_id=result.delivery_id,
                    kind=admission.kind,
                    offset=result.offset,
                    duplicate=result.duplicate,
                    size=len(repr(admission.records)),
                )
        return results

    async def claim(self, worker: str, limit: int, *args: Any, **options: Any) -> Sequence[Claim]:
        claims = await self.inner.claim(worker, limit, *args, **options)
        for claim in claims:
            self._history.note(
                Claimed,
                worker=worker,
                session_id=claim.session_id,
                lane=claim.lane,
                fence=claim.fence,
            )
        return claims

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        results = await self.inner.commit(commits)
        for commit, result in zip(commits, results, strict=True):
            if isinstance(result, Committed):
                self._note(commit, result)
        return results

    def _note(self, commit: Commit, result: Committed) -> None:
        self._history.note(
            Wrote,
            worker=commit.worker,
            session_id=commit.session_id,
            lane=commit.lane,
            fence=commit.fence,
            commit=commit.number,
            first_offset=result.first_offset,
            records=tuple(type_of(record) for record in commit.records),
            size=len(commit.body),
            parked=commit.ready_at is None or commit.status in ("waiting", "sleeping", "idle"),
            released=commit.release,
            clock=self._clock.now(),
        )
