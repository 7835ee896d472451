"""What a body can do through its context, and that it finds all of it again when it runs anew."""

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from itertools import cycle
from typing import Any

import pytest
from msgspec import Struct
from pydantic import BaseModel
from scene import FAST, agent, at_standstill, log_of, running, the, until

from outlast import Outlast, Run, WorkflowContext, workflow
from outlast.errors import (
    EventTimeout,
    InvalidInput,
    RunFailed,
    SessionOver,
    StepError,
    StepInterrupted,
)
from outlast.stores.sqlite import MemoryStore
from outlast.testing.scripted import say

SOON = timedelta(milliseconds=1)


class Paid(Struct):
    cents: int


async def outcome(app: Outlast, name: Any, given: Any = None) -> Any:
    return (await (await app.run(name, given)).wait()).unwrap()


# Time, chance, events of one's own


async def test_now_chance_and_ids_are_the_same_in_every_run_of_the_body() -> None:
    seen: list[tuple[datetime, float, str]] = []

    @workflow
    async def draw(ctx: WorkflowContext) -> list[float]:
        seen.append((ctx.now(), ctx.random(), str(ctx.uuid())))
        await ctx.sleep(0.02)
        return [ctx.random(), ctx.random()]

    async with running(draw) as app:
        first, second = await outcome(app, draw)
        assert len(seen) == 2
        assert seen[0] == seen[1]
        assert len({seen[0][1], first, second}) == 3
        await outcome(app, draw)
        assert seen[2] != seen[0]


async def test_an_event_of_the_body_is_in_the_stream_once() -> None:
    @workflow
    async def tell(ctx: WorkflowContext) -> None:
        for number in range(2):
            ctx.emit("round", {"number": number})
            await ctx.sleep(SOON)

    async with running(tell) as app:
        run = await app.run(tell)
        await run.wait()
        session = await app.session(run.id)

        told = await the(session, "tool.emitted")
        assert [event.data["data"]["number"] for event in told] == [0, 1]


# Events from outside


async def test_the_nth_wait_gets_the_nth_event_also_one_that_came_before() -> None:
    @workflow
    async def collect(ctx: WorkflowContext) -> list[Any]:
        await ctx.ask("begin?", ["yes"])
        first = await ctx.wait_event("paid", kind=Paid)
        other = await ctx.wait_event("shipped")
        second = await ctx.wait_event("paid", kind=Paid)
        await ctx.sleep(SOON)
        return [first.cents, second.cents, other]

    async with running(collect) as app:
        run = await app.run(collect)
        waiting = await run.wait()
        await run.send_event("paid", Paid(1), dispatch_id="one")
        await run.send_event("paid", Paid(1), dispatch_id="one")
        await run.send_event("paid", {"cents": 2})
        await run.answer(waiting.requests[0].request_id, "yes")
        session = await app.session(run.id)
        await until(session, "tool.waiting", 2)
        assert "event" in (await run.info()).lanes[0].wait
        await run.send_event("shipped", {"withdrawn": True})

        assert (await run.wait()).unwrap() == [1, 2, {"withdrawn": True}]
        with pytest.raises(SessionOver):
            await run.send_event("paid", 3)


async def test_an_event_that_is_not_of_its_kind_is_told_to_the_body() -> None:
    @workflow
    async def take(ctx: WorkflowContext) -> list[str]:
        try:
            return [str(await ctx.wait_event("paid", kind=Paid))]
        except InvalidInput as error:
            return [str(error), str(await ctx.wait_event("paid", kind=Paid))]

    async with running(take) as app:
        run = await app.run(take)
        await run.send_event("paid", "all of it")
        await run.send_event("paid", Paid(2))
        said, other = (await run.wait()).unwrap()

    assert said.startswith("the event paid does not fit: ")
    assert other == "Paid(cents=2)"


