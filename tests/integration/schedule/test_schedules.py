"""Schedules: one session per instant, whoever keeps the time and whatever happens to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from timepiece import HOUR, MINUTE, Swift, at, hourly, messages, move, row, started, timekeeper

from outlast.core.record import DeliveryQueued, SessionStarted
from outlast.errors import StoreUnavailable
from outlast.integration.schedule.scheduler import Scheduler
from outlast.integration.schedule.state import forget_schedule
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock
from outlast.testing.wrapped_store import WrappedStore


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(at(8.5))


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


async def end_all(store: MemoryStore) -> None:
    """Let all sessions be over, as if they had been erased."""
    for info in await store.listing.sessions(limit=1000):
        await store.log.erase(info.session_id)


# Firing


async def test_an_instant_starts_a_task_that_has_nobody_to_ask(
    store: MemoryStore, clock: ManualClock
) -> None:
    schedule = hourly(message="Go.", name="digest", tenant="acme", principal="ada")
    keeper = timekeeper(store, clock, schedule)
    await keeper.run_once()
    assert await started(store) == []
    clock.set(at(9))

    await keeper.run_once()

    [info] = await started(store)
    opening, message = [
        entry.record for entry in (await store.log.read(info.session_id, 0)).entries
    ]
    assert isinstance(opening, SessionStarted)
    assert isinstance(message, DeliveryQueued)
    assert (info.agent, info.tenant, info.mode) == ("a", "acme", "task")
    assert (opening.can_ask, opening.principal, opening.mode) == (False, "ada", "task")
    assert message.principal == "schedule:digest"
    moved = await row(store, "digest")
    assert (moved.next_at, moved.settled_at, moved.session_id) == (at(10), at(9), info.session_id)


class Slow(WrappedStore):
    """Lets others have their turn before each answer, as a database does."""

    async def scan(self, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return await super().scan(*args, **options)

    tries = 0

    async def admit(self, admissions: Any) -> Any:
        self.tries += 1
        await asyncio.sleep(0)
        return await super().admit(admissions)

    async def put(self, *args: Any, **options: Any) -> bool:
        await asyncio.sleep(0)
        return await super().put(*args, **options)


async def test_however_many_keep_the_time_an_instant_fires_once(
    store: MemoryStore, clock: ManualClock
) -> None:
    slow = Slow(store)
    keepers = [timekeeper(slow, clock, hourly(overlap="skip")) for _ in range(5)]
    for hour in range(8, 13):
        clock.set(at(hour))
        await end_all(store)
        await asyncio.gather(*(keeper.run_once() for keeper in keepers))
        assert await messages(store) == ([f"{hour:02}:00"] if hour > 8 else [])

    assert slow.tries > 5, "several came to the same instant"
    assert (await row(store)).next_at == at(13)


class Killed(BaseException):
    """What a timekeeper does not live to see."""


class Fragile(WrappedStore):
    """Kills whoever moves a schedule on, before or after it is done."""

    kills = ""

    async def put(self, *args: Any, **options: Any) -> bool:
        if self.kills == "before":
            raise Killed
        moved = await super().put(*args, **options)
        if self.kills == "after":
            raise Killed
        return moved


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_instant_whose_timekeeper_is_killed_fires_once(
    store: MemoryStore, clock: ManualClock, moment: str
) -> None:
    fragile = Fragile(store)
    doomed = timekeeper(fragile, clock, hourly(overlap="queue"))
    await doomed.run_once()
    clock.set(at(9))
    fragile.kills = moment
    with pytest.raises(Killed):
        await doomed.run_once()

    await timekeeper(store, clock, hourly(overlap="queue")).run_once()

    [info] = await started(store)
    moved = await row(store)
    assert (moved.next_at, moved.settled_at, moved.session_id) == (at(10), at(9), info.session_id)


async def test_what_was_started_is_known_even_if_another_moved_the_schedule_on(
    store: MemoryStore, clock: ManualClock
) -> None:
    class Overtaken(WrappedStore):
        """Before this one's step is taken, somebody else passes the instant over."""

        async def put(self, *args: Any, **options: Any) -> bool:
            if await store.document.scan("schedule"):
                await move(store, at(9), next_at=at(10), settled_at=at(9), outcome="skipped")
            return await super().put(*args, **options)

    keeper = timekeeper(Overtaken(store), clock, hourly())
    await keeper.run_once()
    clock.set(at(9))
    await keeper.run_once()

    [info] = await started(store)
    moved = await row(store)
    assert (moved.next_at, moved.settled_at, moved.session_id) == (at(10), at(9), info.session_id)


async def test_an_instant_whose_session_was_erased_is_not_started_again(
    store: MemoryStore, clock: ManualClock
) -> None:
    keeper = timekeeper(store, clock, hourly())
    await keeper.run_once()
    clock.set(at(9))
    await keeper.run_once()
    await end_all(store)
    await move(store, at(10), next_at=at(9), settled_at=at(8))

    await keeper.run_once()

    assert await started(store) == []
    assert (await row(store)).next_at == at(10)


