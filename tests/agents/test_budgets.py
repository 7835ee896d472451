"""Budgets: reserved before a call, settled after it, and what happens at their end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from scene import Watched, agent, log_of, running, the, types_of, until

from outlast import Agent, Budget, Context, Limits, ModelOptions, Outlast, Session, tool
from outlast.agents.model import FinishedAnswer, ModelRequest, Text
from outlast.core.amount import Amounts, BudgetKey, BudgetState
from outlast.core.result import Usage
from outlast.errors import BudgetChanged, InvalidDefinition, InvalidInput
from outlast.log.explain import explain, gather
from outlast.log.verify import verify
from outlast.stores.sqlite import MemoryStore
from outlast.testing.crash_everywhere import SharedStore
from outlast.testing.scripted import (
    ScriptedError,
    ScriptedModel,
    ScriptedReply,
    call,
    calls,
    say,
)
from outlast.usage import ModelPrice, Prices

PRICED = ModelOptions(
    prices=Prices(known={"scripted": ModelPrice(input=2, output="8.5")}),
    settings={"max_tokens": 50},
)


@tool
async def look(at: str = "it") -> str:
    return f"seen {at}"


def forever(request: ModelRequest) -> ScriptedReply:
    """A model that always wants one more tool call, as long as it has tools."""
    return call("look") if request.tools else say("this is all that I have")


async def reserved(app: Outlast, *sessions: Session[Any]) -> list[Amounts]:
    """Return what is reserved of all budgets, the sessions' own included."""
    keys = [BudgetKey("session", session.id) for session in sessions]
    found = [*await app.store.budget.find_budgets("default", keys)]
    return [state.reserved for state in found] + [
        info.reserved for info in await app.store.budget.list_budgets()
    ]


async def test_a_turn_fails_at_the_end_of_its_budget_and_can_be_retried() -> None:
    limits = Limits(turn_budget=Budget(model_calls=2, on_end="fail"))
    async with running(agent(forever, tools=[look], limits=limits)) as app:
        session = await app.start("a", "go")
        result = await session.wait()

        assert result.status == "failed"
        assert result.error
        assert result.error.code == "BUDGET_EXHAUSTED"
        assert "the turn's budget allows 2 model calls" in result.error.message
        assert len(await the(session, "message.completed")) == 2
        assert not await verify(app.store, session.id)


async def test_a_human_is_asked_once_for_more_and_may_allow_it() -> None:
    limits = Limits(turn_budget=Budget(steps=2))
    script = [call("look"), call("look"), say("done")]
    async with running(agent(script, tools=[look], limits=limits)) as app:
        session = await app.start("a", "go")
        [asked] = (await session.wait()).requests

        assert asked.kind == "budget"
        assert asked.prompt == (
            "the turn's budget allows 2 steps, and 2 steps are spent. Allow 2 steps more?"
        )
        assert [option.id for option in asked.options] == ["extend", "stop"]
        assert [each.request_id for each in await app.requests()] == [asked.request_id]
        [told] = await the(session, "budget.exhausted")
        assert told.data["on_end"] == "ask"
        assert "the budget" in await explain_of(app, session)
        assert not await verify(app.store, session.id)

        await session.answer(asked.request_id, "extend", principal="ada")
        assert (await session.wait()).output == "done"
        [extended] = await the(session, "budget.extended")
        assert (extended.data["by"], extended.data["principal"]) == ({"steps": 2}, "ada")
        assert not await verify(app.store, session.id)


async def explain_of(app: Outlast, session: Session[Any]) -> str:
    evidence = await gather(app.store, session.id, datetime.now(UTC))
    return "\n".join(link.text for lane in explain(evidence).lanes for link in lane.links)


async def test_a_human_may_end_the_turn_instead() -> None:
    limits = Limits(turn_budget=Budget(steps=1))
    async with running(agent(forever, tools=[look], limits=limits)) as app:
        session = await app.start("a", "go")
        [asked] = (await session.wait()).requests
        await session.answer(asked.request_id, "stop")
        result = await session.wait()

        assert (result.status, result.error and result.error.code) == ("failed", "BUDGET_EXHAUSTED")
        again = await app.start("a", "go", capabilities={"request_input": False})
        assert (await again.wait()).status == "failed"  # nobody can be asked


