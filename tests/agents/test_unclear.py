"""Calls of which nobody knows what became of them, and that are awkward to find out about."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from scene import agent, results_of, running, seen, the

from outlast import Agent, Context, NotDone, tool
from outlast.agents.model.client import ModelRequest
from outlast.log.verify import verify
from outlast.testing.crash_everywhere import crash_everywhere
from outlast.testing.ledger import Ledger
from outlast.testing.scripted import ScriptedModel, call, say

# Finding out takes time


class Bank:
    """A tool that pays and is cut off, and a clerk who is asked then whether it has."""

    def __init__(self, *, cuts: int = 1, asks_first: bool = False) -> None:
        self.paid: list[int] = []
        self.heard: list[str] = []

        async def was_it_paid(ctx: Context, args: dict[str, Any]) -> Any:
            await ctx.sleep(timedelta(milliseconds=1))
            answer = await ctx.ask("Was it paid?", ["yes", "no"])
            self.heard.append(answer.option)
            return "paid, says the clerk" if answer.option == "yes" else NotDone

        @tool(on_interrupt=was_it_paid, timeout=0.05)
        async def pay(ctx: Context) -> str:
            note = (await ctx.ask("A note?")).text if asks_first else ""
            self.paid.append(ctx.attempt)
            if len(self.paid) <= cuts:
                await asyncio.Event().wait()
            return f"paid {note}".strip()

        self.agent: Agent[Any, Any] = agent([call("pay"), say("done")], tools=[pay])


@pytest.mark.parametrize(
    ("answer", "told", "times"), [("yes", "paid, says the clerk", 1), ("no", "paid", 2)]
)
async def test_a_tool_is_not_run_before_it_was_found_out_however_long_that_takes(
    answer: str, told: str, times: int
) -> None:
    bank = Bank()
    async with running(bank.agent) as app:
        session = await app.start("a", "go")
        [asked] = await seen(session, "request.opened")
        assert len(bank.paid) == 1
        await session.answer(asked.data["request_id"], answer)

        assert (await session.wait()).output == "done"
        assert await results_of(session) == [told]
        assert len(bank.paid) == times
        assert bank.heard == [answer]
        assert not await verify(app.store, session.id)


async def test_of_each_attempt_that_was_cut_off_it_is_found_out_anew() -> None:
    bank = Bank(cuts=2)
    async with running(bank.agent) as app:
        session = await app.start("a", "go")
        for number, answer in enumerate(("no", "yes"), 1):
            asked = (await seen(session, "request.opened", number))[-1]
            await session.answer(asked.data["request_id"], answer)

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["paid, says the clerk"]
        assert len(bank.paid) == 2
        assert bank.heard == ["no", "yes"]


@pytest.mark.parametrize("together", [False, True], ids=["step by step", "at once"])
async def test_a_look_at_one_attempt_is_not_taken_for_what_became_of_another(
    together: bool,
) -> None:
    paid: list[int] = []
    looks: list[int] = []

    def look() -> bool:
        looks.append(len(paid))
        return bool(paid)

    async def was_it_paid(ctx: Context, args: dict[str, Any]) -> Any:
        looking = ctx.step(look, name="look")
        found = (await ctx.gather(looking))[0] if together else await looking
        await ctx.gather(ctx.sleep(timedelta(milliseconds=1)))
        return "paid, says the bank" if found else NotDone

    @tool(on_interrupt=was_it_paid, timeout=0.05)
    async def pay(ctx: Context) -> str:
        await ctx.step(lambda: "at the tool's own", name="look")
        if ctx.attempt > 1:  # of the first nothing was done
            paid.append(ctx.attempt)
        await asyncio.Event().wait()
        return "never"

    async with running(agent([call("pay"), say("done")], tools=[pay])) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["paid, says the bank"]
        assert (len(paid), looks) == (1, [0, 1])
        assert len(await the(session, "timer.set")) == 2


async def test_what_was_said_to_the_tool_is_not_taken_for_what_became_of_it() -> None:
    bank = Bank(asks_first=True)
    async with running(bank.agent) as app:
        session = await app.start("a", "go")
        [note] = await seen(session, "request.opened")
        await session.answer(note.data["request_id"], text="for the rent")
        asked = (await seen(session, "request.opened", 2))[-1]
        assert asked.data["prompt"] == "Was it paid?"
        await session.answer(asked.data["request_id"], "no")

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["paid for the rent"]
        assert len(await the(session, "request.opened")) == 2


async def test_a_crash_at_any_commit_while_it_is_found_out_pays_nothing_twice() -> None:
    ledger = Ledger()

    async def was_it_paid(ctx: Context, args: dict[str, Any]) -> Any:
        await ctx.sleep(timedelta(milliseconds=1))
        return "paid" if ledger.effects else NotDone

    @tool(on_interrupt=was_it_paid)
    async def pay(ctx: Context) -> str:
        ledger.record("paid")
        return "paid"

    async def play(app: Any) -> Any:
        session = await app.start("a", "go", dispatch_id="go")
        result = await session.wait()
        return result.output, await results_of(session), await verify(app.store, session.id)

    agents = [agent([call("pay"), say("done")], tools=[pay])]
    report = await crash_everywhere(play, agents=agents, ledger=ledger)

    assert {str(run.output) for run in report.runs} == {str(("done", ["paid"], []))}
    report.assert_no_effect_repeated()


# The code has changed meanwhile


def key_of(args: dict[str, Any]) -> str:
    return str(args["currency"])


async def found(ctx: Context, args: dict[str, Any]) -> str:
    return "found"


@pytest.mark.parametrize(
    "manners",
    [{"on_interrupt": found}, {"on_interrupt": "rerun"}, {"idempotency_key": key_of}],
    ids=["reconcile", "rerun", "key"],
)
async def test_a_call_that_the_code_of_today_cannot_read_is_of_unknown_outcome(
    manners: dict[str, Any],
) -> None:
    paid: list[int] = []

    @tool(on_interrupt=manners.get("on_interrupt", "rerun"), timeout=60)
    async def pay(cents: int) -> str:
        paid.append(cents)
        await asyncio.Event().wait()
        return "never"

    script = [call("pay", cents=5), say("done")]
    async with running(agent(script, tools=[pay])) as app:
        session = await app.start("a", "go")
        await seen(session, "tool.started")
        store = app.store
        if "idempotency_key" in manners:

            @tool(name="pay", on_interrupt="rerun", **manners)
            async def newer(cents: int) -> str:
                paid.append(cents)
                return "paid"
        else:

            @tool(name="pay", **manners)
            async def newer(cents: int, currency: str) -> str:
                paid.append(cents)
                return "paid"

        await app.close()
        async with running(agent(script, tools=[newer]), store=store) as later:
            handle = await later.session(session.id)
            assert (await handle.wait()).output == "done"
            [told] = await results_of(handle)
            assert "outcome of this call is unknown" in told
            assert paid == [5]
            assert not await verify(store, session.id)


@pytest.mark.parametrize(
    ("today", "told"), [("report", "outcome of this call is unknown"), ("rerun", "paid today")]
)
async def test_a_call_that_was_being_found_out_about_goes_by_what_the_code_of_today_says(
    today: Any, told: str
) -> None:
    bank = Bank()
    paid: list[int] = []

    @tool(name="pay", on_interrupt=today)
    async def newer() -> str:
        paid.append(1)
        return "paid today"

    async with running(bank.agent) as app:
        session = await app.start("a", "go")
        [asked] = (await session.wait()).requests
        store = app.store
        await app.close()
        later = agent([call("pay"), say("done")], tools=[newer])
        async with running(later, store=store) as upgraded:
            handle = await upgraded.session(session.id)
            await handle.answer(asked.request_id, "no")
            assert (await handle.wait()).output == "done"
            assert told in (await results_of(handle))[0]
            assert len(paid) == (today == "rerun")
            assert not await verify(store, session.id)


# A tool that stops itself


@pytest.mark.parametrize("is_shielded", [False, True])
async def test_a_tool_that_cancels_itself_is_interrupted(is_shielded: bool) -> None:
    @tool
    async def give_up() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await (asyncio.shield(asyncio.sleep(1)) if is_shielded else asyncio.sleep(1))

    async with running(agent([call("give_up"), say("well")], tools=[give_up])) as app:
        session = await app.start("a", "go")
        assert (await asyncio.wait_for(session.wait(), 30)).output == "well"
        [cut] = await the(session, "tool.interrupted")
        assert cut.data["reason"] == "cancelled"


class Fainthearted(ScriptedModel):
    """A model whose client gives up on the first call."""

    calls = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        self.calls += 1
        task = asyncio.current_task()
        if self.calls == 1 and task:
            task.cancel()
        await asyncio.sleep(0)
        async for said in super().stream(request):
            yield said


async def test_a_model_that_cancels_its_own_call_is_asked_again() -> None:
    model = Fainthearted([say("well")])
    async with running(Agent("a", model)) as app:
        session = await app.start("a", "go")
        assert (await asyncio.wait_for(session.wait(), 30)).output == "well"
        assert model.calls == 2
        [retrying] = await the(session, "model.retrying")
        assert retrying.data["error"]["code"] == "ANSWER_CUT_OFF"
