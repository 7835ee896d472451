"""Decides which line of a schedule counts, where workers with different code share a store.

The line that was armed last counts: a worker arms its own lines when it starts. Workers with other
lines stand by, and fire nothing of that schedule until its instants are visibly left behind.
"""

from outlast.clock import Clock
from outlast.core.instant import milliseconds_at
from outlast.integration.schedule.cron import MINUTE
from outlast.integration.schedule.decide import NOTHING_BEFORE, LastSession
from outlast.integration.schedule.schedule import Schedule
from outlast.integration.schedule.state import (
    ScheduleState,
    arm_schedule,
    find_schedule,
    whole_minute,
)
from outlast.log_context import get_logger
from outlast.store import Store

log = get_logger("outlast.integration.schedule")

ABANDONED = 300.0
"""Seconds for which another version's instant is seen to be due before it is left behind."""

HANDOVER = 360_000
"""Milliseconds for which what another line owes is taken on; longer than it counts as kept."""


class ScheduleArming:
    """Arms schedules, and tells which of them this worker may fire."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._had: set[str] = set()
        self._overdue: dict[str, tuple[int, float]] = {}

    async def row_of(self, schedule: Schedule, row: ScheduleState | None) -> ScheduleState | None:
        """Return a schedule's row if its line counts; arm it first if it is time to."""
        if row is not None and row.is_of(schedule):
            self._had.add(schedule.name)
            return row
        if row is None or schedule.name not in self._had:
            return await self._arm(
                schedule, row, owed_since=self._store.clock.earliest() - HANDOVER
            )
        if await self._is_abandoned(row):
            return await self._arm(schedule, row, owed_since=0)
        return None

    async def _arm(
        self, schedule: Schedule, row: ScheduleState | None, owed_since: int
    ) -> ScheduleState | None:
        """Count from now, or from what the other line owes, if that is not too old."""
        now = self._store.clock.earliest()
        due_at = row.next_at if row and not row.paused else None
        is_owed = due_at is not None and owed_since <= due_at <= now
        armed = ScheduleState(
            name=schedule.name,
            cron=schedule.timetable.line,
            timezone=schedule.timetable.timezone,
            tenant=schedule.tenant,
            next_at=due_at if is_owed else schedule.timetable.after(now),
            settled_at=whole_minute(due_at - MINUTE if is_owed and due_at else now),
            session_id=row.session_id if row else "",
        )
        await arm_schedule(self._store, armed)
        self._had.add(schedule.name)
        self._overdue.pop(schedule.name, None)
        log.info("a schedule was armed", extra={"schedule": armed.name, "instant": armed.next_at})
        found = await find_schedule(self._store, armed.name)
        return found if found and found.has_line_of(armed) else None

    async def _is_abandoned(self, row: ScheduleState) -> bool:
        now, moment = self._store.clock.earliest(), self._clock.monotonic()
        is_due = row.next_at is not None and row.next_at <= now and not row.paused
        if not is_due or (await session_before(self._store, row)).busy:
            self._overdue.pop(row.name, None)
            return False
        assert row.next_at is not None
        due_at, since = self._overdue.get(row.name, (row.next_at, moment))
        if due_at != row.next_at:
            since = moment
        self._overdue[row.name] = (row.next_at, since)
        return moment - since >= ABANDONED


async def session_before(store: Store, row: ScheduleState) -> LastSession:
    """Return what became of the session that a schedule last started."""
    info = await store.listing.session(row.session_id) if row.session_id else None
    if info is None:
        return NOTHING_BEFORE
    over_at = milliseconds_at(info.updated_at) if info.over else 0
    return LastSession(info.session_id, not info.over, milliseconds_at(info.created_at), over_at)
