"""Runs of workflows: what a run is, what its handle says, and that it goes on after a crash."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from scene import agent, at_standstill, running, seen, until

from outlast import Agent, Outlast, Run, WorkflowContext, workflow
from outlast.errors import (
    DispatchConflict,
    InvalidDefinition,
    InvalidInput,
    RunError,
    StepError,
    StepInterrupted,
    UnknownRun,
    UnknownWorkflow,
)
from outlast.log.verify import verify
from outlast.testing import crash_everywhere
from outlast.testing.ledger import Ledger
from outlast.testing.scripted import ScriptedModel, say


class Order(BaseModel):
    item: str
    count: int = 1


class Bill(BaseModel):
    cents: int


def price(item: str) -> int:
    return len(item)


@workflow
async def sell(ctx: WorkflowContext, order: Order) -> Bill:
    each = await ctx.step(price, order.item)
    await ctx.sleep(timedelta(milliseconds=1))
    return Bill(cents=each * order.count)


@workflow
async def ask(ctx: WorkflowContext) -> str:
    return (await ctx.ask("Go on?", ["yes", "no"])).option


async def test_a_run_takes_and_returns_what_its_workflow_says() -> None:
    async with running(sell) as app:
        run = await app.run(sell, Order(item="tea", count=2))

        result = await run.wait()
        assert run.id.startswith("run_")
        assert result.status == "completed"
        assert result.unwrap() == Bill(cents=6)
        assert (await app.get_run(run.id)).id == run.id


async def test_creation_is_first_writer_wins_and_an_ended_run_is_never_made_active_again() -> None:
    async with running(sell) as app:
        first = await app.run(sell, Order(item="tea"), dispatch_id="monday")
        await first.wait()
        again = await app.run(sell, Order(item="tea"), dispatch_id="monday")

        assert (again.id, again.duplicate) == (first.id, True)
        assert await again.status() == "completed"
        with pytest.raises(DispatchConflict):
            await app.run(sell, Order(item="rum"), dispatch_id="monday")


async def test_an_input_is_the_same_whatever_the_order_of_what_has_none() -> None:
    @workflow
    async def count(ctx: WorkflowContext, given: dict[str, set[int]]) -> int:
        return len(given)

    async with running(count) as app:
        first = await app.run(count, {"a": {0, 8}, "b": {1}}, dispatch_id="monday")
        again = await app.run(count, {"b": {1}, "a": {8, 0}}, dispatch_id="monday")

        assert again.id == first.id
        with pytest.raises(DispatchConflict):
            await app.run(count, {"a": {0}, "b": {1}}, dispatch_id="monday")


async def test_a_run_says_how_it_stands_and_what_it_was_started_with() -> None:
    async with at_standstill(sell) as (app, clock):
        run = await app.run(sell, Order(item="tea"), delay=60)
        session = await app.session(run.id)
        await until(session, "session.waiting")
        assert await run.status() == "queued"

        clock.advance(61_000)
        await seen(session, "timer.set")
        assert await run.status() == "waiting"
        clock.advance(1)
        await run.wait()
        meta = await run.meta()

        assert (meta.workflow, meta.status) == ("sell", "completed")
        assert (meta.input, meta.output) == ({"item": "tea", "count": 1}, {"cents": 3})
        assert meta.started_at is not None
        assert meta.ended_at is not None
        assert meta.created_at < meta.started_at <= meta.ended_at


async def test_a_body_that_raises_ends_its_run_for_good() -> None:
    @workflow
    async def fails(ctx: WorkflowContext) -> None:
        raise KeyError("no such thing")

    async with running(fails) as app:
        result = await (run := await app.run(fails)).wait()

        assert result.status == "errored"
        assert result.error is not None
        assert result.error.message == "KeyError: 'no such thing'"
        with pytest.raises(RunError):
            result.unwrap()
        assert (await app.session(run.id)).id == run.id
        assert (await run.info()).over == "failed"


async def test_a_run_that_waits_is_answered_and_cancelled_as_a_session_is() -> None:
    async with running(ask) as app:
        first, second = await app.run(ask), await app.run(ask)
        waiting = await first.wait()
        assert waiting.status == "waiting"
        await first.answer(waiting.requests[0].request_id, "yes")
        await second.wait()
        await second.cancel("not wanted")

        assert (await first.wait()).output == "yes"
        assert (await second.wait()).status == "cancelled"


async def test_a_deadline_ends_a_run_that_waits() -> None:
    async with at_standstill(ask) as (app, clock):
        run = await app.run(ask, deadline=timedelta(minutes=1))
        await run.wait()
        clock.advance(61_000)
        while (result := await run.wait(timeout=0.05)).status == "waiting":
            pass

        assert result.status == "errored"
        assert result.error is not None
        assert result.error.code == "DEADLINE_EXCEEDED"


async def test_agents_are_asked_and_branches_gathered_as_in_tools() -> None:
    @workflow
    async def survey(ctx: WorkflowContext, names: list[str]) -> list[str]:
        said = await ctx.gather(*(ctx.agent("a").ask(name) for name in names))
        return [str(each) for each in said]

    async with running(survey, agent(lambda _: say("fine"))) as app:
        run = await app.run(survey, ["ann", "bob"])

        assert (await run.wait()).output == ["fine", "fine"]


async def test_an_error_of_a_step_is_recorded_and_raised_again() -> None:
    calls: list[int] = []

    async def pay() -> None:
        calls.append(1)
        raise ConnectionError("the bank is away")

    @workflow
    async def buy(ctx: WorkflowContext) -> str:
        try:
            await ctx.step(pay)
        except StepError as error:
            await ctx.sleep(0.001)
            return f"{error}"
        return "paid"

    async with running(buy) as app:
        assert (await (await app.run(buy)).wait()).output == "ConnectionError: the bank is away"
        assert calls == [1]


@pytest.mark.parametrize("tries", [1, 3])
async def test_a_step_is_tried_so_often_in_all(tries: int) -> None:
    calls: list[int] = []

    async def pay() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("away")
        return "paid"

    @workflow
    async def buy(ctx: WorkflowContext) -> str:
        return await ctx.step(pay, max_attempts=tries)

    async with running(buy) as app:
        result = await (await app.run(buy)).wait()
        assert result.status == ("completed" if tries == 3 else "errored")
        assert len(calls) == tries


async def test_wrong_input_and_unknown_names_are_refused_before_anything_is_written() -> None:
    async with running(sell, agent([])) as app:
        with pytest.raises(InvalidInput, match=r"no input of the workflow sell: .*count"):
            await app.run(sell, {"item": "tea", "count": "many"})  # type: ignore[misc]
        with pytest.raises(UnknownWorkflow, match="it has: sell"):
            await app.run("nothing")
        with pytest.raises(UnknownRun):
            await app.get_run("run_1")
        with pytest.raises(InvalidInput, match=r"a run is started with app\.run"):
            await app.start("a", "hi", mode="run")  # type: ignore[arg-type]
        assert await app.sessions() == []


def test_a_workflow_that_cannot_work_is_refused_where_it_is_defined() -> None:
    def sync(ctx: WorkflowContext) -> None: ...

    async def blind(number: int) -> None: ...

    async def many(ctx: WorkflowContext, a: int, b: int) -> None: ...

    for function, why in (
        (sync, "async function"),
        (blind, "first argument .* is its context"),
        (many, "one input"),
    ):
        with pytest.raises(InvalidDefinition, match=why):
            workflow(function)  # type: ignore[arg-type]
    with pytest.raises(InvalidDefinition, match="an agent and a workflow are named sell"):
        Outlast([Agent("sell", ScriptedModel([])), sell])


async def test_no_step_is_repeated_wherever_the_worker_crashes() -> None:
    ledger = Ledger()

    def effect(what: str) -> str:
        ledger.record(what)
        return what

    async def once(ctx: WorkflowContext, what: str) -> str:
        try:
            return await ctx.step(effect, what)
        except StepInterrupted:
            return what

    @workflow
    async def trip(ctx: WorkflowContext, names: list[str]) -> list[str]:
        done = [await once(ctx, name) for name in names]
        await ctx.sleep(0.001)
        more = await ctx.gather(a=once(ctx, "hotel"), b=once(ctx, "car"))
        return [*done, *more.values()]

    async def scenario(app: Outlast) -> Any:
        run: Run[Any] = await app.run("trip", ["flight", "train"], dispatch_id="1")
        return (await run.wait()).output

    report = await crash_everywhere(scenario, agents=[trip], ledger=ledger)

    assert len(report.runs) > 10
    report.assert_no_effect_repeated()
    report.assert_same_output()


async def test_the_log_of_a_run_that_tries_another_again_agrees_with_its_index() -> None:
    @workflow
    async def fails(ctx: WorkflowContext, number: int) -> int:
        return await ctx.step(lambda: number // 0, name="divide")

    async with running(fails) as app:
        run = await app.run(fails, 1)
        await run.wait()
        again = await run.retry()
        await again.wait()

        assert await verify(app.store, again.id) == []
        assert (await again.meta()).input == 1
        assert (await again.meta()).retry_of == run.id
