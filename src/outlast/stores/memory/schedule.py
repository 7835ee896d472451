"""When schedules are next due, and what they last started."""

from __future__ import annotations

from msgspec.structs import replace

from outlast.store import ScheduleInfo
from outlast.stores.memory.table import Tables


def arm(tables: Tables, schedule: ScheduleInfo) -> None:
    known = tables.schedules.get(schedule.name)
    if known is None or known.fingerprint != schedule.fingerprint:
        paused = known.paused if known else schedule.paused
        tables.schedules[schedule.name] = replace(schedule, paused=paused)


def advance(
    tables: Tables,
    name: str,
    seen: int | None,
    next_at: int | None,
    fired_at: int,
    session_id: str,
) -> bool:
    known = tables.schedules.get(name)
    if known is None or known.next_at != seen:
        return False
    tables.schedules[name] = replace(
        known, next_at=next_at, fired_at=fired_at, session_id=session_id
    )
    return True


def pause(tables: Tables, name: str, paused: bool) -> bool:
    known = tables.schedules.get(name)
    if known:
        tables.schedules[name] = replace(known, paused=paused)
    return known is not None
