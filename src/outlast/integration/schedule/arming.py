"""Whose line of a schedule holds, where workers with different code share a store.

The one that was armed last: a worker arms its own lines when it starts. The others stand by, and
fire nothing of that schedule until it is plain that nobody is left who would.
"""

from __future__ import annotations

from outlast.clock import Clock
from outlast.integration.schedule.cron import MINUTE
from outlast.integration.schedule.decide import NOTHING_BEFORE, LastSession
from outlast.integration.schedule.mark import ARMED, mark
from outlast.integration.schedule.schedule import Schedule
from outlast.log_context import get_logger
from outlast.store import ScheduleInfo, Store

log = get_logger("outlast.integration.schedule")

ABANDONED = 300.0
"""Seconds for which another version's instant is seen to be due before it counts as left behind."""

HANDOVER = 360_000
"""Milliseconds for which what another line owes is taken on; longer than it counts as kept."""


class ScheduleArming:
    """Arms schedules, and says which of them are this worker's to fire."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._had: set[str] = set()
        self._overdue: dict[str, tuple[int, float]] = {}

    async def row_of(self, schedule: Schedule, row: ScheduleInfo | None) -> ScheduleInfo | None:
        """Return a schedule's row if its line is the one that holds; arm it where it should."""
        if row is not None and row.fingerprint == schedule.fingerprint:
            self._had.add(schedule.name)
            return row
        if row is None or schedule.name not in self._had:
            return await self._arm(schedule, row, owed_since=self._clock.now() - HANDOVER)
        if await self._is_abandoned(row):
            return await self._arm(schedule, row, owed_since=0)
        return None

    async def _arm(
        self, schedule: Schedule, row: ScheduleInfo | None, owed_since: int
    ) -> ScheduleInfo | None:
        """Count from now, or from what the other line owes, if that is not too old."""
        now = self._clock.now()
        due_at = row.next_at if row and not row.paused else None
        is_owed = due_at is not None and owed_since <= due_at <= now
        armed = ScheduleInfo(
            name=schedule.name,
            fingerprint=schedule.fingerprint,
            next_at=due_at if is_owed else schedule.timetable.after(now),
            fired_at=mark(due_at - MINUTE if is_owed and due_at else now, ARMED),
            session_id=row.session_id if row else "",
        )
        await self._store.document.arm_schedule(armed)
        self._had.add(schedule.name)
        self._overdue.pop(schedule.name, None)
        log.info("a schedule was armed", extra={"schedule": armed.name, "instant": armed.next_at})
        rows = await self._store.document.schedules()
        mine = (armed.name, armed.fingerprint)
        return next((each for each in rows if (each.name, each.fingerprint) == mine), None)

    async def _is_abandoned(self, row: ScheduleInfo) -> bool:
        now, moment = self._clock.now(), self._clock.monotonic()
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


async def session_before(store: Store, row: ScheduleInfo) -> LastSession:
    """Return what became of the session that a schedule last started."""
    info = await store.listing.session(row.session_id) if row.session_id else None
    if info is None:
        return NOTHING_BEFORE
    over_at = info.updated_at if info.over else 0
    return LastSession(info.session_id, not info.over, info.created_at, over_at)