async def test_an_event_that_does_not_come_in_time_is_not_waited_for_any_more() -> None:
    @workflow
    async def hope(ctx: WorkflowContext) -> str:
        try:
            return str(await ctx.wait_event("news", timeout=60))
        except EventTimeout:
            await ctx.sleep(1)
            return f"late: {await ctx.wait_event('news')}"

    async with at_standstill(hope) as (app, clock):
        run = await app.run(hope)
        session = await app.session(run.id)
        await until(session, "timer.set")
        clock.advance(61_000)
        await until(session, "timer.set", 2)
        await run.send_event("news", "good")
        await until(session, "event.received", internals=True)
        clock.advance(1_001)

        assert (await run.wait()).unwrap() == "late: good"


# Children and maps


async def test_a_run_starts_runs_of_other_workflows() -> None:
    @workflow
    async def double(ctx: WorkflowContext, number: int) -> int:
        if number < 0:
            raise ValueError("negative")
        return await ctx.step(lambda: number * 2, name="double")

    @workflow
    async def both(ctx: WorkflowContext, numbers: list[int]) -> list[int]:
        found = await ctx.gather(*(ctx.run(double, number) for number in numbers))
        with pytest.raises(RunFailed, match="negative"):
            await ctx.run(double, -1)
        return list(found)

    async with running(both, double) as app:
        run = await app.run(both, [1, 2])
        assert (await run.wait()).unwrap() == [2, 4]
        children = await app.store.listing.sessions(parent=run.id)
        assert {child.mode for child in children} == {"run"}
        assert all(child.session_id.startswith("run_") for child in children)


async def test_a_map_does_so_many_at_once_and_tells_how_many_are_done() -> None:
    at_once: set[str] = set()
    most = 0

    async def read(page: str) -> str:
        nonlocal most
        at_once.add(page)
        most = max(most, len(at_once))
        await asyncio.sleep(0.01)
        at_once.discard(page)
        return page.upper()

    @workflow
    async def batch(ctx: WorkflowContext, pages: list[str]) -> list[str]:
        async def one(page: str) -> str:
            text = await ctx.step(read, page)
            await ctx.sleep(SOON)
            return text

        return await ctx.map(one, pages, concurrency=3)

    async with running(batch, settings=FAST) as app:
        run = await app.run(batch, list("abcdefa"))
        assert (await run.wait()).unwrap() == list("ABCDEFA")
        assert most <= 3
        session = await app.session(run.id)
        done = [event.data["progress"]["done"] for event in await the(session, "tool.progress")]
        assert done == sorted(set(done))
        assert done[-1] == 7
        steps = [e for e in await log_of(session, internals=True) if "step_rec" in e.type]
        assert len(steps) == 7


async def test_items_of_a_map_may_be_reordered_and_added_while_it_waits() -> None:
    done: list[str] = []
    order = ["a", "b"]

    @workflow
    async def batch(ctx: WorkflowContext) -> list[str]:
        async def one(page: str) -> str:
            await ctx.step(done.append, page)
            await ctx.ask(f"{page}?", ["yes"])
            return page

        return await ctx.map(one, order)

    async with running(batch) as app:
        run = await app.run(batch)
        first = (await run.wait()).requests
        order[:] = ["c", "b", "a"]
        await run.answer(first[0].request_id, "yes")
        while len(left := (await run.wait()).requests) < 2:
            pass
        for request in left:
            await run.answer(request.request_id, "yes")

        assert (await run.wait()).unwrap() == ["c", "b", "a"]
        assert sorted(done) == ["a", "b", "c"]


async def test_a_child_is_started_now_and_waited_for_later() -> None:
    steps: list[str] = []

    @workflow
    async def hand_over(ctx: WorkflowContext) -> str:
        child = await ctx.agent("a").start("think")
        await ctx.step(steps.append, child.id)
        return str(await child.result())

    async with running(hand_over, agent(lambda _: say("thought"))) as app:
        run = await app.run(hand_over)
        assert (await run.wait()).unwrap() == "thought"
        [child] = await app.store.listing.sessions(parent=run.id)
        assert steps == [child.session_id]
        assert child.mode == "task"


