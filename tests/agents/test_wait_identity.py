"""Waits are known by what they are: new code under a parked tool gets no other wait's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from scene import agent, at_standstill, results_of, running, seen, the

from outlast import Agent, Context, Option, Outlast, Session, ToolError, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.message import UserMessage, text_of
from outlast.errors import RequestClosed
from outlast.log.verify import verify
from outlast.testing.clock import START
from outlast.testing.crash_everywhere import crash_everywhere
from outlast.testing.ledger import Ledger
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say

Body = Callable[[Context[Any]], Awaitable[Any]]
HOUR = 3_600_000
AN_HOUR = timedelta(hours=1)
PRICE = "It costs 90. Take it?"
SHARE = "May we share your data?"


def version(body: Body, **options: Any) -> Agent[Any, Any]:
    """An agent named `a`, whose tool is a version of the user's code."""

    @tool(**{"on_interrupt": "rerun", **options})
    async def book(ctx: Context[Any]) -> Any:
        return await body(ctx)

    return agent([call("book"), say("done")], tools=[book])


def echoed(request: ModelRequest) -> ScriptedReply:
    [heard] = request.view.messages
    assert isinstance(heard, UserMessage)
    return say(f"to {text_of(heard.content)}")


def echo(name: str = "echo") -> Agent[Any, Any]:
    """An agent that says what it was asked."""
    return Agent(name, ScriptedModel(echoed))


class Deployment:
    """The code that a worker has; `current` may be exchanged while a tool is parked."""

    def __init__(self, body: Body) -> None:
        self.current = body

    async def __call__(self, ctx: Context[Any]) -> Any:
        return await self.current(ctx)


async def open_requests(session: Session[Any], *prompts: str) -> dict[str, str]:
    """Wait until just these questions are open, and return their ids."""
    while True:
        opened = len(await the(session, "request.opened"))  # before the look: one may come after it
        found = {q.prompt: q.request_id for q in await session.requests()}
        if set(found) >= set(prompts):
            return found
        await seen(session, "request.opened", opened + 1)


async def take_it(ctx: Context[Any]) -> str:
    answer = await ctx.ask(PRICE, ["yes", "no"])
    return f"bought: {answer.option}"


# New code under a parked tool, on every database


async def deployed(
    url: str, old: Body, new: Body, play: Callable[[Session[Any], str], Awaitable[None]]
) -> list[str]:
    """Park a tool of the old code at a question, and go on with the new; return its result."""
    async with running(version(old), echo(), store=url) as app:
        session = await app.start("a", "go")
        await seen(session, "request.opened")
        requests = await session.requests()
    async with running(version(new), echo(), store=url) as app:
        session = await app.session(session.id)
        await play(session, requests[0].request_id if requests else "")
        assert (await session.wait()).output == "done"
        assert not await verify(app.store, session.id)
        return await results_of(session)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/waits.db"


async def test_a_yes_to_the_price_is_no_consent_to_sharing(database: str) -> None:
    async def with_consent(ctx: Context[Any]) -> str:
        shares = (await ctx.ask(SHARE, ["yes", "no"])).option
        return f"shares: {shares}, {await take_it(ctx)}"

    async def play(session: Session[Any], price: str) -> None:
        await session.answer(price, "yes")
        asked = (await seen(session, "request.opened", 2))[1]
        assert asked.data["prompt"] == SHARE
        await session.answer(asked.data["request_id"], "no")

    told = await deployed(database, take_it, with_consent, play)
    assert told == ["shares: no, bought: yes"]


async def test_an_agent_that_is_asked_before_another_gets_its_own_answer(database: str) -> None:
    async def old(ctx: Context[Any]) -> str:
        said = await ctx.agent("echo").ask("first")
        await ctx.ask("Well?")
        return str(said)

    async def new(ctx: Context[Any]) -> list[str]:
        return [await ctx.agent("echo").ask(each) for each in ("zeroth", "first")]

    async def play(session: Session[Any], well: str) -> None:
        await session.answer(well, text="go on")

    assert await deployed(database, old, new, play) == ['["to zeroth","to first"]']


async def test_a_question_that_is_reworded_is_asked_anew(database: str) -> None:
    async def reworded(ctx: Context[Any]) -> str:
        return (await ctx.ask("It costs 95. Take it?", ["yes", "no"])).option

    async def play(session: Session[Any], price: str) -> None:
        await session.answer(price, "yes")
        asked = (await seen(session, "request.opened", 2))[1]
        assert asked.data["prompt"] == "It costs 95. Take it?"
        await session.answer(asked.data["request_id"], "no")

    assert await deployed(database, take_it, reworded, play) == ["no"]


