"""Schedules of an app at work: they fire by themselves, wait for each other, and can be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from scene import PATIENT, agent, running, until
from timepiece import HOUR, MINUTE, at, hourly, messages, standing, started, timekeeper

from outlast import Context, Outlast, Schedule, Session, tool
from outlast.core.instant import date_of
from outlast.core.message import UserMessage
from outlast.errors import DispatchConflict, UnknownSchedule
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import call, say


@tool
async def nap(ctx: Context) -> str:
    await ctx.sleep(timedelta(minutes=150))
    return "rested"


def sleeper() -> Any:
    """An agent whose every session takes two hours and a half."""
    return agent(
        lambda asked: (
            call("nap") if isinstance(asked.view.messages[-1], UserMessage) else say("done")
        ),
        tools=[nap],
    )


@asynccontextmanager
async def at_half_past_eight(*schedules: Schedule) -> AsyncIterator[tuple[Outlast, ManualClock]]:
    clock = ManualClock(at(8.5))
    options: dict[str, Any] = {"store": MemoryStore(clock), "clock": clock}
    async with running(sleeper(), settings=PATIENT, schedules=schedules, **options) as app:
        yield app, clock


async def heard(app: Outlast, count: int) -> list[Session[Any]]:
    """Wait until so many sessions were started."""
    written = asyncio.Event()
    stop = app.store.work.listen(lambda *_: written.set())
    while len(found := await started(app.store)) < count:
        written.clear()
        await written.wait()
    stop()
    return [await app.session(info.session_id) for info in found]


async def armed(app: Outlast) -> None:
    """Wait until the worker's timekeeper has had its first look."""
    while not await app.store.document.scan("schedule"):  # noqa: ASYNC110 - the store tells nobody
        await asyncio.sleep(0)


async def test_a_worker_fires_what_is_due_by_itself() -> None:
    async with at_half_past_eight(hourly()) as (app, clock):
        await armed(app)
        clock.set(at(9))

        [session] = await heard(app, 1)

        await until(session, "session.waiting")
        clock.advance(3 * HOUR)
        assert (await session.wait()).output == "done"
        assert (await session.info()).over == "completed"


async def test_an_app_that_does_not_work_fires_nothing() -> None:
    async with Outlast(
        [sleeper()], store="memory://", worker=None, schedules=[hourly("* * * * *")]
    ) as app:
        assert await app.store.document.scan("schedule") == []
        assert [each.status for each in await app.schedules.list()] == ["new"]


async def test_queue_keeps_what_is_due_until_the_session_before_is_over() -> None:
    async with at_half_past_eight() as (app, clock):
        keeper = timekeeper(app.store, clock, hourly("0 9-11 * * *", overlap="queue"))
        await keeper.run_once()
        clock.set(at(9))
        for number in (1, 2, 3):
            await keeper.run_once()
            await keeper.run_once()
            *_, newest = sessions = await heard(app, number)
            assert len(sessions) == number
            await until(newest, "timer.set")
            clock.advance(150 * MINUTE)
            assert (await newest.wait()).output == "done"

        assert await messages(app.store) == ["09:00", "10:00", "11:00"]


async def test_cancel_ends_the_session_before_and_starts_the_next() -> None:
    async with at_half_past_eight() as (app, clock):
        keeper = timekeeper(app.store, clock, hourly(overlap="cancel"))
        await keeper.run_once()
        clock.set(at(9))
        await keeper.run_once()
        [first] = await heard(app, 1)
        await until(first, "timer.set")
        clock.set(at(10))

        await keeper.run_once()

        ended = await until(first, "session.ended")
        assert ended.data["reason"] == "the next session of its schedule takes its place"
        assert await messages(app.store) == ["09:00", "10:00"]


# By hand


async def test_a_paused_schedule_fires_nothing_and_makes_up_for_nothing() -> None:
    async with at_half_past_eight() as (app, clock):
        keeper = timekeeper(app.store, clock, hourly(catch_up="all", overlap="cancel"))
        await keeper.run_once()
        await app.schedules.pause("a")
        clock.set(at(11.5))
        await keeper.run_once()
        assert await started(app.store) == []

        await app.schedules.resume("a")
        await keeper.run_once()
        clock.set(at(12))
        await keeper.run_once()

        assert await messages(app.store) == ["12:00"]


async def test_resuming_what_is_not_paused_loses_nothing() -> None:
    async with at_half_past_eight() as (app, clock):
        keeper = timekeeper(app.store, clock, hourly())
        await keeper.run_once()
        clock.set(at(9))

        await app.schedules.resume("a")
        await keeper.run_once()

        assert await messages(app.store) == ["09:00"]


