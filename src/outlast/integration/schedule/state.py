"""A schedule's document in the store, changed by compare-and-set.

`decide.py` says what comes next for it; what it means is in the app's code (`schedule.py`).
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outlast.integration.schedule.cron import MINUTE, CronTimes
from outlast.integration.schedule.schedule import Schedule
from outlast.store import Document, Store

Outcome = Literal["", "fired", "skipped", "missed"]
"""How an instant ended: a session was started; the session before was not over, or the schedule
was paused; no worker was there in time. Empty: none has come since the schedule was armed."""

KIND = "schedule"


class ScheduleState(Struct, frozen=True, gc=False, kw_only=True):
    """A schedule as it stands: when it is next due, and what it last did.

    All instants up to `settled_at` fired, or never will; `last_outcome` is how the last of them
    ended. `version` is that of the document.
    """

    name: str
    cron: str
    timezone: str
    tenant: str
    next_at: int | None
    paused: bool = False
    settled_at: int = 0
    last_outcome: Outcome = ""
    session_id: str = ""
    version: int = 1

    @property
    def times(self) -> CronTimes:
        return CronTimes(self.cron, self.timezone)

    def is_of(self, schedule: Schedule) -> bool:
        """Return whether this is the line that the code has."""
        times = schedule.timetable
        return (self.cron, self.timezone, self.tenant) == (
            times.line,
            times.timezone,
            schedule.tenant,
        )

    def has_line_of(self, other: ScheduleState) -> bool:
        """Return whether both stand for the same line."""
        return (self.cron, self.timezone, self.tenant) == (
            other.cron,
            other.timezone,
            other.tenant,
        )

    def settle(self, at: int, outcome: Outcome) -> ScheduleState:
        """Settle all instants up to one, unless a later one is settled already."""
        if at < self.settled_at:
            return self
        return replace(self, settled_at=at, last_outcome=outcome)


class StoredSchedule(Struct, frozen=True, gc=False):
    """The data of a schedule's document."""

    cron: str
    timezone: str
    tenant: str
    paused: bool
    settled_at: int
    last_outcome: Outcome
    session_id: str


def whole_minute(at: int) -> int:
    """Return the minute of a moment: instants are whole minutes."""
    return at - at % MINUTE


async def list_schedules(store: Store) -> list[ScheduleState]:
    """List the schedules of all apps on a store, by name."""
    return [from_document(each) for each in await store.document.scan(KIND)]


async def find_schedule(store: Store, name: str) -> ScheduleState | None:
    # A schedule's name is the fleet's: its tenant is that of the sessions which it starts.
    found = await store.document.get(KIND, "", name)
    return from_document(found) if found else None


async def put_schedule(store: Store, new: ScheduleState, expected: int | None) -> bool:
    """Write a schedule if there is none, or in the place of a version; return whether."""
    return await store.document.put(to_document(new), expected=expected)


async def arm_schedule(store: Store, armed: ScheduleState) -> None:
    """Add a schedule, or give it another line. One that is paused stays so.

    One with the same line stays as it is: another worker was quicker.
    """
    while True:
        current = await find_schedule(store, armed.name)
        if current is None:
            if await put_schedule(store, armed, expected=None):
                return
            continue
        if current.has_line_of(armed):
            return
        new = replace(armed, paused=current.paused, version=current.version + 1)
        if await put_schedule(store, new, expected=current.version):
            return


async def advance_schedule(
    store: Store, row: ScheduleState, to: ScheduleState
) -> ScheduleState | None:
    """Move a schedule on, if it is still due when `row` says; return it as it is then.

    None: it is gone. A line, or a pause, that was changed meanwhile stays as it was changed.
    """
    current: ScheduleState | None = row
    while current and current.next_at == row.next_at:
        new = replace(
            current,
            next_at=to.next_at,
            settled_at=to.settled_at,
            last_outcome=to.last_outcome,
            session_id=to.session_id,
            version=current.version + 1,
        )
        if await put_schedule(store, new, expected=current.version):
            return new
        current = await find_schedule(store, row.name)
    return current


async def change_schedule(store: Store, name: str, **changes: object) -> ScheduleState | None:
    """Change fields of a schedule, whatever else changes; return it after, or None."""
    while current := await find_schedule(store, name):
        new = replace(current, **changes, version=current.version + 1)
        if await put_schedule(store, new, expected=current.version):
            return new
    return None


async def forget_schedule(store: Store, name: str) -> bool:
    """Delete a schedule, and return whether there was one."""
    while found := await store.document.get(KIND, "", name):
        if await store.document.delete(found):
            return True
    return False


def to_document(state: ScheduleState) -> Document:
    stored = StoredSchedule(
        cron=state.cron,
        timezone=state.timezone,
        tenant=state.tenant,
        paused=state.paused,
        settled_at=state.settled_at,
        last_outcome=state.last_outcome,
        session_id=state.session_id,
    )
    return Document(
        kind=KIND,
        tenant="",
        name=state.name,
        version=state.version,
        due_at=state.next_at,
        data=msgspec.json.encode(stored),
    )


def from_document(document: Document) -> ScheduleState:
    stored = msgspec.json.decode(document.data, type=StoredSchedule)
    return ScheduleState(
        name=document.name,
        cron=stored.cron,
        timezone=stored.timezone,
        tenant=stored.tenant,
        next_at=document.due_at,
        paused=stored.paused,
        settled_at=stored.settled_at,
        last_outcome=stored.last_outcome,
        session_id=stored.session_id,
        version=document.version,
    )