async def test_a_named_question_keeps_its_answer_and_tells_what_the_human_saw(
    database: str,
) -> None:
    async def old(ctx: Context[Any]) -> str:
        return (await ctx.ask(PRICE, ["yes", "no"], name="price")).option

    async def new(ctx: Context[Any]) -> list[str]:
        answer = await ctx.ask("95, well?", ["yes", "no", "maybe"], name="price")
        return [answer.option, answer.prompt]

    async def play(session: Session[Any], price: str) -> None:
        await session.answer(price, "yes")

    assert await deployed(database, old, new, play) == [f'["yes","{PRICE}"]']


async def test_a_named_question_whose_chosen_option_is_gone_is_asked_anew(database: str) -> None:
    async def old(ctx: Context[Any]) -> str:
        return (await ctx.ask(PRICE, ["yes", "no"], name="price")).option

    async def new(ctx: Context[Any]) -> list[str]:
        options = [Option("once", "Once"), Option("always", "Always")]
        answer = await ctx.ask(PRICE, options, name="price", allow_freeform=False)
        return [answer.option]

    async def play(session: Session[Any], price: str) -> None:
        await session.answer(price, "yes")
        asked = (await seen(session, "request.opened", 2))[1]
        assert asked.data["request_id"] != price
        await session.answer(asked.data["request_id"], "once")

    assert await deployed(database, old, new, play) == ['["once"]']


async def test_a_question_that_is_renamed_is_asked_anew(database: str) -> None:
    def named(name: str) -> Body:
        async def body(ctx: Context[Any]) -> str:
            return (await ctx.ask(PRICE, ["yes", "no"], name=name)).option

        return body

    async def play(session: Session[Any], price: str) -> None:
        await session.answer(price, "yes")
        asked = (await seen(session, "request.opened", 2))[1]
        await session.answer(asked.data["request_id"], "no")

    assert await deployed(database, named("price"), named("cost"), play) == ["no"]


async def test_a_question_that_is_removed_is_closed_with_the_call_and_explained_before(
    database: str,
) -> None:
    async def old(ctx: Context[Any]) -> list[str]:
        both = await ctx.gather(price=take_it(ctx), go=ctx.ask("Go on?"))
        return [str(each) for each in both.values()]

    async def new(ctx: Context[Any]) -> str:
        both = await ctx.gather(go=ctx.ask("Go on?"))
        return f"{both['go'].text}, {(await ctx.ask('Sure?')).text}"

    told: list[str] = []

    async def play(session: Session[Any], price: str) -> None:
        await session.answer((await open_requests(session, "Go on?"))["Go on?"], text="yes")
        sure = (await open_requests(session, "Sure?"))["Sure?"]
        await seen(session, "session.waiting", 2)
        told.extend(cause.text for cause in (await session.explain()).lanes[0].links)
        await session.answer(sure, text="sure")

    assert await deployed(database, old, new, play) == ["yes, sure"]
    [unasked] = [text for text in told if PRICE in text]
    assert "the tool no longer asks for it" in unasked


# Who is told apart by what


async def test_an_unused_answer_stays_in_the_log_and_is_explained() -> None:
    body = Deployment(take_it)

    async def new(ctx: Context[Any]) -> str:
        return (await ctx.ask("Sure?")).text

    async with running(version(body)) as app:
        session = await app.start("a", "go")
        asked = await open_requests(session, PRICE)
        body.current = new
        await session.answer(asked[PRICE], "yes")
        sure = await open_requests(session, "Sure?")
        await seen(session, "session.waiting", 2)
        told = [cause.text for cause in (await session.explain()).lanes[0].links]
        assert f"the tool book has not asked for answers that have come: {PRICE}" in told
        await session.answer(sure["Sure?"], text="sure")
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["sure"]


async def test_equal_questions_are_told_apart_by_their_count() -> None:
    async def body(ctx: Context[Any]) -> list[str]:
        return [(await ctx.ask("Next?")).text for _ in range(3)]

    async with running(version(body)) as app:
        session = await app.start("a", "go")
        for number in range(3):
            asked = (await seen(session, "request.opened", number + 1))[-1]
            await session.answer(asked.data["request_id"], text=f"{number}")
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["0","1","2"]']