async def test_a_schedule_is_triggered_besides_its_instants() -> None:
    async with at_half_past_eight(hourly(name="digest", message="Go.")) as (app, _):
        await armed(app)
        await app.schedules.pause("digest")

        session = await app.schedules.trigger("digest", dispatch_id="d")
        again = await app.schedules.trigger("digest", dispatch_id="d")

        info = await session.info()
        assert (session.id, info.mode, info.agent) == (again.id, "task", "a")
        assert await messages(app.store) == ["Go."]
        listed = await standing(app, "digest")
        assert (listed.status, listed.next_at, listed.session_id) == ("paused", date_of(at(9)), "")
        other = await app.schedules.trigger("digest")
        assert other.id != session.id
        with pytest.raises(DispatchConflict):
            await app.start("a", "other", dispatch_id="d")


async def test_a_trigger_is_safe_to_repeat_where_its_message_says_the_time() -> None:
    schedule = hourly(name="digest", message=lambda at: f"It is {at:%H:%M:%S}.")
    async with at_half_past_eight(schedule) as (app, clock):
        session = await app.schedules.trigger("digest", dispatch_id="d")
        clock.set(clock.now() + 1000)

        assert (await app.schedules.trigger("digest", dispatch_id="d")).id == session.id
        assert await messages(app.store) == ["It is 08:30:00."]


async def test_no_dispatch_id_of_a_user_takes_an_instants_place() -> None:
    async with at_half_past_eight(hourly(name="digest", message="Go.")) as (app, clock):
        await armed(app)
        for guess in (f"schedule:digest:{at(9)}", f"instant:{at(9)}"):
            await app.start("a", "mine", dispatch_id=guess)
        clock.set(at(9))
        await heard(app, 3)

        assert sorted(await messages(app.store)) == ["Go.", "mine", "mine"]


async def test_names_that_nobody_knows_are_refused() -> None:
    async with at_half_past_eight(hourly(name="digest")) as (app, _):
        with pytest.raises(UnknownSchedule, match="it has: digest"):
            await app.schedules.trigger("other")
        with pytest.raises(UnknownSchedule, match="knows no schedule 'other'"):
            await app.schedules.pause("other")
        with pytest.raises(UnknownSchedule, match="knows no schedule 'other'"):
            await app.schedules.resume("other")


async def test_schedules_are_listed_with_how_they_stand() -> None:
    clock = ManualClock(at(8.5))
    store = MemoryStore(clock)
    keeper = timekeeper(
        store, clock, hourly(name="here"), hourly(name="other"), hourly(name="gone", tenant="acme")
    )
    await keeper.run_once()
    for hour in (9, 10, 11):
        clock.set(at(hour))
        await keeper.run_once()
    code = [
        hourly(name="here"),
        hourly("30 * * * *", name="other"),
        hourly(name="unseen", timezone="Europe/Berlin"),
    ]
    app = Outlast([sleeper()], store=store, clock=clock, worker=None, schedules=code)

    listed = {each.name: each for each in await app.schedules.list()}

    assert {name: each.status for name, each in listed.items()} == {
        "gone": "gone",
        "here": "armed",
        "other": "changed",
        "unseen": "new",
    }
    here = listed["here"]
    assert (here.cron, here.timezone, here.agent) == ("0 * * * *", "UTC", "a")
    assert (here.next_at, here.last_at) == (date_of(at(12)), date_of(at(11)))
    assert here.last == "skipped"
    assert here.session_id in {info.session_id for info in await started(store)}
    assert (listed["gone"].tenant, listed["gone"].agent) == ("acme", "")
    assert (listed["unseen"].timezone, listed["unseen"].next_at) == ("Europe/Berlin", None)


async def test_it_is_listed_how_the_last_instant_ended() -> None:
    clock = ManualClock(at(8.5))
    store = MemoryStore(clock)
    app = Outlast([sleeper()], store=store, clock=clock, worker=None, schedules=[hourly()])
    keeper = timekeeper(store, clock, hourly())
    ends = []
    for hour in (8.5, 9, 10, 11.5):
        clock.set(at(hour))
        await keeper.run_once()
        now = await standing(app)
        ends.append((now.last_at, now.last))
    await app.schedules.pause("a")
    clock.set(at(12.01))
    await app.schedules.resume("a")
    await keeper.run_once()
    now = await standing(app)

    assert ends == [
        (None, ""),
        (date_of(at(9)), "fired"),
        (date_of(at(10)), "skipped"),
        (date_of(at(11)), "missed"),
    ]
    assert (now.last_at, now.next_at) == (date_of(at(12)), date_of(at(13)))
    assert now.last == "skipped"