async def test_a_turn_hands_back_what_it_has_by_one_last_call_without_tools() -> None:
    model = Watched(forever)
    limits = Limits(turn_budget=Budget(model_calls=3, on_end="hand_back"))
    async with running(Agent("a", model, tools=[look], limits=limits)) as app:
        session = await app.start("a", "go")
        result = await session.wait()

        assert result.output == "this is all that I have"
        assert result.budget_exhausted == "the turn's budget"
        assert [bool(request.tools) for request in model.requests] == [True, True, False]
        assert "budget" in model.requests[-1].tail
        assert not await verify(app.store, session.id)
        assert (await (await session.send("more")).result()).budget_exhausted


async def test_a_model_that_wants_tools_in_its_last_call_hands_back_nothing() -> None:
    limits = Limits(turn_budget=Budget(model_calls=2, on_end="hand_back"))
    async with running(agent([call("look")] * 9, tools=[look], limits=limits)) as app:
        session = await app.start("a", "go")
        result = await session.wait()

        assert (result.status, result.error and result.error.code) == ("failed", "BUDGET_EXHAUSTED")
        assert len(await the(session, "message.completed")) == 2
        assert not await verify(app.store, session.id)


async def test_tool_calls_are_counted_before_they_begin() -> None:
    limits = Limits(turn_budget=Budget(tool_calls=3))
    two = calls(("look", {"at": "a"}), ("look", {"at": "b"}))
    async with running(agent([two, two, say("done")], tools=[look], limits=limits)) as app:
        session = await app.start("a", "go")
        [asked] = (await session.wait()).requests

        assert "3 tool calls" in asked.prompt
        assert len(await the(session, "tool.completed")) == 3
        await session.answer(asked.request_id, "extend")
        assert (await session.wait()).output == "done"
        assert len(await the(session, "tool.completed")) == 4
        assert not await verify(app.store, session.id)


async def test_tool_calls_that_no_budget_allows_are_denied_where_a_turn_hands_back() -> None:
    limits = Limits(turn_budget=Budget(tool_calls=1, on_end="hand_back"))
    async with running(agent(forever, tools=[look], limits=limits)) as app:
        session = await app.start("a", "go")
        result = await session.wait()

        assert (result.output, bool(result.budget_exhausted)) == ("this is all that I have", True)
        assert len(await the(session, "tool.denied")) == 1
        assert not await verify(app.store, session.id)


async def test_the_answer_may_have_no_more_tokens_than_are_reserved() -> None:
    model = Watched([say("done")])
    async with running(Agent("a", model, budget=Budget(tokens=500))) as app:
        session = await app.start("a", "x" * 400)
        assert (await session.wait()).output == "done"

        [request] = model.requests
        assert 300 < request.settings["max_tokens"] < 400
        [state] = await app.store.budget.find_budgets("default", [BudgetKey("session", session.id)])
        [used] = await the(session, "usage.recorded")
        assert state.spent.tokens == used.data["input_tokens"] + used.data["output_tokens"]
        assert not state.reserved
        assert not await verify(app.store, session.id)


async def test_a_budget_in_dollars_reserves_what_a_call_may_cost() -> None:
    model = Watched(forever)
    budget = Budget(usd="0.0010", on_end="fail")
    async with running(Agent("a", model, tools=[look], budget=budget, model_options=PRICED)) as app:
        session = await app.start("a", "go")
        result = await session.wait()

        assert result.error
        assert "the session's budget allows $0.001" in result.error.message
        assert len(model.requests) > 2
        used = await session.usage()
        assert 0 < used.own.nano_usd <= 1_000_000
        assert await reserved(app, session) == [Amounts()]
        assert not await verify(app.store, session.id)


async def test_a_price_that_nobody_knows_is_a_choice() -> None:
    refusing = agent([say("one")], budget=Budget(usd=1))
    async with running(refusing) as app:
        result = await (await app.start("a", "go")).wait()
        assert (result.error and result.error.code) == "PRICE_UNKNOWN"
    allowing = agent([say("one")], budget=Budget(usd=1, unpriced="allow"))
    async with running(allowing) as app:
        assert (await (await app.start("a", "go")).wait()).output == "one"


