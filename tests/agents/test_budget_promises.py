"""Budgets of people, of days and of sessions at work, unknown prices, and rows that are wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scene import agent, at_standstill, running, the, until

from outlast import Agent, Budget, Limits, ModelOptions, Outlast, tool
from outlast.agents.model import FinishedAnswer, ModelRequest, Text
from outlast.core.amount import BudgetKey
from outlast.core.result import Usage
from outlast.core.usage import DAY
from outlast.log.verify import verify
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say

ONCE = Budget(model_calls=1)
FAILS = Budget(model_calls=1, on_end="fail")
WHOLE = ModelOptions(stream=False)


@tool
async def look() -> str:
    return "seen"


async def known(app: Outlast) -> None:
    """Wait until the app's worker knows of a change of budgets, or would look for one."""
    assert app.worker
    directory = app.worker.budgets
    newest = await app.store.budget.newest_budget()
    async with asyncio.timeout(20):
        while not (directory.is_old or directory.newest == newest):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)


async def test_what_waits_for_a_budget_of_the_day_goes_on_when_the_next_begins() -> None:
    async with at_standstill(agent([say("one"), say("two")])) as (app, clock):
        await app.budgets.set(ONCE, per="day")
        session = await app.start("a", "go")
        assert (await session.wait()).output == "one"
        receipt = await session.send("on")
        await until(session, "budget.exhausted")
        await until(session, "session.waiting", 2)

        clock.advance(DAY - clock.now() % DAY)
        async with asyncio.timeout(30):
            assert (await receipt.result()).output == "two"
        assert not await verify(app.store, session.id)


async def test_a_session_at_work_is_given_a_budget_which_counts_from_then_on() -> None:
    async with running(agent([say(str(number)) for number in range(9)])) as app:
        session = await app.start("a", "go")
        await session.wait()
        await app.budgets.set(FAILS, session_id=session.id)
        await known(app)
        first, second = await session.send("one"), await session.send("two")

        assert ((await first.result()).status, (await second.result()).status) == (
            "completed",
            "failed",
        )
        assert await app.budgets.set(None, session_id=session.id) is None
        assert (await (await session.send("three")).result()).status == "completed"
        assert not await verify(app.store, session.id)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_budget_that_is_removed_from_a_session_does_not_come_back(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'outlast.db'}"
    if store == "postgres":
        url = request.getfixturevalue("postgres_url")
    answers = ScriptedModel(lambda _: say("yes"))
    async with running(Agent("a", answers, budget=FAILS), store=url) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).status == "completed"
        assert (await (await session.send("one")).result()).status == "failed"
        await app.budgets.set(None, session_id=session.id)
        for number in range(3):
            result = await (await session.send(f"after {number}")).result()
            assert result.status == "completed"
        assert not await verify(app.store, session.id)
        assert await app.budgets.get(session_id=session.id) is None


async def test_a_call_counts_in_the_budget_of_who_sent_the_message() -> None:
    async with running(agent([say("one"), say("two")])) as app:
        await app.budgets.set(Budget(model_calls=5), principal="bob")
        await known(app)
        session = await app.start("a", "go", principal="ada")
        await session.wait()
        await (await session.send("on", principal="bob")).result()

        [status] = await app.budgets.list()
        assert (status.principal, status.spent.model_calls) == ("bob", 1)


async def test_four_fifths_of_a_budget_that_sessions_share_are_told_once_in_each() -> None:
    async with running(agent([say("more")] * 10)) as app:
        await app.budgets.set(Budget(model_calls=10))
        await known(app)
        session = await app.start("a", "go")
        await session.wait()
        for _ in range(9):
            await (await session.send("on")).result()

        [warned] = await the(session, "budget.warned")
        assert (warned.data["limit"], warned.data["used"]) == (10, 8)


async def test_four_fifths_of_a_turns_budget_are_told_once_in_each_turn() -> None:
    limits = Limits(turn_budget=Budget(steps=10, on_end="fail"))
    wants_more = ScriptedModel(lambda _: call("look"))
    async with running(Agent("a", wants_more, tools=[look], limits=limits)) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).status == "failed"
        assert (await (await session.send("on")).result()).status == "failed"

        told = await the(session, "budget.warned")
        assert [(each.data["limit"], each.data["used"]) for each in told] == [(10, 8)] * 2


async def test_the_time_that_a_model_takes_is_active_time() -> None:
    slow = ScriptedReply(calls=(("look", {}),), delay=0.2)
    limits = Limits(turn_budget=Budget(wall_time=0.15, on_end="fail"))
    async with running(agent([slow, say("done")], tools=[look], limits=limits)) as app:
        result = await (await app.start("a", "go")).wait()
        assert result.error
        assert "active time" in result.error.message


class Slow(ScriptedModel):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.going = asyncio.Event(), asyncio.Event()
        super().__init__([])

    async def request(self, request: ModelRequest) -> FinishedAnswer:
        self.asked.set()
        await self.going.wait()
        return FinishedAnswer((Text("done"),), Usage(10, 5), "scripted", "stop")


async def test_a_call_waits_for_what_is_reserved_of_a_budget_at_whose_end_turns_fail() -> None:
    model = Slow()
    async with running(Agent("a", model, model_options=WHOLE)) as app:
        await app.budgets.set(Budget(tokens=1000, on_end="fail"))
        await known(app)
        first = await app.start("a", "go")
        await model.asked.wait()
        second = await app.start("a", "go")
        assert (await until(second, "session.waiting")).data["wait"] == ("budget",)
        model.going.set()

        assert (await first.wait()).output == "done"
        assert (await second.wait()).output == "done"


async def test_a_call_without_a_bound_reserves_8192_tokens_of_output() -> None:
    model = Slow()
    a: Agent[Any, Any] = Agent("a", model, budget=Budget(tokens=50_000), model_options=WHOLE)
    async with running(a) as app:
        session = await app.start("a", "x" * 400)
        await model.asked.wait()
        key = BudgetKey("session", session.id)
        [state] = await app.store.budget.find_budgets("default", [key])
        assert 8192 + 100 <= state.reserved.tokens <= 8192 + 110
        model.going.set()
        await session.wait()


async def test_a_call_of_unknown_price_that_is_allowed_counts_in_all_but_dollars() -> None:
    allowing = Budget(usd=1, tokens=50_000, unpriced="allow")
    async with running(agent([say("one")], budget=allowing)) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "one"

        [state] = await app.store.budget.find_budgets("default", [BudgetKey("session", session.id)])
        assert state.spent.nano_usd == 0
        assert state.spent.tokens > 0
        assert (await session.usage()).own.unpriced_calls == 1


@pytest.mark.parametrize("what", ["spent", "reserved"])
async def test_a_row_of_a_budget_that_says_something_else_than_the_log_is_found(what: str) -> None:
    async with running(agent([say("one")], budget=Budget(tokens=50_000))) as app:
        session = await app.start("a", "go")
        await session.wait()
        assert not await verify(app.store, session.id)
        store: Any = app.store
        wrong = f"UPDATE outlast_budget_uses SET {what} = '[1,0,0,0,0,0]'"  # noqa: S608 - ours
        await store._access.write(lambda db: [db.raw.execute(wrong).rowcount])

        [finding] = await verify(app.store, session.id)
        assert finding.code == "BUDGET_INDEX"
        assert "the session's budget" in finding.message
        assert what in finding.message
