"""Decides what comes next for a schedule, from its row, the time and the session before. Pure.

An instant that is late by no more than the grace is on time. Later than that it was missed, and
`catch_up` decides; one that waits for the session before it is late only from when that was over.
Clocks may be wrong: what a row says of the future is not believed, and what it owes is looked up.
`settled_at` never goes back: nothing before it comes again, even where a clock is behind.
"""

from msgspec import Struct

from outlast.integration.schedule.schedule import Schedule
from outlast.integration.schedule.state import ScheduleState

GRACE = 60_000
"""Milliseconds by which an instant may be late and still be on time, and clocks may differ."""


class LastSession(Struct, frozen=True):
    """The session that the schedule last started, if any, and from when to when it was at work."""

    session_id: str = ""
    busy: bool = False
    started_at: int = 0
    over_at: int = 0


NOTHING_BEFORE = LastSession()


class NothingDue(Struct, frozen=True):
    """Nothing is due before this instant."""

    until: int | None


class WaitForSession(Struct, frozen=True):
    """The instant that is due waits for the session before it."""


class MoveDue(Struct, frozen=True):
    """The schedule is due at another instant than the store says.

    `missed_at` is the last instant that was missed, if one was.
    """

    next_at: int | None
    missed_at: int | None = None


class SkipInstant(Struct, frozen=True):
    """The instant is passed over, since the session before it is not over."""

    next_at: int | None
    instant: int


class FireSchedule(Struct, frozen=True):
    """The instant is due; its session takes the place of another where `ends` names one."""

    next_at: int | None
    instant: int
    ends: str = ""


Step = NothingDue | WaitForSession | MoveDue | SkipInstant | FireSchedule


def decide(schedule: Schedule, row: ScheduleState, now: int, before: LastSession) -> Step:
    """Return the one thing to do next with a schedule."""
    if row.paused:
        return NothingDue(None)
    if row.next_at is None or row.next_at > now:
        return rest(schedule, row, now)
    settled_at = settled(row, now)
    if settled_at is not None and row.next_at <= settled_at:
        return MoveDue(schedule.timetable.after(settled_at))
    return settle(schedule, row.next_at, now, before)


def rest(schedule: Schedule, row: ScheduleState, now: int) -> NothingDue | MoveDue:
    """Let a schedule rest, unless an open instant lies before the one that it rests for.

    That is so where a clock ran ahead, or a worker with other code moved the schedule on.
    """
    timetable, settled_at = schedule.timetable, settled(row, now)
    first = timetable.after(now if settled_at is None else settled_at)
    if first is None or (row.next_at is not None and row.next_at <= first):
        return NothingDue(row.next_at)
    return MoveDue(timetable.after(now - GRACE) if settled_at is None else first)


def settled(row: ScheduleState, now: int) -> int | None:
    """Return up to when all is settled; None if that lies too far ahead to be believed."""
    at = row.settled_at
    if at - now > GRACE:
        return None
    is_too_early = row.last_outcome == "missed" and now <= at + GRACE // 2
    return at - 1 if is_too_early else at


def settle(schedule: Schedule, instant: int, now: int, before: LastSession) -> Step:
    """Return what becomes of an instant that is due."""
    timetable, waits = schedule.timetable, schedule.overlap == "queue"
    if waits and before.busy:
        return WaitForSession()
    target = caught_up(schedule, instant, now, before.over_at if waits else 0)
    if target != instant:
        last = timetable.latest(now if target is None else target - 1, instant)
        return MoveDue(target, last or instant)
    if before.busy and instant < before.started_at:
        return WaitForSession()  # it came before that session did, and is made up for after it
    next_at = timetable.after(instant)
    if before.busy and schedule.overlap == "skip":
        return SkipInstant(next_at, instant)
    ends = before.session_id if before.busy and schedule.overlap == "cancel" else ""
    return FireSchedule(next_at, instant, ends)


def caught_up(schedule: Schedule, instant: int, now: int, free_at: int) -> int | None:
    """Return the instant to go on with, past those that were missed and are not made up for."""
    if now - max(instant, free_at) <= GRACE or schedule.catch_up == "all":
        return instant
    if schedule.catch_up == "one":
        return schedule.timetable.latest(now, instant) or instant
    return schedule.timetable.after(now - GRACE - 1)