async def test_four_fifths_of_a_budget_are_told_once() -> None:
    limits = Limits(turn_budget=Budget(model_calls=5, on_end="fail"))
    async with running(agent(forever, tools=[look], limits=limits)) as app:
        session = await app.start("a", "go")
        await session.wait()

        [warned] = await the(session, "budget.warned")
        assert (warned.data["what"], warned.data["limit"], warned.data["used"]) == (
            "model_calls",
            5,
            4,
        )


async def test_the_time_that_a_turn_works_is_counted_and_the_time_that_it_waits_is_not() -> None:
    @tool
    async def dawdle(ctx: Context) -> str:
        await asyncio.sleep(0.1)
        return "at last"

    limits = Limits(turn_budget=Budget(wall_time=0.05, on_end="fail"))
    async with running(agent([call("dawdle"), say("x")], tools=[dawdle], limits=limits)) as app:
        result = await (await app.start("a", "go")).wait()
        assert result.error
        assert "active time" in result.error.message

    @tool
    async def nap(ctx: Context) -> str:
        await ctx.sleep(0.5)
        return "at last"

    limits = Limits(turn_budget=Budget(wall_time=0.45, on_end="fail"))
    async with running(agent([call("nap"), say("done")], tools=[nap], limits=limits)) as app:
        assert (await (await app.start("a", "go")).wait()).output == "done"


async def test_a_session_has_the_lesser_of_its_own_budget_and_its_agents() -> None:
    a = agent(forever, tools=[look], budget=Budget(steps=3, on_end="fail"))
    async with running(a) as app:
        session = await app.start("a", "go", budget=Budget(steps=9, model_calls=1, on_end="fail"))
        result = await session.wait()
        assert result.error
        assert "1 model calls" in result.error.message
        other = await app.start("a", "go")
        assert len(await the(other, "message.completed")) <= 3
        assert (await other.wait()).status == "failed"
        assert len(await the(other, "message.completed")) == 3
        # What is spent is spent: the next turn of the session has nothing left.
        assert (await (await other.send("more")).result()).status == "failed"
        assert len(await the(other, "message.completed")) == 3
        assert not await verify(app.store, other.id)


async def test_sessions_of_a_tenant_share_its_budget_and_those_of_others_do_not() -> None:
    async with running(agent([say("one")] * 50)) as app:
        await app.budgets.set(Budget(model_calls=5, on_end="fail"), tenant="acme")
        await known(app)
        sessions = [await app.start("a", "go", tenant="acme") for _ in range(8)]
        others = [await app.start("a", "go") for _ in range(2)]
        results = [await session.wait() for session in (*sessions, *others)]

        assert [result.status for result in results].count("completed") == 7
        [status] = await app.budgets.list(tenant="acme")
        assert (status.spent.model_calls, status.reserved) == (5, Amounts())
        for session in (*sessions, *others):
            assert not await verify(app.store, session.id)


async def known(app: Outlast) -> None:
    """Wait until the app's worker knows of a change of budgets, or would look for one."""
    assert app.worker
    directory = app.worker.budgets
    newest = await app.store.budget.newest_budget()
    async with asyncio.timeout(20):
        while not (directory.is_old or directory.newest == newest):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)


async def test_a_call_waits_for_what_only_another_has_reserved() -> None:
    entered, going = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedModel):
        async def request(self, request: ModelRequest) -> FinishedAnswer:
            entered.set()
            await going.wait()
            return FinishedAnswer((Text("done"),), Usage(10, 5), "scripted", "stop")

    options = ModelOptions(stream=False)
    async with running(Agent("a", Slow([]), model_options=options)) as app:
        await app.budgets.set(Budget(tokens=1000))
        await known(app)
        first = await app.start("a", "go")
        await entered.wait()
        second = await app.start("a", "go")
        waiting = await until(second, "session.waiting")

        assert waiting.data["wait"] == ("budget",)
        assert "budget" in await explain_of(app, second)
        going.set()
        assert (await first.wait()).output == "done"
        assert (await second.wait()).output == "done"
        [status] = await app.budgets.list()
        assert (status.spent.tokens, status.reserved.tokens) == (30, 0)
        assert not await verify(app.store, second.id)


