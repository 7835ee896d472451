"""When schedules are next due, and what they last started. What they mean is not known here."""

from __future__ import annotations

from msgspec.structs import asdict

from outlast.store import ScheduleInfo
from outlast.stores.sqlite.statement import Params
from outlast.stores.sqlite.unit_of_work import UnitOfWork


def arm(desk: UnitOfWork, schedule: ScheduleInfo) -> None:
    desk.db.run("arm_schedule", asdict(schedule))


def listing(desk: UnitOfWork) -> list[ScheduleInfo]:
    return [
        ScheduleInfo(
            name=name,
            fingerprint=fingerprint,
            next_at=next_at,
            paused=bool(paused),
            fired_at=fired_at,
            session_id=session_id,
        )
        for name, fingerprint, next_at, paused, fired_at, session_id in desk.db.all("schedules")
    ]


def advance(desk: UnitOfWork, step: Params) -> bool:
    return desk.db.run("advance_schedule", step) > 0


def pause(desk: UnitOfWork, name: str, paused: bool) -> bool:
    return desk.db.run("pause_schedule", {"name": name, "paused": paused}) > 0


def drop(desk: UnitOfWork, name: str) -> bool:
    return desk.db.run("drop_schedule", {"name": name}) > 0