# An empty history


async def test_a_body_begins_again_in_the_same_run() -> None:
    @workflow
    async def count(ctx: WorkflowContext, number: int) -> int:
        await ctx.step(lambda: number, name="look")
        if number < 3:
            ctx.restart(number + 1)
        return number

    async with running(count) as app:
        run = await app.run(count, 0)
        assert (await run.wait()).unwrap() == 3
        session = await app.session(run.id)
        assert len(await the(session, "run.restarted")) == 3


# Interruptions


@pytest.mark.parametrize("remedy", ["report", "rerun", "ask", "fail", "find out"])
async def test_what_a_cut_off_step_means(remedy: str) -> None:
    store, calls = MemoryStore(), list[int]()
    hangs = asyncio.Event()

    async def pay(order: int) -> str:
        calls.append(order)
        if len(calls) == 1:
            hangs.set()
            await asyncio.sleep(60)
        return "paid"

    async def find(order: int) -> str:
        return f"found {order}"

    @workflow
    async def buy(ctx: WorkflowContext) -> str:
        on_interrupt: Any = find if remedy == "find out" else remedy
        try:
            return await ctx.step(pay, 17, on_interrupt=on_interrupt)
        except StepInterrupted:
            await ctx.sleep(SOON)
            return "nobody knows"

    async with Outlast([buy], store=store, worker=FAST) as app:
        run: Run[str] = await app.run(buy)
        await hangs.wait()
    async with running(buy, store=store) as app:
        run = await app.get_run(run.id)
        result = await run.wait()
        if remedy == "ask":
            [request] = result.requests
            assert "may or may not have happened" in request.prompt
            await run.answer(request.request_id, "done", text="paid by hand")
            result = await run.wait()

    expected = {
        "report": "nobody knows",
        "rerun": "paid",
        "ask": "paid by hand",
        "find out": "found 17",
    }
    if remedy == "fail":
        assert result.status == "errored"
        assert result.error is not None
        assert result.error.code == "STEP_INTERRUPTED"
    else:
        assert result.unwrap() == expected[remedy]
    assert len(calls) == (2 if remedy == "rerun" else 1)


async def test_a_step_that_takes_too_long_may_have_happened() -> None:
    @workflow
    async def slow(ctx: WorkflowContext) -> str:
        found = []
        for remedy in ("report", "rerun"):
            try:
                await ctx.step(asyncio.sleep, 60, timeout=0.01, on_interrupt=remedy, name=remedy)
            except StepError as error:
                found.append(error.code)
        return ",".join(found)

    async with running(slow) as app:
        assert await outcome(app, slow) == "STEP_INTERRUPTED,TIMEOUT"


class Basket(BaseModel):
    kinds: set[int]
    more: dict[int, frozenset[int | None]] = {}


async def test_a_set_is_the_same_argument_item_and_input_in_whatever_order_it_comes() -> None:
    orders, made = cycle([(0, 8), (8, 0)]), Counter[str]()

    @workflow
    async def pack(ctx: WorkflowContext, basket: Basket) -> int:
        made["child"] += 1
        return len(basket.kinds)

    async def weigh(*given: object) -> int:
        made["step"] += 1
        return 1

    @workflow
    async def shop(ctx: WorkflowContext) -> int:
        made["pass"] += 1
        order = next(orders)  # as the order of a set's texts is another in each process
        basket = Basket(kinds=set(order), more={1: frozenset(order), 2: frozenset([None, 1])})
        done: int = await ctx.step(weigh, set(order), basket, {1: {*order, None}})
        done += sum(await ctx.map(lambda item: ctx.step(weigh, 1), [basket]))
        await ctx.sleep(0.001)
        return done + (await ctx.run(pack, basket))

    async with running(shop, pack) as app:
        result = await (await app.run(shop)).wait()

    assert result.output == 4
    assert made == {"pass": 3, "step": 2, "child": 1}