async def test_waits_of_a_step_that_is_recorded_are_not_counted_with_those_after_it() -> None:
    async def body(ctx: Context[Any]) -> list[str]:
        async def ask() -> str:
            return (await ctx.ask("Next?")).text

        return [await ctx.step(ask, name=name) for name in ("one", "two", "three")]

    async with running(version(body)) as app:
        session = await app.start("a", "go")
        for number in range(3):
            asked = (await seen(session, "request.opened", number + 1))[-1]
            await session.answer(asked.data["request_id"], text=f"{number}")
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["0","1","2"]']


async def test_a_sleep_is_known_by_name_or_count_and_never_by_its_length() -> None:
    async def old(ctx: Context[Any]) -> str:
        await ctx.gather(ctx.sleep(AN_HOUR), ctx.sleep(AN_HOUR, name="rest"))
        return "old"

    async def new(ctx: Context[Any]) -> str:
        await ctx.gather(ctx.sleep(5 * AN_HOUR), ctx.sleep(7 * AN_HOUR, name="rest"))
        return "new"

    body = Deployment(old)
    async with at_standstill(version(body)) as (app, clock):
        session = await app.start("a", "go")
        await seen(session, "timer.set", 2)
        body.current = new
        clock.set(START + HOUR)
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["new"]
        assert len(await the(session, "timer.set")) == 2


@pytest.mark.parametrize("name", ["a/b", "a#1", "=reconcile", "a~2", "50%", "ask:x", "ü"])
async def test_any_name_can_be_given_and_stands_for_itself_alone(name: str) -> None:
    async def body(ctx: Context[Any]) -> list[str]:
        asked = {key: ctx.ask(f"{key}?", name=key) for key in (name, "a", "b")}
        return [answer.text for answer in (await ctx.gather(**asked)).values()]

    async with running(version(body)) as app:
        session = await app.start("a", "go")
        for request in await seen(session, "request.opened", 3):
            await session.answer(request.data["request_id"], text=request.data["prompt"])
        assert (await session.wait()).output == "done"
        assert await results_of(session) == [f'["{name}?","a?","b?"]']


# First


async def test_who_came_first_is_recorded_and_stays_first_in_every_later_run() -> None:
    runs: list[str] = []

    async def body(ctx: Context[Any]) -> list[str]:
        came = await ctx.first(bob=ctx.ask("Bob?"), ann=ctx.ask("Ann?"))
        runs.append(came.name)
        return [came.name, came.value.text, (await ctx.ask("Sure?")).text]

    async with running(version(body)) as app:
        session = await app.start("a", "go")
        asked = await open_requests(session, "Bob?", "Ann?")
        await session.answer(asked["Ann?"], text="ann")
        sure = await open_requests(session, "Sure?")
        with pytest.raises(RequestClosed):
            await session.answer(asked["Bob?"], text="bob")
        assert set(await open_requests(session)) == {"Sure?"}
        await session.answer(sure["Sure?"], text="sure")
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["ann","ann","sure"]']
        assert runs == ["ann", "ann"]
        assert not await verify(app.store, session.id)


async def test_of_two_answers_at_once_one_is_taken_and_the_same_in_every_run() -> None:
    runs: list[str] = []

    async def body(ctx: Context[Any]) -> str:
        came = await ctx.first(bob=ctx.ask("Bob?"), ann=ctx.ask("Ann?"))
        runs.append(came.value.text)
        await ctx.sleep(timedelta(milliseconds=1))
        return came.value.text

    async with running(version(body)) as app:
        session = await app.start("a", "go")
        asked = await open_requests(session, "Bob?", "Ann?")
        await seen(session, "session.waiting")
        answers = (session.answer(asked[f"{name}?"], text=name) for name in ("Ann", "Bob"))
        await asyncio.gather(*answers, return_exceptions=True)
        assert (await session.wait()).output == "done"
        [told] = await results_of(session)
        assert runs == [told, told]
        assert not await verify(app.store, session.id)


async def test_an_error_that_comes_first_is_raised_and_the_others_are_withdrawn() -> None:
    async def body(ctx: Context[Any]) -> str:
        try:
            await ctx.first(slow=ctx.ask("Slow?"), quick=ctx.ask("Quick?", timeout=AN_HOUR))
        except ToolError as error:
            return f"{error}, {(await ctx.ask('Then?')).text}"
        return "never"

    async with at_standstill(version(body)) as (app, clock):
        session = await app.start("a", "go")
        await open_requests(session, "Slow?", "Quick?")
        await seen(session, "session.waiting")
        clock.set(START + HOUR)
        then = await open_requests(session, "Then?")
        assert set(then) == {"Then?"}
        await session.answer(then["Then?"], text="so be it")
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["nobody answered in time, so be it"]


