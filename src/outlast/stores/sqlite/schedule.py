"""When schedules are next due, and what they last started. What they mean is not known here."""

from __future__ import annotations

from msgspec.structs import asdict

from outlast.store import ScheduleInfo
from outlast.stores.sqlite.database import Database
from outlast.stores.sqlite.statement import Params


def arm(db: Database, schedule: ScheduleInfo) -> None:
    db.run("arm_schedule", asdict(schedule))


def listing(db: Database) -> list[ScheduleInfo]:
    return [
        ScheduleInfo(
            name=name,
            fingerprint=fingerprint,
            next_at=next_at,
            paused=bool(paused),
            fired_at=fired_at,
            session_id=session_id,
        )
        for name, fingerprint, next_at, paused, fired_at, session_id in db.all("schedules")
    ]


def advance(db: Database, step: Params) -> bool:
    return db.run("advance_schedule", step) > 0


def pause(db: Database, name: str, paused: bool) -> bool:
    return db.run("pause_schedule", {"name": name, "paused": paused}) > 0


def drop(db: Database, name: str) -> bool:
    return db.run("drop_schedule", {"name": name}) > 0
