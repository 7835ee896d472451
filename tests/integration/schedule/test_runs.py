"""Schedules of workflows: one run for each instant, and what comes while a run is not over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from scene import PATIENT, running
from timepiece import HOUR, at, row, standing, timekeeper

from outlast import Event, Outlast, Run, Schedule, WorkflowContext, workflow
from outlast.integration.schedule.schedule import Overlap
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock

UNDONE: list[str] = []


@workflow
async def tidy(ctx: WorkflowContext, hour: str) -> str:
    ctx.on_undo(UNDONE.append, hour, on_interrupt="rerun")
    await ctx.sleep(timedelta(minutes=150))
    return f"tidied at {hour}"


@workflow
async def ask(ctx: WorkflowContext) -> str:
    return (await ctx.ask("Close the books?", ["yes", "no"])).option


def hourly(overlap: Overlap = "skip", **options: Any) -> Schedule:
    given = {"workflow": tidy, "input": lambda at: f"{at:%H:%M}", "tags": {"kind": "tidy"}}
    return Schedule("0 * * * *", overlap=overlap, **{**given, **options})


class Fleet:
    """Workers of one store, each with the same schedule, on one clock."""

    def __init__(self, app: Outlast, clock: ManualClock, schedule: Schedule) -> None:
        self.app = app
        self.clock = clock
        self._keepers = [
            timekeeper(app.store, clock, schedule, workflows=[tidy, ask]) for _ in range(3)
        ]

    async def comes(self, hour: float) -> None:
        """Let the clock show an hour, and have every scheduler look at it."""
        self.clock.set(at(hour))
        await asyncio.gather(*(keeper.run_once() for keeper in self._keepers))

    async def runs(self) -> list[Run[Any]]:
        """Return the runs that were started, oldest first."""
        return [await self.app.get_run(run.run_id) for run in reversed(await self.app.runs())]

    async def until(self, run: Run[Any], kind: str) -> Event:
        async for event in run.events():
            if event.type == kind:
                return event
        raise AssertionError(f"{run} has no {kind}")

    async def given(self) -> list[Any]:
        return [(await run.meta()).input for run in await self.runs()]


@asynccontextmanager
async def at_half_past_eight(schedule: Schedule) -> AsyncIterator[Fleet]:
    clock = ManualClock(at(8.5))
    options: dict[str, Any] = {"store": MemoryStore(clock), "clock": clock}
    async with running(tidy, ask, settings=PATIENT, **options) as app:
        fleet = Fleet(app, clock, schedule)
        await fleet.comes(8.5)
        yield fleet


async def test_an_instant_is_one_run_however_many_workers_keep_the_time() -> None:
    async with at_half_past_eight(hourly(overlap="cancel")) as fleet:
        for hour in (9, 9, 10, 11):
            await fleet.comes(hour)

        assert await fleet.given() == ["09:00", "10:00", "11:00"]
        last = (await fleet.runs())[-1]
        meta = await last.meta()
        assert (meta.workflow, meta.tags, meta.principal) == ("tidy", {"kind": "tidy"}, "")
        assert (await row(fleet.app.store, "tidy")).session_id == last.id
        assert await fleet.app.sessions() == []


async def test_queue_keeps_what_is_due_until_the_run_before_is_over() -> None:
    async with at_half_past_eight(hourly(overlap="queue")) as fleet:
        for number, hour in enumerate((9, 11.5, 14), 1):
            await fleet.comes(hour)
            await fleet.comes(hour)
            *_, newest = runs = await fleet.runs()
            assert len(runs) == number
            await fleet.until(newest, "timer.set")
            fleet.clock.advance(int(2.5 * HOUR))
            assert (await newest.wait()).status == "completed"

        assert await fleet.given() == ["09:00", "10:00", "11:00"]


async def test_skip_passes_over_what_comes_while_the_run_before_waits() -> None:
    async with at_half_past_eight(hourly()) as fleet:
        await fleet.comes(9)
        [first] = await fleet.runs()
        await fleet.until(first, "timer.set")
        await fleet.comes(10)
        assert (await row(fleet.app.store, "tidy")).last_outcome == "skipped"
        fleet.clock.advance(2 * HOUR)
        assert (await first.wait()).unwrap() == "tidied at 09:00"
        await fleet.comes(13)

        assert await fleet.given() == ["09:00", "13:00"]


async def test_cancel_cancels_the_run_before_with_its_undo() -> None:
    UNDONE.clear()
    async with at_half_past_eight(hourly(overlap="cancel")) as fleet:
        await fleet.comes(9)
        [first] = await fleet.runs()
        await fleet.until(first, "timer.set")
        await fleet.comes(10)

        assert (await first.wait()).status == "cancelled"
        assert UNDONE == ["09:00"]
        assert await fleet.given() == ["09:00", "10:00"]


async def test_a_run_of_a_schedule_may_ask() -> None:
    async with at_half_past_eight(hourly(workflow=ask, input=None)) as fleet:
        await fleet.comes(9)
        [run] = await fleet.runs()
        [request] = (await run.wait()).requests
        await run.answer(request.request_id, "yes")

        assert (await run.wait()).unwrap() == "yes"


async def test_an_instants_run_is_the_first_whatever_newer_code_would_give_it() -> None:
    async with at_half_past_eight(hourly()) as fleet:
        await fleet.comes(9)
        newer = hourly(input="changed")
        await timekeeper(fleet.app.store, fleet.clock, newer, workflows=[tidy]).run_once()

        assert await fleet.given() == ["09:00"]


async def test_a_run_is_started_by_hand_and_hooks_are_told_of_it() -> None:
    seen: list[tuple[str, str]] = []
    told = asyncio.Event()
    clock = ManualClock(at(8.5))
    app = Outlast(
        [ask],
        store=MemoryStore(clock),
        clock=clock,
        worker=PATIENT,
        schedules=[Schedule("0 9 * * *", workflow=ask, name="books")],
    )

    @app.hook("request.opened", "session.completed")
    async def note(event: Event) -> None:
        seen.append((event.session_id, event.type))
        if event.type == "session.completed":
            told.set()

    async with app:
        session = await app.schedules.trigger("books", dispatch_id="now")
        again = await app.schedules.trigger("books", dispatch_id="now")
        run = await app.get_run(session.id)
        [request] = (await run.wait()).requests
        await run.answer(request.request_id, "no")
        result = await run.wait()
        await told.wait()

        assert again.id == run.id
        assert result.unwrap() == "no"
        assert seen == [(run.id, "request.opened"), (run.id, "session.completed")]
        known = await standing(app, "books")
        assert (known.agent, known.workflow) == ("", "ask")