async def test_sessions_wait_for_a_spent_budget_of_their_tenant_until_it_is_raised() -> None:
    async with running(agent([say("one"), say("two")])) as app:
        await app.budgets.set(Budget(model_calls=1))
        await known(app)
        session = await app.start("a", "go")
        await session.wait()
        receipt = await session.send("on")
        told = await until(session, "budget.exhausted")
        await until(session, "session.waiting", 2)
        assert told.data["budget"] == {"scope": "tenant"}
        assert "the tenant's budget" in await explain_of(app, session)

        await app.budgets.set(Budget(model_calls=2))
        assert (await receipt.result()).output == "two"
        assert not await verify(app.store, session.id)


async def test_a_principal_has_a_budget_of_each_day() -> None:
    async with running(agent([say("one"), say("two")])) as app:
        await app.budgets.set(Budget(steps=1, on_end="fail"), principal="ada", per="day")
        await known(app)
        adas = await app.start("a", "go", principal="ada")
        assert (await adas.wait()).output == "one"
        assert (await (await adas.send("on")).result()).status == "failed"
        assert (await (await app.start("a", "go", principal="bob")).wait()).output == "one"
        [status] = await app.budgets.list()
        assert (status.principal, status.per, status.spent.steps) == ("ada", "day", 1)


async def test_an_attempt_that_failed_gives_back_what_it_had_reserved() -> None:
    unlucky = ScriptedReply(text="done", fails=(ScriptedError("transient", "no"),) * 2)
    async with running(agent([unlucky], budget=Budget(model_calls=1, tokens=9000))) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"
        assert await reserved(app, session) == [Amounts()]
        assert (await session.usage()).own.model_calls == 1
        assert not await verify(app.store, session.id)


async def test_an_answer_that_was_cut_off_has_an_estimated_usage() -> None:
    cut = ScriptedReply(text="a long story that is told in pieces", chunks=8, cut_after=3)
    async with running(agent([cut], budget=Budget(tokens=5000))) as app:
        session = await app.start("a", "x" * 400)
        assert (await session.wait()).output == cut.text

        [about, exact] = await the(session, "usage.recorded")
        assert about.data["estimated"]
        assert about.data["input_tokens"] >= 100
        assert about.data["output_tokens"] > 0
        assert not exact.data.get("estimated", False)
        assert (await session.usage()).own.model_calls == 2
        [state] = await app.store.budget.find_budgets("default", [BudgetKey("session", session.id)])
        assert state.spent.tokens == (await session.usage()).own.tokens
        assert not await verify(app.store, session.id)


async def test_a_call_that_is_stopped_is_settled() -> None:
    started = asyncio.Event()

    class Endless(ScriptedModel):
        async def request(self, request: ModelRequest) -> FinishedAnswer:
            started.set()
            await asyncio.Event().wait()
            raise AssertionError

    a = Agent("a", Endless([]), budget=Budget(tokens=500), model_options=ModelOptions(stream=False))
    async with running(a) as app:
        session = await app.start("a", "x" * 400)
        await started.wait()
        assert (await reserved(app, session))[0].tokens == 500
        await session.cancel()
        assert (await session.wait()).status == "cancelled"

        assert await reserved(app, session) == [Amounts()]
        [used] = await the(session, "usage.recorded")
        assert used.data["estimated"]
        assert not await verify(app.store, session.id)


async def test_an_erased_session_leaves_nothing_reserved() -> None:
    started = asyncio.Event()

    class Endless(ScriptedModel):
        async def request(self, request: ModelRequest) -> FinishedAnswer:
            started.set()
            await asyncio.Event().wait()
            raise AssertionError

    a = Agent("a", Endless([]), model_options=ModelOptions(stream=False))
    async with running(a) as app:
        await app.budgets.set(Budget(tokens=500))
        await known(app)
        session = await app.start("a", "go")
        await started.wait()
        assert (await app.budgets.list())[0].reserved.tokens == 500
        await app.erase(session.id)
        assert (await app.budgets.list())[0].reserved == Amounts()


