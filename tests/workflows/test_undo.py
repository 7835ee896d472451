"""What a run has done is undone when it fails or is cancelled: once, and in reverse."""

from datetime import timedelta
from typing import Any

import pytest
from scene import at_standstill, running, the, until

from outlast import Outlast, Run, WorkflowContext, workflow
from outlast.errors import NothingToRetry, StepInterrupted
from outlast.testing import crash_everywhere
from outlast.testing.ledger import Ledger


class Desk:
    """A place where things are booked and given back."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.is_shut = False

    async def book(self, what: str) -> str:
        self.did.append(f"book {what}")
        if what == "moon":
            raise ValueError("no flights")
        return what

    async def release(self, what: str) -> None:
        if self.is_shut and what == "car":
            raise ConnectionError("shut")
        self.did.append(f"release {what}")


def travel(desk: Desk) -> Any:
    @workflow
    async def trip(ctx: WorkflowContext, places: list[str]) -> str:
        for place in places:
            ctx.on_undo(desk.release, place)
            await ctx.step(desk.book, place)
            await ctx.sleep(0.001)
        await ctx.ask("Is it good?", ["yes"])
        return "done"

    return trip


async def test_a_run_that_fails_is_undone_in_reverse_the_failed_step_included() -> None:
    desk = Desk()
    async with running(travel(desk)) as app:
        run = await app.run("trip", ["hotel", "car", "moon"])
        result = await run.wait()

        assert result.status == "errored"
        assert result.error is not None
        assert "no flights" in result.error.message
        assert desk.did == [
            *("book hotel", "book car", "book moon"),
            *("release moon", "release car", "release hotel"),
        ]


async def test_a_run_that_is_cancelled_while_it_waits_is_undone_and_then_is_cancelled() -> None:
    desk = Desk()
    async with running(travel(desk)) as app:
        run = await app.run("trip", ["hotel", "car"])
        await run.wait()
        await run.cancel("changed my mind")
        await run.cancel("really")
        session = await app.session(run.id)
        await until(session, "session.ended")

        assert (await run.wait()).status == "cancelled"
        assert await run.requests() == ()
        assert desk.did[2:] == ["release car", "release hotel"]


async def test_a_run_that_ends_well_is_not_undone() -> None:
    desk = Desk()
    async with running(travel(desk)) as app:
        run = await app.run("trip", ["hotel"])
        await run.answer((await run.wait()).requests[0].request_id, "yes")

        assert (await run.wait()).unwrap() == "done"
        assert desk.did == ["book hotel"]


async def test_a_deadline_that_has_passed_does_not_bound_the_undo() -> None:
    desk = Desk()

    @workflow
    async def trip(ctx: WorkflowContext) -> None:
        async def slowly() -> None:
            await ctx.sleep(600)
            desk.did.append("undone")

        ctx.on_undo(slowly)
        await ctx.step(desk.book, "hotel")
        await ctx.ask("Go on?", ["yes"])

    async with at_standstill(trip) as (app, clock):
        run = await app.run(trip, deadline=timedelta(seconds=60))
        session = await app.session(run.id)
        await until(session, "request.opened")
        clock.advance(61_000)
        await until(session, "timer.set")
        assert desk.did == ["book hotel"]
        clock.advance(601_000)
        await until(session, "session.failed")

        result = await run.wait()
        assert result.error is not None
        assert result.error.code == "DEADLINE_EXCEEDED"
        assert desk.did == ["book hotel", "undone"]


async def test_an_undo_that_fails_ends_the_run_with_what_is_left_and_a_retry_goes_on() -> None:
    desk = Desk()
    desk.is_shut = True
    async with running(travel(desk)) as app:
        run = await app.run("trip", ["hotel", "car", "moon"])
        result = await run.wait()

        assert result.status == "errored"
        assert result.error is not None
        assert result.error.code == "UNDO_FAILED"
        assert "car" not in desk.did[3:]
        [ended] = await the(await app.session(run.id), "undo.ended")
        assert len(ended.data["left"]) == 2
        assert desk.did[3:] == ["release moon"]

        desk.is_shut = False
        again = await run.retry()
        retried = await again.wait()
        assert again.id != run.id
        assert (await again.meta()).retry_of == run.id
        assert retried.error is not None
        assert "no flights" in retried.error.message
        assert desk.did[4:] == ["release car", "release hotel"]
        assert await run.status() == "errored"


async def test_a_retry_does_not_repeat_what_succeeded_unless_it_was_undone() -> None:
    done: list[str] = []
    is_fine = False

    async def do(what: str) -> str:
        done.append(what)
        if what == "late" and not is_fine:
            raise ValueError("not yet")
        return what

    @workflow
    async def flow(ctx: WorkflowContext, undoes: bool) -> list[Any]:
        if undoes:
            ctx.on_undo(done.append, "undo")
        first = await ctx.step(do, "early")
        chance = ctx.random()
        return [first, await ctx.step(do, "late"), chance]

    async with running(flow) as app:
        plain = await app.run(flow, False, tags={"a": "b"})
        undone = await app.run(flow, True)
        assert {(await each.wait()).status for each in (plain, undone)} == {"errored"}
        assert [step.status for step in await plain.steps()] == ["completed", "failed"]
        is_fine = True
        done.clear()

        again = await plain.retry(dispatch_id="once")
        assert (await plain.retry(dispatch_id="once")).id == again.id
        assert (await again.wait()).unwrap()[:2] == ["early", "late"]
        assert done == ["late"]
        assert (await again.meta()).tags == {"a": "b"}
        done.clear()
        await (await undone.retry()).wait()
        assert done == ["early", "late"]
        with pytest.raises(NothingToRetry):
            await again.retry()


async def test_nothing_is_undone_twice_wherever_the_worker_crashes() -> None:
    ledger = Ledger()

    async def do(what: str) -> None:
        ledger.record(what)

    @workflow
    async def trip(ctx: WorkflowContext, fails: bool) -> None:
        async def one(what: str) -> None:
            ctx.on_undo(undo, what)
            try:
                await ctx.step(do, what)
            except StepInterrupted:
                return

        async def undo(what: str) -> None:
            # The ledger says whether it was done: an undo finds that out, as it may come twice.
            ledger.record(f"undo {what}", idempotency_key=what)

        await one("hotel")
        await ctx.gather(one("car"), one("flight"))
        if fails:
            raise ValueError("no")

    async def scenario(app: Outlast) -> Any:
        run: Run[Any] = await app.run("trip", True)
        return (await run.wait()).status

    report = await crash_everywhere(scenario, agents=[trip], ledger=ledger)

    assert len(report.runs) > 15
    report.assert_no_effect_repeated()
    order = [effect.what for effect in report.undisturbed.effects]
    assert order[3:] == ["undo flight()", "undo car()", "undo hotel()"]
    for run in report.runs:
        undone = [effect.what for effect in run.effects if "undo" in effect.what]
        assert undone == [each for each in order[3:] if each in undone]
        assert run.output == "errored"
