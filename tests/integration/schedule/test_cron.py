"""When cron lines are due, held against a walk through every minute of the days in question."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from cron_walk import Walls, ms, walk, walls
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import InvalidDefinition
from outlast.integration.schedule.cron import CronTimes

# Zones, and a day near which each changes its offset, or does something else that is odd.
DAYS = [
    ("UTC", "2026-02-28"),
    ("Asia/Kathmandu", "2026-03-29"),
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("America/St_Johns", "2026-11-01"),
    ("Africa/Cairo", "2026-04-24"),
    ("Africa/Cairo", "2026-10-30"),
    ("America/Havana", "2026-03-08"),
    ("America/Havana", "2026-11-01"),
    ("America/Santiago", "2026-09-06"),
    ("Africa/Casablanca", "2026-02-15"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Antarctica/Troll", "2026-03-29"),
    ("Pacific/Apia", "2011-12-30"),
]


@cache
def days(zone: str, day: str) -> Walls:
    """Two days and a half, minute by minute."""
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=1)
    return walls(zone, start, start + timedelta(hours=60))


def named(line: str, along: Walls, zone: str) -> list[int]:
    last = along[-1][0]
    return list(takewhile(lambda at: at <= last, CronTimes(line, zone).instants(along[0][0])))


LINES = [
    "0 * * * *",
    "*/15 * * * *",
    "30 */2 * * *",
    "*/20 */7 * * *",
    "*/10 0 * * *",
    "*/10 2 * * 0",
    "0 0 * * *",
    "30 2 * * *",
    "0,30 2,3 * * *",
    "15 1 * * 0",
    "0 0 1 * 5",
    "45 23 * * *",
    "5 0-5/2 * * 1-5",
    "0 9 30,31 * *",
]


@pytest.mark.parametrize(("zone", "day"), DAYS)
def test_the_instants_are_those_that_a_walk_through_all_minutes_finds(zone: str, day: str) -> None:
    for line in LINES:
        assert named(line, days(zone, day), zone) == list(walk(line, days(zone, day))), line


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    step = st.integers(1, max(2, high // 3))
    span = st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}")
    return st.one_of(
        st.just("*"),
        number.map(str),
        step.map(lambda n: f"*/{n}"),
        span,
        st.lists(number, min_size=2, max_size=4).map(lambda some: ",".join(map(str, some))),
    )


@settings(max_examples=40, derandomize=True)
@given(
    st.tuples(field(0, 59), field(0, 23), field(1, 28), st.just("*"), field(0, 7)),
    st.sampled_from(DAYS),
)
def test_so_are_those_of_any_line(fields: tuple[str, ...], place: tuple[str, str]) -> None:
    line = " ".join(fields)

    assert named(line, days(*place), place[0]) == list(walk(line, days(*place)))


@pytest.mark.parametrize("line", LINES)
def test_a_year_in_berlin_is_as_debians_cron_has_it(line: str) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    start = datetime(2026, 1, 1, tzinfo=berlin)
    theirs = islice((ms(at) for at in CronSim(line, start)), 400)
    ours = CronTimes(line, "Europe/Berlin").instants(ms(start) + 1)

    assert list(islice(ours, 400)) == list(theirs)


# In words


def locally(line: str, zone: str, since: str, count: int) -> list[str]:
    timetable = CronTimes(line, zone)
    instants = islice(timetable.instants(ms(datetime.fromisoformat(since))), count)
    return [f"{timetable.local(at):%d %H:%M %Z}" for at in instants]


def test_a_time_that_is_left_out_comes_at_the_next_moment_that_there_is() -> None:
    assert locally("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00Z", 3) == [
        "28 02:30 CET",
        "29 03:00 CEST",
        "30 02:30 CEST",
    ]


def test_a_time_that_comes_twice_counts_once() -> None:
    assert locally("30 2 * * *", "Europe/Berlin", "2026-10-24T00:00Z", 3) == [
        "24 02:30 CEST",
        "25 02:30 CEST",
        "26 02:30 CET",
    ]


def test_an_hourly_line_follows_real_time() -> None:
    assert locally("0 * * * *", "Europe/Berlin", "2026-10-24T23:00Z", 4) == [
        "25 01:00 CEST",
        "25 02:00 CEST",
        "25 02:00 CET",
        "25 03:00 CET",
    ]


def test_two_times_that_fall_onto_the_same_moment_are_one_instant() -> None:
    assert locally("0,30 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00Z", 3) == [
        "29 03:00 CEST",
        "29 03:30 CEST",
        "30 02:00 CEST",
    ]


@pytest.mark.parametrize("line", LINES)
def test_instants_are_the_same_from_wherever_one_counts(line: str) -> None:
    timetable = CronTimes(line, "Europe/Berlin")
    start = ms(datetime.fromisoformat("2026-10-24T00:00Z"))
    found = list(islice(timetable.instants(start), 60))

    for one, other in pairwise(found):
        assert timetable.after(one) == other
        assert timetable.after(other - 1) == other
        assert timetable.latest(other - 1, start) == one
        assert timetable.latest(other, other) == other
        assert timetable.latest(other - 1, one + 1) is None


def test_the_latest_instant_may_lie_years_back() -> None:
    leap_day = CronTimes("0 0 29 2 *")
    now = ms(datetime(2027, 6, 1, tzinfo=UTC))

    assert leap_day.latest(now, 0) == ms(datetime(2024, 2, 29, tzinfo=UTC))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("0 * * * * *", "has 6 fields"),
        ("@daily", "has 1 fields"),
        ("61 * * * *", "bad minute"),
        ("-5 * * * *", "bad minute"),
        ("0 24 * * *", "bad hour"),
        ("0 9 * * 1-", "bad day-of-week"),
        ("0 9 0 * *", "bad day-of-month"),
        ("*/0 * * * *", "bad minute"),
        ("nine * * * *", "bad minute"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("0 0 */20 * 1L", "never|no time that ever comes"),
        ("9" * 300, "at most 256"),
        (None, "a text"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused_with_the_reason(line: str, complaint: str) -> None:
    with pytest.raises(InvalidDefinition, match=complaint):
        CronTimes(line)


@pytest.mark.parametrize("zone", ["", "Europe", "Middle/Earth", "../etc", "/etc/passwd", None, 7])
def test_a_zone_that_does_not_exist_is_refused(zone: str) -> None:
    with pytest.raises(InvalidDefinition, match="no time zone"):
        CronTimes("0 9 * * *", zone)