# Children


def asking(name: str, below: Agent[Any, Any] | None, times: int = 1) -> Agent[Any, Any]:
    """An agent that asks the one below it so many times at once, and says what came of that."""
    if below is None:
        return Agent(name, ScriptedModel([say(f"{name} is done")]))
    asked = calls(*((below.name, {"message": f"job {n}"}) for n in range(times)))
    return Agent(name, ScriptedModel([asked, say(f"{name} is done")]), subagents=[below])


async def test_children_get_shares_and_return_the_rest() -> None:
    leaf = asking("leaf", None)
    middle = asking("middle", leaf, 2)
    top = asking("top", middle, 2)
    async with running(top, middle, leaf) as app:
        session = await app.start("top", "go", budget=Budget(tokens=100_000, model_calls=100))
        assert (await session.wait()).output == "top is done"

        used = (await session.usage()).total
        assert used.model_calls == 2 + 2 * 2 + 4
        [state] = await app.store.budget.find_budgets("default", [BudgetKey("session", session.id)])
        assert (state.spent.tokens, state.spent.model_calls) == (used.tokens, used.model_calls)
        assert not state.reserved
        for info in await app.sessions(limit=50):
            assert not await verify(app.store, info.session_id)
            started = [e async for e in (await app.session(info.session_id)).events(follow=False)]
            if info.parent:
                limits = started[0].data["budget"]["limits"]
                assert limits["tokens"] <= 100_000 // 3


async def test_lanes_that_start_children_at_once_share_what_is_free() -> None:
    most, going = 90_000, asyncio.Event()
    reached: list[str] = []

    class Slow(SharedStore):
        """Takes its time, so that all lanes have looked before one reserves."""

        async def find_budgets(
            self, tenant: str, keys: Sequence[BudgetKey]
        ) -> Sequence[BudgetState]:
            found = await super().find_budgets(tenant, keys)
            await asyncio.sleep(0.05)
            return found

    class Together(ScriptedModel):
        """Answers when all lanes have asked."""

        async def request(self, request: ModelRequest) -> FinishedAnswer:
            reached.append(request.call_id)
            if request.call_id.endswith(".s1"):
                while len(reached) < 5:  # noqa: ASYNC110 - the other lanes ask soon
                    await asyncio.sleep(0.001)
            return await super().request(request)

    @tool
    async def hold(ctx: Context) -> str:
        await going.wait()
        return "held"

    leaf = Agent("leaf", ScriptedModel([call("hold"), say("x")]), tools=[hold])
    job = call("leaf", message="job")
    script = lambda asked: job if asked.call_id.endswith(".s1") else say("done")  # noqa: E731
    options = ModelOptions(stream=False)
    top = Agent("top", Together(script), subagents=[leaf], model_options=options)
    memory = MemoryStore()
    await memory.migrate()
    async with running(top, leaf, store=Slow(memory)) as app:
        session = await app.start("top", "go", budget=Budget(tokens=most))
        for name in "bcde":
            await session.send("go", lane=name)
        async with asyncio.timeout(20):
            while len(await app.sessions()) < 6:  # noqa: ASYNC110 - five children
                await asyncio.sleep(0.01)
        assert (await reserved(app, session))[0].tokens <= most
        going.set()
        async with asyncio.timeout(20):
            while len(await the(session, "turn.completed")) < 5:
                for asked in await session.requests():  # nothing was left for some
                    await session.answer(asked.request_id, "extend")
                await asyncio.sleep(0.01)
        assert await reserved(app, session) == [Amounts()]
        for info in await app.sessions():
            assert not await verify(app.store, info.session_id)
    await memory.close()


