"""A schedule's status: its document in the store beside its definition in the code.

Owns the words for how the two can stand to each other: armed, paused, new, changed, gone. Reads
neither: both are given by `schedules.py`.
"""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from outlast.core.instant import date_of, date_or_none
from outlast.integration.schedule.schedule import Schedule
from outlast.integration.schedule.state import Outcome, ScheduleState

ScheduleStanding = Literal["armed", "paused", "new", "changed", "gone"]


class ScheduleStatus(Struct, frozen=True, kw_only=True):
    """A schedule as it is listed.

    `status`: `armed`, `paused`, `new` (no worker has armed it yet), `changed` (what is armed is
    another line than the code's) or `gone` (it is no longer in the code, and fires no more).
    `last_at` is the last instant that came since the line was armed, and `last` how it ended:
    `fired`, `skipped` (the session before was not over, or it was paused) or `missed`.
    `session_id` is the last session, or the last run of a `workflow`.
    """

    name: str
    cron: str
    timezone: str
    tenant: str
    status: ScheduleStanding
    agent: str = ""
    workflow: str = ""
    next_at: datetime | None = None
    last_at: datetime | None = None
    last: Outcome = ""
    session_id: str = ""


def as_armed(row: ScheduleState) -> ScheduleStatus:
    """Return what the store alone tells."""
    return ScheduleStatus(
        name=row.name,
        cron=row.cron,
        timezone=row.timezone,
        tenant=row.tenant,
        status="paused" if row.paused else "armed",
        next_at=date_or_none(row.next_at),
        last_at=date_of(row.settled_at) if row.last_outcome else None,
        last=row.last_outcome,
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
        workflow=schedule.workflow,
    )