async def test_a_race_whose_winner_is_gone_from_the_code_is_run_anew() -> None:
    async def old(ctx: Context[Any]) -> str:
        came = await ctx.first(bob=ctx.ask("Bob?"), ann=ctx.ask("Ann?"))
        await ctx.ask("Sure?")
        return came.name

    async def new(ctx: Context[Any]) -> str:
        came = await ctx.first(bob=ctx.ask("Bob?"), eve=ctx.ask("Eve?"))
        return f"{came.name}: {came.value.text}"

    body = Deployment(old)
    async with running(version(body)) as app:
        session = await app.start("a", "go")
        first = await open_requests(session, "Bob?", "Ann?")
        await session.answer(first["Ann?"], text="ann")
        sure = await open_requests(session, "Sure?")
        body.current = new
        await session.answer(sure["Sure?"], text="sure")
        again = await open_requests(session, "Bob?", "Eve?")
        assert again["Bob?"] != first["Bob?"]
        await session.answer(again["Bob?"], text="hello")
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["bob: hello"]
        assert not await verify(app.store, session.id)


async def test_a_crash_at_any_commit_changes_neither_who_was_first_nor_who_is_asked() -> None:
    ledger = Ledger()

    async def body(ctx: Context[Any]) -> list[Any]:
        came = await ctx.first(echo=ctx.agent("echo").ask("go"), human=ctx.ask("Well?"))
        both = await ctx.gather(
            nap=ctx.sleep(timedelta(milliseconds=2)), said=ctx.agent("echo").ask("again")
        )
        return [came.name, came.value, both["said"]]

    async def play(app: Outlast) -> Any:
        session = await app.start("a", "go", dispatch_id="go")
        result = await session.wait()
        while result.status == "waiting":  # the human's question is open for a while
            result = await session.wait()
        kinds = ("request.opened", "subagent.called", "timer.set")
        begun = [len(await the(session, kind)) for kind in kinds]
        return result.output, await results_of(session), begun, await verify(app.store, session.id)

    report = await crash_everywhere(play, agents=[version(body), echo()], ledger=ledger)
    assert len(report.runs) > 5
    told = ['["echo","to go","to again"]']
    assert all(run.output == ("done", told, [1, 2, 1], []) for run in report.runs)


# What differs in every run


async def test_a_question_that_differs_in_every_run_ends_the_call_after_three() -> None:
    prices: list[int] = []

    async def body(ctx: Context[Any]) -> str:
        prices.append(90 + len(prices))
        return (await ctx.ask(f"It costs {prices[-1]}. Take it?", ["yes", "no"])).option

    async with running(version(body, idempotent=True, max_attempts=5)) as app:
        session = await app.start("a", "go")
        for number in range(3):
            asked = (await seen(session, "request.opened", number + 1))[-1]
            await session.answer(asked.data["request_id"], "yes")
        assert (await session.wait()).output == "done"
        [told] = await results_of(session)
        assert told.startswith("UNSTABLE_WAIT: ")
        assert "'It costs 92. Take it?' was answered" in told
        assert "now it asks 'It costs 93. Take it?'" in told
        assert "give it a name" in told
        assert len(await the(session, "request.opened")) == 3
        assert not await verify(app.store, session.id)


async def test_a_child_that_is_asked_something_else_in_every_run_is_paid_for_twice_at_most() -> (
    None
):
    runs: list[int] = []

    async def body(ctx: Context[Any]) -> str:
        runs.append(1)
        return str(await ctx.agent("echo").ask(f"for the {len(runs)}th time"))

    async with running(version(body), echo()) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"
        [told] = await results_of(session)
        assert told.startswith("UNSTABLE_WAIT: ")
        assert "'for the 2th time' was answered" in told
        assert "now it asks 'for the 3th time'" in told
        assert len(await the(session, "subagent.called")) == 2
        assert len(await app.store.listing.sessions()) == 3
        assert not await verify(app.store, session.id)


async def test_an_answer_that_is_taken_begins_the_count_anew() -> None:
    runs: list[int] = []

    async def body(ctx: Context[Any]) -> str:
        runs.append(1)
        for number in range(4):  # each is worded anew once, and then found
            words = "again" if len(runs) > 2 * number + 1 else "once"
            await ctx.ask(f"{number} {words}?")
        return "well"

    async with running(version(body)) as app:
        session = await app.start("a", "go")
        for number in range(8):
            asked = (await seen(session, "request.opened", number + 1))[-1]
            await session.answer(asked.data["request_id"], text="yes")
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["well"]