async def test_two_versions_of_the_message_are_one_start(
    store: MemoryStore, clock: ManualClock
) -> None:
    old, new = (timekeeper(store, clock, hourly(message=text)) for text in ("old", "new"))
    await old.run_once()
    clock.set(at(9))
    await old.run_once()
    await move(store, at(10), next_at=at(9), settled_at=at(8))

    await new.run_once()

    [info] = await started(store)
    assert await messages(store) == ["old"]
    assert ((await row(store)).session_id, (await row(store)).next_at) == (info.session_id, at(10))


# What was missed


@pytest.mark.parametrize(
    ("catch_up", "fired"),
    [
        ("skip", []),
        ("one", ["13:00"]),
        ("all", ["09:00", "10:00", "11:00", "12:00", "13:00"]),
    ],
)
async def test_what_nobody_was_there_for_is_caught_up_with_as_the_schedule_says(
    store: MemoryStore, clock: ManualClock, catch_up: str, fired: list[str]
) -> None:
    schedule, swift = hourly(catch_up=catch_up), Swift(store)
    await timekeeper(swift, clock, schedule).run_once()
    clock.set(at(13.5))

    await timekeeper(swift, clock, schedule).run_once()

    assert swift.said == fired
    assert (await row(store)).next_at == at(14)
    clock.set(at(14))
    await timekeeper(swift, clock, schedule).run_once()
    assert swift.said == [*fired, "14:00"]


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
async def test_what_is_made_up_for_is_done_one_after_the_other(
    store: MemoryStore, clock: ManualClock, overlap: str
) -> None:
    keeper = timekeeper(store, clock, hourly(catch_up="all", overlap=overlap))
    await keeper.run_once()
    clock.set(at(11.5))

    for said in ("09:00", "10:00", "11:00"):
        await keeper.run_once()
        await keeper.run_once()
        assert await messages(store) == [said]
        await end_all(store)


async def test_an_instant_that_is_a_minute_late_is_on_time(
    store: MemoryStore, clock: ManualClock
) -> None:
    keeper = timekeeper(store, clock, hourly())
    await keeper.run_once()
    clock.set(at(9) + MINUTE)

    await keeper.run_once()

    assert await messages(store) == ["09:00"]


async def test_much_that_was_missed_is_caught_up_with_bit_by_bit(
    store: MemoryStore, clock: ManualClock
) -> None:
    swift = Swift(store)
    keeper = timekeeper(swift, clock, hourly("* * * * *", catch_up="all"))
    await keeper.run_once()
    clock.advance(250 * MINUTE)

    bits = [await keeper.run_once() for _ in range(4)]

    assert bits == [100, 100, 50, 0]
    assert swift.said == sorted(set(swift.said))
    assert len(swift.said) == 250


# The session before is not over


async def test_skip_passes_over_what_comes_too_early(
    store: MemoryStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "outlast.integration.schedule")
    keeper = timekeeper(store, clock, hourly())
    await keeper.run_once()
    for hour in (9, 10, 11):
        clock.set(at(hour))
        await keeper.run_once()

    assert await messages(store) == ["09:00"]
    skipped = [record for record in caplog.records if "skipped" in record.getMessage()]
    assert [(record.instant, record.reason) for record in skipped] == [  # type: ignore[attr-defined]
        (at(10), "overlap"),
        (at(11), "overlap"),
    ]
    await end_all(store)
    clock.set(at(12))
    await keeper.run_once()
    assert await messages(store) == ["12:00"]


async def test_cancel_ends_the_session_before(store: MemoryStore, clock: ManualClock) -> None:
    keeper = timekeeper(store, clock, hourly(overlap="cancel"))
    await keeper.run_once()
    for hour in (9, 10):
        clock.set(at(hour))
        await keeper.run_once()

    first, second = await started(store)
    kinds = {
        info.session_id: [
            type(each.record) for each in (await store.log.read(info.session_id, 2)).entries
        ]
        for info in (first, second)
    }
    assert [kind.__name__ for kind in kinds[first.session_id]] == ["CancelRequested"]
    assert kinds[second.session_id] == []


# Clocks