async def test_a_tree_asks_at_the_top_for_more_of_one_budget() -> None:
    leaf = Agent("leaf", ScriptedModel(forever_then(6)), tools=[look])
    top = asking("top", leaf)
    async with running(top, leaf) as app:
        session = await app.start("top", "go", budget=Budget(steps=10))
        [asked] = (await session.wait()).requests
        assert (asked.kind, asked.agent) == ("budget", "leaf")
        assert "4 steps" in asked.prompt

        await session.answer(asked.request_id, "extend", principal="ada")
        assert (await session.wait()).output == "top is done"
        [state] = await app.store.budget.find_budgets("default", [BudgetKey("session", session.id)])
        assert (state.spent.steps, state.terms.limits.steps) == (2 + 7, 14)
        assert not state.reserved
        for info in await app.sessions():
            assert not await verify(app.store, info.session_id)


def forever_then(times: int) -> Sequence[ScriptedReply]:
    return [*([call("look")] * times), say("enough")]


async def test_a_child_whose_share_is_nothing_asks_for_as_much_as_it_needs() -> None:
    leaf = Agent("leaf", ScriptedModel(forever_then(2)), tools=[look])
    top = asking("top", leaf)
    async with running(top, leaf) as app:
        session = await app.start("top", "go", budget=Budget(tool_calls=1))
        prompts: list[str] = []
        while requests := (await session.wait()).requests:
            assert len(prompts) < 9
            prompts += [request.prompt for request in requests]
            await session.answer(requests[0].request_id, "extend")
        assert (await session.wait()).output == "top is done"
        assert prompts == [
            f"the session's budget allows {n} tool calls, and {n} tool calls are spent. "
            "Allow 1 tool calls more?"
            for n in range(2)
        ]
        for info in await app.sessions():
            assert not await verify(app.store, info.session_id)


async def test_what_a_child_was_allowed_beside_its_share_takes_nothing_from_its_parent() -> None:
    # The child's own budget limits what its parent's does not.
    leaf = Agent("leaf", ScriptedModel(forever_then(1)), tools=[], budget=Budget(model_calls=1))
    three = calls(*(("look", {"at": str(n)}) for n in range(3)))
    script = ScriptedModel([call("leaf", message="job"), three, say("done")])
    top = Agent("top", script, tools=[look], subagents=[leaf], budget=Budget(tool_calls=1))
    async with running(top, leaf) as app:
        session = await app.start("top", "go")
        told: list[str] = []
        while requests := (await session.wait()).requests:
            assert len(told) < 9
            told.append(requests[0].prompt.partition("Allow ")[2])
            await session.answer(requests[0].request_id, "extend")
        assert (await session.wait()).output == "done"
        assert told == ["1 model calls more?", *["1 tool calls more?"] * 3]
        for info in await app.sessions():
            assert not await verify(app.store, info.session_id)


async def test_a_child_that_is_given_up_returns_its_share_when_it_has_ended() -> None:
    started, going = asyncio.Event(), asyncio.Event()

    @tool
    async def hold(ctx: Context) -> str:
        started.set()
        await going.wait()
        return "held"

    leaf = Agent("leaf", ScriptedModel([call("hold"), say("x")]), tools=[hold])
    top = asking("top", leaf)
    async with running(top, leaf) as app:
        session = await app.start("top", "go", budget=Budget(tokens=100_000))
        await started.wait()
        assert (await reserved(app, session))[0].tokens > 40_000
        await session.cancel()
        going.set()
        async with asyncio.timeout(20):
            while any(await reserved(app, session)):  # noqa: ASYNC110 - it may rest
                await asyncio.sleep(0.01)
        [state] = await app.store.budget.find_budgets("default", [BudgetKey("session", session.id)])
        assert 0 < state.spent.tokens < 1000
        for info in await app.sessions():
            assert not await verify(app.store, info.session_id)


# What is refused


