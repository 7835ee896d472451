"""Schedules that change: lines that are written anew, and fleets whose code differs."""

from __future__ import annotations

import pytest
from timepiece import HOUR, MINUTE, at, hourly, messages, move, row, started, timekeeper

from outlast.integration.schedule.scheduler import Scheduler
from outlast.integration.schedule.state import change_schedule
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock

EVERY_HOUR = "0 * * * *"
HALF_PAST = "30 * * * *"
TWICE = "0,30 * * * *"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(at(8.25))


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


async def go_to(clock: ManualClock, until: int, *keepers: Scheduler) -> None:
    """Let time pass, minute by minute, with these at work."""
    while clock.now() < until:
        clock.advance(MINUTE)
        for keeper in keepers:
            await keeper.run_once()


def keeper(store: MemoryStore, clock: ManualClock, line: str) -> Scheduler:
    return timekeeper(store, clock, hourly(line, overlap="cancel"))


async def test_a_line_that_is_changed_counts_from_now(
    store: MemoryStore, clock: ManualClock
) -> None:
    await keeper(store, clock, EVERY_HOUR).run_once()
    clock.set(at(11.75))

    new = timekeeper(store, clock, hourly(HALF_PAST, catch_up="all", overlap="cancel"))
    await go_to(clock, at(13), new)

    assert await messages(store) == ["12:30"]


async def test_a_line_that_is_changed_knows_the_session_before(
    store: MemoryStore, clock: ManualClock
) -> None:
    await go_to(clock, at(9), keeper(store, clock, EVERY_HOUR))

    await go_to(clock, at(10), timekeeper(store, clock, hourly(HALF_PAST)))

    assert await messages(store) == ["09:00"]
    assert (await row(store)).next_at == at(10.5)


async def test_a_schedule_stays_paused_when_its_line_is_changed(
    store: MemoryStore, clock: ManualClock
) -> None:
    await keeper(store, clock, EVERY_HOUR).run_once()
    await change_schedule(store, "a", paused=True)

    await go_to(clock, at(11), keeper(store, clock, HALF_PAST))

    assert await started(store) == []


@pytest.mark.parametrize("line", [TWICE, HALF_PAST])
async def test_what_is_due_at_the_moment_of_a_change_is_not_lost(
    store: MemoryStore, clock: ManualClock, line: str
) -> None:
    await keeper(store, clock, EVERY_HOUR).run_once()
    clock.set(at(9) + 500)

    new = keeper(store, clock, line)
    await new.run_once()
    await go_to(clock, at(10), new)

    assert (await messages(store))[:2] == ["09:00", "09:30"]


async def test_the_version_that_was_armed_last_holds_and_the_other_stands_by(
    store: MemoryStore, clock: ManualClock
) -> None:
    old, new = keeper(store, clock, EVERY_HOUR), keeper(store, clock, HALF_PAST)
    await old.run_once()
    await new.run_once()

    await go_to(clock, at(12), old, new)

    assert await messages(store) == ["08:30", "09:30", "10:30", "11:30"]


async def test_a_version_that_left_nobody_behind_is_replaced_by_those_that_stand_by(
    store: MemoryStore, clock: ManualClock
) -> None:
    old, new = keeper(store, clock, EVERY_HOUR), keeper(store, clock, HALF_PAST)
    await old.run_once()
    await new.run_once()  # and is not seen again

    await go_to(clock, at(11), old)

    assert await messages(store) == ["09:00", "10:00", "11:00"]


async def test_who_comes_back_to_a_store_after_an_hour_does_not_take_others_for_gone(
    store: MemoryStore, clock: ManualClock
) -> None:
    old = keeper(store, clock, EVERY_HOUR)
    new = timekeeper(store, clock, hourly(HALF_PAST, catch_up="all", overlap="cancel"))
    await old.run_once()
    await new.run_once()
    clock.advance(HOUR)  # in which the store was away from all

    await old.run_once()
    await new.run_once()

    assert await messages(store) == ["08:30"]
    await go_to(clock, at(10), old, new)
    assert await messages(store) == ["08:30", "09:30"]


async def test_those_that_stand_by_make_up_for_what_was_left_behind_if_they_are_to(
    store: MemoryStore, clock: ManualClock
) -> None:
    old = timekeeper(store, clock, hourly(EVERY_HOUR, catch_up="one"))
    await old.run_once()
    await keeper(store, clock, TWICE).run_once()  # and is not seen again
    clock.set(at(9.2))  # nor was the store

    await go_to(clock, at(9.4), old)

    assert await messages(store) == ["09:00"]


async def test_a_version_whose_instant_waits_for_the_session_before_is_not_gone(
    store: MemoryStore, clock: ManualClock
) -> None:
    old = keeper(store, clock, EVERY_HOUR)
    new = timekeeper(store, clock, hourly(HALF_PAST, overlap="queue"))
    await old.run_once()
    await go_to(clock, at(12), old, new)
    [first] = await started(store)

    await store.log.erase(first.session_id)
    await go_to(clock, at(12.5), old, new)

    assert await messages(store) == ["12:30"]


async def test_a_move_by_another_version_at_the_moment_of_a_change_is_put_right(
    store: MemoryStore, clock: ManualClock
) -> None:
    new = keeper(store, clock, TWICE)
    await new.run_once()
    # By a worker that knows the line as hourly.
    await move(store, at(8.5), next_at=at(9), settled_at=at(8.5))
    await move(store, at(9), next_at=at(10), settled_at=at(9))
    clock.set(at(9) + 500)

    await new.run_once()

    assert (await row(store)).next_at == at(9.5)