async def test_a_schedule_that_a_clock_ran_away_with_is_brought_back(
    store: MemoryStore, clock: ManualClock
) -> None:
    ahead, swift = ManualClock(at(8.5) + 365 * 24 * HOUR), Swift(store)
    keeper, wrong = (timekeeper(swift, each, hourly()) for each in (clock, ahead))
    await keeper.run_once()
    await wrong.run_once()
    ahead.advance(HOUR // 2)
    await wrong.run_once()
    assert (swift.said, (await row(store)).settled_at) == (["09:00"], ahead.now())

    await keeper.run_once()
    clock.set(at(9))
    await keeper.run_once()

    assert swift.said == ["09:00", "09:00"]
    assert ((await row(store)).next_at, (await row(store)).settled_at) == (at(10), ahead.now())
    assert await keeper.run_once() == 0


async def test_what_a_clock_took_for_missed_before_its_time_fires_at_its_time(
    store: MemoryStore, clock: ManualClock
) -> None:
    ahead = ManualClock(at(9.25))
    keeper, wrong = (timekeeper(store, each, hourly()) for each in (clock, ahead))
    await keeper.run_once()
    await wrong.run_once()
    assert (await row(store)).next_at == at(10)
    clock.set(at(9) + 5)

    assert [await keeper.run_once() for _ in range(2)] == [1, 0]

    assert await messages(store) == ["09:00"]
    assert ((await row(store)).next_at, (await row(store)).settled_at) == (at(10), at(9))


@pytest.mark.parametrize("behind", [HOUR, 365 * 24 * HOUR, at(8)])
async def test_a_clock_that_is_behind_brings_nothing_back_that_was_settled(
    store: MemoryStore, clock: ManualClock, behind: int
) -> None:
    late, swift = ManualClock(), Swift(store)
    schedule = hourly(catch_up="all", message=lambda at: f"{at:%Y-%m-%d %H:%M}")
    keeper, wrong = (timekeeper(swift, each, schedule) for each in (clock, late))
    for half in range(17, 24):
        clock.set(at(half / 2))
        late.set(at(half / 2) - behind)
        await keeper.run_once()
        await wrong.run_once()

    today = [said for said in swift.said if said >= "2026-05-01 08:30"]
    assert today == ["2026-05-01 09:00", "2026-05-01 10:00", "2026-05-01 11:00"]
    assert len(swift.said) <= 6, "what the wrong clock has named since"


async def test_a_clock_that_is_set_back_fires_and_ends_nothing_again(
    store: MemoryStore, clock: ManualClock
) -> None:
    keeper = timekeeper(store, clock, hourly(overlap="cancel"))
    await keeper.run_once()
    for hour in (9, 10, 11):
        clock.set(at(hour))
        await keeper.run_once()
    ends = [info.end for info in await started(store)]

    for again in (8.5, 9, 9.5, 10, 10.5, 11):
        clock.set(at(again))
        await keeper.run_once()

    assert await messages(store) == ["09:00", "10:00", "11:00"]
    assert [info.end for info in await started(store)] == ends
    assert ((await row(store)).next_at, (await row(store)).settled_at) == (at(12), at(11))


# Trouble


async def test_a_message_that_cannot_be_made_is_tried_again_and_holds_up_no_other(
    store: MemoryStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    broken = True

    def say(at: datetime) -> str:
        if broken:
            raise RuntimeError("no news")
        return "news"

    keeper = timekeeper(store, clock, hourly(message=say), hourly(name="b", message="other"))
    await keeper.run_once()
    clock.set(at(9))
    await keeper.run_once()
    assert await messages(store) == ["other"]
    assert "the message of a schedule could not be made" in caplog.text

    broken = False
    await keeper.run_once()

    assert await messages(store) == ["other", "news"]


@pytest.mark.parametrize("words", [lambda at: "", lambda at: 5])
async def test_a_message_that_is_none_is_told_in_the_log(
    store: MemoryStore,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    words: Callable[[datetime], Any],
) -> None:
    keeper = timekeeper(store, clock, hourly(message=words))
    await keeper.run_once()
    clock.set(at(9))
    await keeper.run_once()

    assert await started(store) == []
    assert [getattr(line, "code", "") for line in caplog.records] == ["INVALID_MESSAGE"]


async def test_an_instant_that_finds_the_queue_full_fires_when_there_is_room(
    store: MemoryStore, clock: ManualClock
) -> None:
    keeper = timekeeper(store, clock, hourly(), hourly(name="b", message="second"), room=1)
    await keeper.run_once()
    clock.set(at(9))
    await keeper.run_once()
    assert await messages(store) == ["09:00"]

    await end_all(store)
    await keeper.run_once()

    assert await messages(store) == ["second"]


class Away(WrappedStore):
    """A store that is away now and then."""

    is_away = False

    async def admit(self, admissions: Any) -> Any:
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().admit(admissions)


async def test_a_store_that_is_away_loses_no_instant(
    store: MemoryStore, clock: ManualClock
) -> None:
    away = Away(store)
    keeper = timekeeper(away, clock, hourly())
    await keeper.run_once()
    clock.set(at(9))
    away.is_away = True
    with pytest.raises(StoreUnavailable):
        await keeper.run_once()
    away.is_away = False

    await keeper.run_once()

    assert await messages(store) == ["09:00"]


async def test_a_schedule_that_was_forgotten_is_armed_anew(
    store: MemoryStore, clock: ManualClock
) -> None:
    keeper: Scheduler = timekeeper(store, clock, hourly())
    await keeper.run_once()
    await forget_schedule(store, "a")
    clock.set(at(9))

    await keeper.run_once()

    assert await started(store) == []
    assert (await row(store)).next_at == at(10)
