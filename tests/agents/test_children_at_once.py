"""A tool that asks several agents at once: all work at the same time, and each is asked once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from scene import log_of, results_of, running, the, until

from outlast import Agent, Context, Limits, Outlast, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.message import UserMessage, text_of
from outlast.errors import SubagentError
from outlast.log.verify import verify
from outlast.testing.crash_everywhere import crash_everywhere
from outlast.testing.ledger import Ledger
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say

Ask = Callable[[Context[Any]], Awaitable[list[str]]]


def an_agent(name: str, *script: ScriptedReply, **options: Any) -> Agent[Any, Any]:
    return Agent(name, ScriptedModel(list(script)), **options)


async def by_gather(ctx: Context[Any]) -> list[str]:
    return list(await ctx.gather(*(ctx.agent(name).ask("go") for name in "abc")))


async def by_names(ctx: Context[Any]) -> list[str]:
    asked = {name: ctx.agent(name).ask("go") for name in "abc"}
    return list((await ctx.gather(**asked)).values())


async def by_nested_gathers(ctx: Context[Any]) -> list[str]:
    async def others() -> list[str]:
        return list(await ctx.gather(*(ctx.agent(name).ask("go") for name in "bc")))

    [first, rest] = await ctx.gather(ctx.agent("a").ask("go"), others)
    return [first, *rest]


def asker(ask: Ask) -> Any:
    @tool(on_interrupt="rerun")
    async def survey(ctx: Context[Any]) -> list[str]:
        return await ask(ctx)

    return survey


WAYS = [by_gather, by_names, by_nested_gathers]


@pytest.mark.parametrize("ask", WAYS)
async def test_they_work_at_the_same_time(ask: Ask) -> None:
    together = asyncio.Barrier(3)

    @tool
    async def meet() -> str:
        await together.wait()
        return "met"

    helpers = [an_agent(n, call("meet"), say(f"{n} was there"), tools=[meet]) for n in "abc"]
    boss = an_agent("boss", call("survey"), say("done"), tools=[asker(ask)])
    async with running(boss, *helpers) as app:
        session = await app.start("boss", "go")

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["a was there","b was there","c was there"]']
        called = await the(session, "subagent.called")
        assert [event.data["agent"] for event in called] == ["a", "b", "c"]
        assert len({event.offset for event in called}) == 3
        assert len(await app.store.listing.sessions()) == 4
        for info in await app.store.listing.sessions():
            assert not await verify(app.store, info.session_id)


@pytest.mark.parametrize("order", ["abc", "cba", "bac"])
async def test_they_may_end_in_any_order(order: str) -> None:
    turns = {name: asyncio.Event() for name in order}

    @tool
    async def wait(name: str) -> str:
        await turns[name].wait()
        return name

    helpers = [an_agent(n, call("wait", name=n), say(n), tools=[wait]) for n in "abc"]
    boss = an_agent("boss", call("survey"), say("done"), tools=[asker(by_gather)])
    async with running(boss, *helpers) as app:
        session = await app.start("boss", "go")
        for place, name in enumerate(order, 1):
            turns[name].set()
            await until(session, "subagent.completed", place)

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["a","b","c"]']
        assert len(await the(session, "subagent.called")) == 3


async def test_what_a_tool_does_not_wait_for_any_more_is_ended_with_it() -> None:
    is_asked = asyncio.Event()

    @tool
    async def fail() -> str:
        await is_asked.wait()
        raise RuntimeError("no")

    @tool(approval="always")
    async def pay() -> str:
        return "paid"

    async def first_of(ctx: Context[Any]) -> list[str]:
        try:
            both = (ctx.agent(name).ask("go") for name in ("hasty", "slow"))
            return list(await ctx.gather(*both))
        except SubagentError:
            return ["gave up"]

    hasty = an_agent("hasty", call("fail"), tools=[fail], limits=Limits(max_steps=1))
    slow = an_agent("slow", call("pay"), say("done"), tools=[pay])
    boss = an_agent("boss", call("survey"), say("done"), tools=[asker(first_of)])
    async with running(boss, hasty, slow) as app:
        session = await app.start("boss", "go")
        asked = await until(session, "request.opened")
        is_asked.set()
        while not await the(session, "turn.completed"):  # noqa: ASYNC110 - of other workers
            await asyncio.sleep(0)

        assert await results_of(session) == ['["gave up"]']
        [closed] = await the(session, "request.resolved")
        assert closed.data["request_id"] == asked.data["request_id"]
        ends = {event.data["error"]["code"] for event in await the(session, "subagent.failed")}
        assert "GIVEN_UP" in ends
        child = await app.session(asked.data["path"][0])
        async for _ in child.events():
            pass
        assert (await child.info()).over == "ended"
        assert not await verify(app.store, session.id)


async def test_one_may_end_while_the_tool_goes_on_with_what_another_has_said() -> None:
    runs: list[int] = []
    is_over, has_ended = asyncio.Event(), asyncio.Event()

    @tool
    async def dawdle() -> str:
        await is_over.wait()
        return "at last"

    async def second(ctx: Context[Any]) -> str:
        if len(runs) > 1:
            is_over.set()
            await has_ended.wait()
        return str(await ctx.agent("b").ask("go"))

    async def in_two_ways(ctx: Context[Any]) -> list[str]:
        runs.append(1)
        return list(await ctx.gather(ctx.agent("a").ask("go"), second(ctx)))

    a, b = an_agent("a", say("a")), an_agent("b", call("dawdle"), say("b"), tools=[dawdle])
    boss = an_agent("boss", call("survey"), say("done"), tools=[asker(in_two_ways)])
    async with running(boss, a, b) as app:
        session = await app.start("boss", "go")
        await until(session, "subagent.completed", 2)
        has_ended.set()

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["a","b"]']
        assert len(runs) == 2


@pytest.mark.parametrize("pause", [0.0, 0.01])
async def test_what_goes_on_beside_when_the_tool_has_stopped_is_done_once(pause: float) -> None:
    done: list[int] = []

    @tool
    async def dawdle() -> str:
        await asyncio.sleep(5 * pause)
        return "at last"

    async def work(ctx: Context[Any]) -> str:
        await asyncio.sleep(pause)
        await ctx.step(done.append, 1, name="work")
        return str(await ctx.agent("b").ask("go"))

    async def with_work(ctx: Context[Any]) -> list[str]:
        return list(await ctx.gather(ctx.agent("a").ask("go"), work(ctx)))

    a, b = an_agent("a", call("dawdle"), say("a"), tools=[dawdle]), an_agent("b", say("b"))
    boss = an_agent("boss", call("survey"), say("done"), tools=[asker(with_work)])
    async with running(boss, a, b) as app:
        session = await app.start("boss", "go")

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["a","b"]']
        assert done == [1]
        assert len(await the(session, "subagent.called")) == 2
        assert not await verify(app.store, session.id)


async def test_what_the_tool_makes_of_a_wait_that_is_still_open_is_not_its_result() -> None:
    is_over = asyncio.Event()

    @tool
    async def dawdle() -> str:
        await is_over.wait()
        return "at last"

    async def whatever_comes(ctx: Context[Any]) -> list[str]:
        async def whatever(name: str) -> str:
            try:
                return str(await ctx.agent(name).ask("go"))
            except BaseException as error:  # noqa: BLE001 - what a tool should not do
                return str(error)

        return list(await ctx.gather(*map(whatever, "ab")))

    a, b = an_agent("a", say("a")), an_agent("b", call("dawdle"), say("b"), tools=[dawdle])
    boss = an_agent("boss", call("survey"), say("done"), tools=[asker(whatever_comes)])
    async with running(boss, a, b) as app:
        session = await app.start("boss", "go")
        await until(session, "tool.waiting", 2)
        is_over.set()

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["a","b"]']


async def test_a_tool_may_take_the_first_answer_and_leave_the_others() -> None:
    @tool(approval="always")
    async def pay() -> str:
        return "paid"

    async def the_first(ctx: Context[Any]) -> list[str]:
        came = await ctx.first(*(ctx.agent(name).ask("go") for name in ("quick", "slow")))
        return [came.value]

    quick = an_agent("quick", say("here"))
    slow = an_agent("slow", call("pay"), say("done"), tools=[pay])
    boss = an_agent("boss", call("survey"), say("done"), tools=[asker(the_first)])
    async with running(boss, quick, slow) as app:
        session = await app.start("boss", "go")

        await until(session, "turn.completed")
        assert await results_of(session) == ['["here"]']


async def test_of_chains_that_go_on_side_by_side_each_gets_its_own_answers() -> None:
    async def chain(ctx: Context[Any], first: str, second: str) -> str:
        said = await ctx.agent(first).ask("go")
        return f"{said}, then {await ctx.agent(second).ask(f'after {said}')}"

    async def two_chains(ctx: Context[Any]) -> list[str]:
        return list(await ctx.gather(chain(ctx, "a", "c"), chain(ctx, "b", "d")))

    helpers = [an_agent(name, say(f"{name}'s")) for name in "abcd"]
    boss = an_agent("boss", call("survey"), say("done"), tools=[asker(two_chains)])
    async with running(boss, *helpers) as app:
        session = await app.start("boss", "go")

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["[\"a's, then c's\",\"b's, then d's\"]"]
        called = [event.data["agent"] for event in await the(session, "subagent.called")]
        assert sorted(called) == ["a", "b", "c", "d"]


async def test_branches_that_race_each_other_keep_their_own_answers() -> None:
    runs: list[int] = []

    async def in_another_order_each_time(ctx: Context[Any]) -> list[str]:
        runs.append(1)
        names = "ab" if len(runs) % 2 else "ba"
        go = {name: asyncio.Event() for name in names}

        async def in_its_turn(name: str) -> str:
            await go[name].wait()
            try:
                return str(await ctx.agent("echo").ask(name))
            finally:
                go[names[-1]].set()

        go[names[0]].set()
        both = await ctx.gather(**{name: in_its_turn(name) for name in names})
        return [both[name] for name in "ab"]

    def echoed(request: ModelRequest) -> ScriptedReply:
        [heard] = request.view.messages
        assert isinstance(heard, UserMessage)
        return say(text_of(heard.content))

    echo = Agent("echo", ScriptedModel(echoed))
    boss = an_agent("boss", call("survey"), say("done"), tools=[asker(in_another_order_each_time)])
    async with running(boss, echo) as app:
        session = await app.start("boss", "go")

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["a","b"]']
        assert len(await the(session, "subagent.called")) == 2


async def test_what_is_asked_under_a_name_may_be_worded_anew_in_every_run() -> None:
    runs: list[int] = []

    async def reworded(ctx: Context[Any]) -> list[str]:
        runs.append(1)
        words = f"for the {len(runs)}th time"
        return [await ctx.agent(name).ask(words, name="again") for name in "aab"]

    a, b = an_agent("a", say("a")), an_agent("b", say("b"))
    boss = an_agent("boss", call("survey"), say("done"), tools=[asker(reworded)])
    async with running(boss, a, b) as app:
        session = await app.start("boss", "go")

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["a","a","b"]']
        assert len(await the(session, "subagent.called")) == 3


async def test_a_crash_at_any_commit_starts_none_twice() -> None:
    ledger = Ledger()

    def helper(name: str) -> Agent[Any, Any]:
        @tool(on_interrupt="rerun")
        async def work(ctx: Context[Any]) -> str:
            return name

        return an_agent(name, call("work"), say(name), tools=[work])

    async def play(app: Outlast) -> Any:
        session = await app.start("boss", "go")
        result = await session.wait()
        called = [e.data["child"] for e in await log_of(session) if e.type == "subagent.called"]
        return result.output, len(called), len(await app.store.listing.sessions())

    boss = an_agent("boss", call("survey"), say("done"), tools=[asker(by_gather)])
    report = await crash_everywhere(play, agents=[boss, *map(helper, "abc")], ledger=ledger)

    assert {run.output for run in report.runs} == {("done", 3, 4)}
