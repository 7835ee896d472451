"""Timekeepers for tests: on one store and one clock, looked at only when the test says so."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from outlast import Outlast, Schedule
from outlast.clock import Clock
from outlast.core.record import DeliveryQueued
from outlast.errors import OutlastError
from outlast.integration.schedule.launch import ScheduleLauncher
from outlast.integration.schedule.scheduler import Scheduler
from outlast.integration.schedule.schedules import Schedules
from outlast.integration.schedule.state import (
    Outcome,
    ScheduleState,
    advance_schedule,
    find_schedule,
)
from outlast.integration.schedule.status import ScheduleStatus
from outlast.session.inbox import Inbox, QueueLimits
from outlast.session.start import SessionStarter
from outlast.store import Admission, AdmissionReceipt, SessionInfo, Store
from outlast.store.clock import LocalStoreClock
from outlast.testing.clock import ManualClock
from outlast.testing.wrapped_store import WrappedStore
from outlast.workflows.workflow import Workflow

MINUTE = 60_000
HOUR = 60 * MINUTE
MIDNIGHT = int(datetime(2026, 5, 1, tzinfo=UTC).timestamp() * 1000)


def at(hour: float) -> int:
    """An hour of the day on which the tests play."""
    return MIDNIGHT + round(hour * HOUR)


def hourly(cron: str = "0 * * * *", **options: Any) -> Schedule:
    return Schedule(cron, **{"agent": "a", "message": lambda at: f"{at:%H:%M}", **options})


class ShiftedStore(WrappedStore):
    """A store whose time another clock shows: what a process believes that knows it wrongly."""

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__(store)
        self._shown = LocalStoreClock(clock)

    @property
    def clock(self) -> LocalStoreClock:
        return self._shown


def timekeeper(
    store: Store,
    clock: ManualClock,
    *schedules: Schedule,
    room: int = 0,
    workflows: Sequence[Workflow[Any, Any]] = (),
) -> Scheduler:
    """A scheduler that takes a clock's time for the store's."""
    known = {each.name: each for each in workflows}
    store = ShiftedStore(store, clock)
    inbox = Inbox(store, clock, QueueLimits(tenant=room))
    starter = ScheduleLauncher(inbox, SessionStarter(inbox, clock, lambda _: ()), known)
    return Scheduler(store, clock, Schedules(schedules, {"a"}, store, starter, known))


class Swift(WrappedStore):
    """A store whose sessions are over as soon as they are started; it keeps what was said."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.said: list[str] = []

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        results = await super().admit(admissions)
        for result in results:
            if isinstance(result, AdmissionReceipt):
                self.said += await messages(self.inner)
                await self.inner.log.erase(result.session_id)
        return results


async def messages(store: Store) -> list[str]:
    """What was said to the sessions that were started, in their order."""
    return [await first_words(store, info) for info in await started(store)]


async def started(store: Store) -> Sequence[SessionInfo]:
    return list(reversed(await store.listing.sessions(limit=1000)))


async def first_words(store: Store, info: SessionInfo) -> str:
    [queued] = [
        entry.record
        for entry in (await store.log.read(info.session_id, 0, 2)).entries
        if isinstance(entry.record, DeliveryQueued)
    ]
    [text] = queued.content
    return str(getattr(text, "text", ""))


async def row(store: Store, name: str = "a") -> ScheduleState:
    found = await find_schedule(store, name)
    assert found is not None
    return found


async def move(
    store: Store, seen: int, *, next_at: int, settled_at: int, outcome: Outcome = "fired"
) -> None:
    """Move the schedule on, as another worker would that saw it due at an instant."""
    found = await row(store)
    if found.next_at == seen:
        changes = {"next_at": next_at, "settled_at": settled_at, "last_outcome": outcome}
        await advance_schedule(store, found, replace(found, **changes, session_id=""))


async def standing(app: Outlast, name: str = "a") -> ScheduleStatus:
    [found] = [each for each in await app.schedules.list() if each.name == name]
    return found
