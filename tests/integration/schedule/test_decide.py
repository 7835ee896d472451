"""What a schedule does next: one case per rule. Hours of one day stand for instants."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from outlast.integration.schedule.decide import (
    GRACE,
    NOTHING_BEFORE,
    FireSchedule,
    LastSession,
    MoveDue,
    NothingDue,
    SkipInstant,
    Step,
    WaitForSession,
    decide,
)
from outlast.integration.schedule.schedule import Schedule
from outlast.integration.schedule.state import Outcome, ScheduleState, whole_minute

HOUR = 3_600_000
LATE = GRACE / HOUR
MIDNIGHT = int(datetime(2026, 5, 1, tzinfo=UTC).timestamp() * 1000)


def at(hour: float) -> int:
    return MIDNIGHT + round(hour * HOUR)


BUSY = LastSession("ses_1", busy=True, started_at=at(8))
OVER = LastSession("ses_1", started_at=at(8), over_at=at(9.5))


def fire(hour: float, ends: str = "") -> FireSchedule:
    return FireSchedule(at(hour + 1), at(hour), ends)


def skip(hour: float) -> SkipInstant:
    return SkipInstant(at(hour + 1), at(hour))


def miss(hour: float) -> MoveDue:
    """All up to an hour was missed."""
    return MoveDue(at(hour + 1), at(hour))


def step(
    due: float | None,
    now: float,
    before: LastSession = NOTHING_BEFORE,
    *,
    settled: float | None = None,
    how: Outcome = "fired",
    **options: Any,
) -> Step:
    """What an hourly schedule does that is settled up to the hour before it is due."""
    paused = options.pop("paused", False)
    schedule = Schedule("0 * * * *", agent="a", message="go", **options)
    last = (due or now) - 1 if settled is None else settled
    row = ScheduleState(
        name="a",
        cron="0 * * * *",
        timezone="UTC",
        tenant="default",
        next_at=None if due is None else at(due),
        settled_at=whole_minute(at(last)),
        last_outcome=how,
        paused=paused,
    )
    return decide(schedule, row, at(now), before)


CASES = [
    ("nothing is due", step(9, 8.5), NothingDue(at(9))),
    ("it is paused", step(9, 12, paused=True), NothingDue(None)),
    ("it is due", step(9, 9), fire(9)),
    ("it is late by the grace", step(9, 9 + LATE), fire(9)),
    # Missed
    ("skip: it goes on", step(9, 9.5), miss(9)),
    ("skip: what is on time is not skipped", step(6, 9.01), miss(8)),
    ("one: the latest is left", step(6, 9.5, catch_up="one"), miss(8)),
    ("one: the latest fires, however late", step(9, 9.5, catch_up="one"), fire(9)),
    ("all: the first fires", step(6, 9.5, catch_up="all"), fire(6)),
    # The session before is not over
    ("skip: it is passed over", step(9, 9, BUSY), skip(9)),
    ("queue: it waits", step(9, 9.9, BUSY, overlap="queue"), WaitForSession()),
    ("cancel: it takes the place", step(9, 9, BUSY, overlap="cancel"), fire(9, "ses_1")),
    ("what was missed is not held up", step(6, 9.5, BUSY), miss(9)),
    ("what came before that session waits", step(7, 8.1, BUSY, catch_up="all"), WaitForSession()),
    # It was over at half past nine
    ("queue: waiting is not missing", step(8, 9.51, OVER, overlap="queue"), fire(8)),
    ("queue: it was free, and missed", step(8, 11.5, OVER, overlap="queue"), miss(11)),
    ("others did not wait, but were missed", step(8, 9.51, OVER, overlap="cancel"), miss(9)),
    # The row says something odd
    ("it was left without an instant", step(None, 8.5, settled=8), MoveDue(at(9))),
    ("it was moved too far", step(20, 8.5, settled=8), MoveDue(at(9))),
    ("it was moved too far a moment ago", step(20, 9.001, settled=8), MoveDue(at(9))),
    ("it was moved back", step(3, 8.5, settled=8), MoveDue(at(9))),
    ("a clock is slightly behind", step(10, 9 - LATE, settled=9), NothingDue(at(10))),
    ("a clock ran ahead", step(21, 8.5, settled=20), MoveDue(at(9))),
    ("a clock ran ahead a moment ago", step(21, 9.001, settled=20), MoveDue(at(9))),
    ("nobody can have missed it yet", step(10, 9.001, settled=9, how="missed"), MoveDue(at(9))),
    ("it was missed", step(10, 9 + LATE, settled=9, how="missed"), NothingDue(at(10))),
]


@pytest.mark.parametrize(
    ("found", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_comes_next(found: Step, expected: Step) -> None:
    assert found == expected