@pytest.mark.parametrize(
    "given",
    [
        Budget(),
        Budget(tokens=0),
        Budget(tokens=True),
        Budget(usd="much"),
        Budget(usd=-1),
        Budget(steps=1.5),  # type: ignore[arg-type]
        Budget(usd="1e-30"),
        Budget(usd=float("nan")),
        Budget(usd="1e999"),
        Budget(wall_time=0),
        Budget(wall_time=1e-9),
        Budget(wall_time=float("inf")),
        Budget(tokens=10**20),
        Budget(steps=1, on_end="explode"),  # type: ignore[arg-type]
        Budget(steps=1, unpriced="guess"),  # type: ignore[arg-type]
        "a lot",
    ],
)
async def test_a_budget_that_cannot_be_kept_is_refused_everywhere(given: Any) -> None:
    with pytest.raises(InvalidDefinition):
        Agent("a", "test", budget=given)
    with pytest.raises(InvalidDefinition):
        Agent("a", "test", limits=Limits(turn_budget=given))
    async with running(agent([say("one")])) as app:
        with pytest.raises(InvalidDefinition):
            await app.start("a", "go", budget=given)
        with pytest.raises(InvalidDefinition):
            await app.budgets.set(given)
        assert await app.budgets.list() == ()
        assert await app.sessions() == []


async def test_a_shared_budget_is_found_listed_changed_and_taken_away() -> None:
    async with running(agent([say("one")])) as app:
        assert await app.budgets.get() is None
        one = await app.budgets.set(Budget(usd="1.50"), expected=0)
        two = await app.budgets.set(Budget(steps=3), principal="ada", per="day")
        assert one
        assert two
        assert await app.budgets.get() == one
        assert (one.budget.usd, one.free.usd) == (Decimal("1.5"), Decimal("1.5"))
        assert await app.budgets.list() == (two, one)
        assert await app.budgets.list(after=two, limit=1) == (one,)
        with pytest.raises(BudgetChanged):
            await app.budgets.set(None, expected=0)
        assert await app.budgets.set(None, expected=one.revision) is None
        assert await app.budgets.list() == (two,)
        wrong: list[dict[str, Any]] = [{"per": "week"}, {"session_id": "\0"}, {"expected": -1}]
        for each in wrong:
            with pytest.raises(InvalidInput):
                await app.budgets.set(Budget(steps=1), **each)


async def test_a_session_without_a_budget_has_no_record_of_one() -> None:
    async with running(agent([call("look"), say("done")], tools=[look])) as app:
        session = await app.start("a", "go")
        await session.wait()
        told = [event.type for event in await log_of(session, internals=True)]
        assert not [kind for kind in told if kind.startswith("budget")]
        assert "usage.recorded" in await types_of(session)


async def test_the_turn_of_a_call_that_reserves_of_a_shared_budget_is_listed_as_running() -> None:
    entered, going = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedModel):
        async def request(self, request: ModelRequest) -> FinishedAnswer:
            entered.set()
            await going.wait()
            return FinishedAnswer((Text("done"),), Usage(10, 5), "scripted", "stop")

    async with running(Agent("a", Slow([]), model_options=ModelOptions(stream=False))) as app:
        await app.budgets.set(Budget(tokens=1000))
        await known(app)
        session = await app.start("a", "go", lane="other")
        await entered.wait()

        [lane] = (await session.info()).lanes
        assert (lane.lane, lane.status) == ("other", "running")
        # By what is listed the store refuses to roll state back under an open turn.
        refused = await (await session.mutate().rollback(await session.snapshot())).result()
        assert refused.status == "refused"
        assert refused.error
        assert refused.error.code == "TURNS_OPEN"
        going.set()
        assert (await session.wait()).output == "done"
        assert not await verify(app.store, session.id)


async def test_the_end_of_a_session_settles_the_shares_that_each_of_its_lanes_gave_away() -> None:
    started, going = asyncio.Event(), asyncio.Event()

    @tool
    async def hold(ctx: Context) -> str:
        started.set()
        await going.wait()
        return "held"

    leaf = Agent("leaf", ScriptedModel([call("hold"), say("x")]), tools=[hold])
    top = asking("top", leaf)
    async with running(top, leaf) as app:
        session = await app.start("top", "go", lane="other", budget=Budget(tokens=100_000))
        await started.wait()
        assert (await reserved(app, session))[0].tokens > 40_000
        await session.end("enough")
        going.set()
        async with asyncio.timeout(20):
            while any(await reserved(app, session)):  # noqa: ASYNC110 - its lanes may have ended
                await asyncio.sleep(0.01)
        for info in await app.sessions():
            assert not await verify(app.store, info.session_id)
