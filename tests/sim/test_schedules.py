"""A year of schedules: no instant fires twice, and none is lost beyond what `catch_up` says."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest
from cron_walk import Walls, ms, walk, walls
from fleets import (
    DAY,
    HOUR,
    LOOKS,
    MINUTE,
    SECOND,
    Down,
    Fired,
    Outages,
    World,
    all_down,
    fault_plan,
    outage_at,
)

from outlast import Schedule

START = datetime(2026, 1, 1, tzinfo=UTC)
END = datetime(2027, 1, 1, tzinfo=UTC)
STEP = timedelta(minutes=15)
GRACE = 60 * SECOND
UNSURE = 20 * SECOND
"""Clocks differ, and so does what they take for late."""

LINES = {
    "two-hourly": ("0 */2 * * *", "Europe/Berlin", "skip"),
    "every-six-hours": ("0 */6 * * *", "America/New_York", "one"),
    "quarter-past": ("15 */7 * * *", "Australia/Lord_Howe", "all"),
    "night": ("30 2 * * *", "Europe/Berlin", "all"),
    "early": ("0,30 1-3 * * 0", "Europe/Berlin", "one"),
    "midnight": ("0 0 * * *", "America/Havana", "all"),
    "office": ("0 9 * * 1-5", "America/New_York", "skip"),
    "monthly": ("45 23 1,15 * *", "Australia/Lord_Howe", "one"),
}
TOGETHER = [
    ("two-hourly",),
    ("every-six-hours", "quarter-past", "early"),
    ("night", "midnight", "office", "monthly"),
]


@cache
def year(zone: str) -> Walls:
    return walls(zone, START, END, STEP)


@cache
def instants(line: str, zone: str) -> tuple[int, ...]:
    return tuple(walk(line, year(zone), STEP))


def written(name: str, catch_up: str | None = None) -> Schedule:
    line, zone, said = LINES[name]
    chosen = catch_up or said
    return Schedule(line, agent="a", message="go", timezone=zone, catch_up=chosen, name=name)  # type: ignore[arg-type]


def moments(names: Iterable[str]) -> set[int]:
    return {at for name in names for at in due(name)}


class Expected:
    """What has to fire, and what may, given when everybody was down."""

    def __init__(self, named: tuple[int, ...], catch_up: str, outages: Outages) -> None:
        self.must: set[int] = set()
        self.may: set[int] = set()
        missed: dict[int, list[int]] = {}
        for at in named:
            looks = [outage_at(outages, at + late) for late in LOOKS]
            if None not in looks:
                missed.setdefault(max(end for end in looks if end), []).append(at)
            elif looks[0] is None:
                self.must.add(at)
            else:  # somebody came back in between, or all left
                self.may.add(at)
        for end, those in missed.items():
            self.catch_up(those, end, catch_up)

    def catch_up(self, missed: list[int], end: int, how: str) -> None:
        late = [at for at in missed if end + LOOKS[0] - at > GRACE - UNSURE]
        self.must |= set(missed) - set(late)
        if how == "all":
            self.must |= set(late)
        elif how == "one":
            self.must.add(missed[-1])
        self.may |= {at for at in late if end + LOOKS[1] - at < GRACE + UNSURE}


def due(name: str) -> tuple[int, ...]:
    line, zone, _ = LINES[name]
    return instants(line, zone)


def both_down(downs: list[Down]) -> list[Down]:
    times = all_down(downs)
    return [down for down in downs if down[1:] in times]


def held_against(fired: list[Fired], expected: Expected) -> None:
    found = [each.instant for each in fired]
    assert len(found) == len(set(found)), "an instant fired twice"
    assert expected.must - set(found) == set(), "an instant was lost"
    assert set(found) - expected.must - expected.may == set(), "an instant fired in vain"
    assert found == sorted(found), "instants fired out of order"


@pytest.mark.parametrize("names", TOGETHER, ids=" ".join)
async def test_a_year_with_outages_and_changes_of_the_clock(names: tuple[str, ...]) -> None:
    seed = len(names)
    downs = fault_plan(seed, ms(START) + DAY, ms(END) - 10 * DAY)
    code = [written(name) for name in names]
    world = World(seed, {"old": code, "new": code}, downs)

    await world.run({ms(START) - HOUR, *moments(names)})

    for name in names:
        expected = Expected(due(name), LINES[name][2], all_down(downs))
        held_against(world.store.fired[name], expected)


FAR_AHEAD = (2 * HOUR, 400 * DAY)
SLIGHTLY = (2 * MINUTE, 50 * MINUTE)


class Jumps:
    """Sets one process's clock ahead or back for hours, again and again."""

    def __init__(self, world: World, ahead: tuple[int, int]) -> None:
        self._world = world
        self._ahead = ahead
        self._until = 0

    def __call__(self, now: int) -> None:
        if now < self._until:
            return
        chance = self._world.chance
        for process in self._world.processes:
            process.ahead = 0
        jumper = chance.choice(self._world.processes)
        jumper.ahead = chance.choice([0, 1, 1, -1]) * chance.randint(*self._ahead)
        self._until = now + chance.randint(HOUR, 3 * DAY)


@pytest.mark.parametrize(
    ("catch_up", "ahead"),
    [("skip", FAR_AHEAD), ("one", FAR_AHEAD), ("skip", SLIGHTLY), ("all", SLIGHTLY)],
)
async def test_weeks_in_which_clocks_jump(catch_up: str, ahead: tuple[int, int]) -> None:
    code = [written("two-hourly", catch_up)]
    world = World(1, {"old": code, "new": code}, trouble=0.0, over_at_once=True)
    weeks = [at for at in due("two-hourly") if at < ms(START) + 25 * DAY]
    soon = [at - 4 * MINUTE for at in weeks]  # a look between two instants

    await world.run([ms(START) - HOUR, *weeks, *soon], Jumps(world, ahead))

    fired = [each.instant for each in world.store.fired["two-hourly"]]
    assert len(fired) == len(set(fired)), "an instant fired twice"
    assert set(weeks) - set(fired) == set(), "an instant was lost"


async def test_fleets_with_different_lines_lose_no_instant_that_both_have() -> None:
    code = {
        "old": [Schedule("0 */2 * * *", agent="a", message="old", catch_up="all")],
        "new": [Schedule("30,0 */2 * * *", agent="a", message="new", catch_up="all")],
    }
    season = ms(START) + 80 * DAY
    downs = fault_plan(3, ms(START) + DAY, season)
    world = World(3, code, [down for down in downs if down not in both_down(downs)])
    shared = [at for at in instants("0 */2 * * *", "UTC") if at < season]
    halves = [at for at in instants("30 */2 * * *", "UTC") if at < season]
    looks = [at + late for at in (*shared, *halves) for late in (0, 3 * MINUTE, 312 * SECOND)]

    def deploy(now: int) -> None:
        if world.chance.random() < 0.02:
            world.chance.choice(world.processes).stop()

    await world.run([ms(START) - HOUR, *looks], deploy)

    fired = [each.instant for each in world.store.fired["a"]]
    assert len(fired) == len(set(fired)), "an instant fired twice"
    assert set(shared) - set(fired) == set(), "an instant was lost"
    assert set(fired) <= {*shared, *halves}
    assert len(set(fired) & set(halves)) > 100, "both versions had their time"
