"""How a schedule stands: what the store keeps of it, beside what the code says."""

from __future__ import annotations

from msgspec import Struct

from outlast.integration.schedule.mark import ARMED, WORDS, read_mark
from outlast.integration.schedule.schedule import Schedule, read_fingerprint
from outlast.store import ScheduleInfo


class ScheduleStatus(Struct, frozen=True, kw_only=True):
    """A schedule as it is listed. Instants are milliseconds since the epoch, 0 where none was.

    `status`: `armed`, `paused`, `new` (no worker has armed it yet), `changed` (what is armed is
    another line than the code's) or `gone` (it is no longer in the code, and fires no more).
    `last_at` is the last instant that came since the line was armed, and `last` how it ended:
    `fired`, `skipped` (the session before was not over, or it was paused) or `missed`.
    `session_id` is the last session.
    """

    name: str
    cron: str
    timezone: str
    tenant: str
    status: str
    agent: str = ""
    next_at: int | None = None
    last_at: int = 0
    last: str = ""
    session_id: str = ""


def as_armed(row: ScheduleInfo) -> ScheduleStatus:
    """Return what the store alone tells."""
    timetable, tenant = read_fingerprint(row.fingerprint)
    at, how = read_mark(row.fired_at)
    return ScheduleStatus(
        name=row.name,
        cron=timetable.line,
        timezone=timetable.timezone,
        tenant=tenant,
        status="paused" if row.paused else "armed",
        next_at=row.next_at,
        last_at=0 if how == ARMED else at,
        last=WORDS[how],
        session_id=row.session_id,
    )


def as_written(schedule: Schedule) -> ScheduleStatus:
    """Return what the code alone tells."""
    return ScheduleStatus(
        name=schedule.name,
        cron=schedule.timetable.line,
        timezone=schedule.timetable.timezone,
        tenant=schedule.tenant,
        status="new",
        agent=schedule.agent,
    )
