"""Agents with several models: the turn goes on with the next where one cannot be had."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from math import inf

import pytest
from scene import agent, at_standstill, log_of, running, the, types_of, until

from outlast import Agent, Limit, ModelOptions, Outlast, OutlastError, tool
from outlast.agents.model.client import ModelPiece, ModelRequest, TextPiece
from outlast.agents.runtime.executor import AgentExecutor
from outlast.agents.runtime.thread import ToolThreads
from outlast.clock import Clock
from outlast.core.instant import milliseconds_at
from outlast.core.lane import Lane, Turn
from outlast.core.message import ModelAnswer, text_of
from outlast.engine.executor import LaneModel
from outlast.log.verify import verify
from outlast.stores.sqlite import MemoryStore
from outlast.testing import Ledger, crash_everywhere
from outlast.testing.scripted import Script, ScriptedError, ScriptedModel, ScriptedReply, call, say

REJECTED = ScriptedError("blocked", "wrong key")


class Asked(ScriptedModel):
    """A scripted model that counts how often it was asked."""

    def __init__(self, name: str, script: Script) -> None:
        self.times = 0
        super().__init__(script, name=name, on_request=self._count)

    def _count(self, _: ModelRequest) -> None:
        self.times += 1


def away(name: str = "first") -> Asked:
    def refuse(_: ModelRequest) -> ScriptedReply:
        raise REJECTED

    return Asked(name, refuse)


class BreaksOff(ScriptedModel):
    """A model that never gets further than half an answer, which readers have heard by then."""

    def __init__(self) -> None:
        super().__init__([], name="first")
        self.is_heard = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        yield TextPiece(0, "Half an ")
        await self.is_heard.wait()
        raise REJECTED


@tool
async def look() -> str:
    """Look."""
    return "seen"


# A turn


async def test_a_turn_goes_on_with_the_next_model_and_the_next_turn_begins_with_the_first() -> None:
    first, second = away(), Asked("second", [call("look"), say("hi"), say("again")])
    async with running(Agent("a", [first, second], tools=[look])) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "hi"
        assert (first.times, second.times) == (1, 2)
        assert (await (await session.send("more")).result()).unwrap() == "again"

        assert (first.times, second.times) == (2, 3)
        left, again = await the(session, "model.switched")
        assert (left.call_id, again.call_id, left.attempt_id) == ("t1.s1", "t2.s1", "t1.s1#1")
        assert left.data["left"] == "first"
        assert left.data["model"] == "second"
        assert left.data["error"] == {"code": "SCRIPTED", "message": "wrong key"}
        assert left.data["blocked"]
        events = await log_of(session, internals=True)
        asked = [e.data["model"] for e in events if e.type == "model.started"]
        assert asked == ["first", "second", "second", "first", "second"]
        types = await types_of(session)
        assert not {"provider.unavailable", "session.resumed"} & set(types)


async def test_half_an_answer_is_dropped_and_begun_anew_by_the_next_model() -> None:
    first, second = BreaksOff(), ScriptedModel([say("A whole one", chunks=3)], name="second")
    async with running(Agent("a", [first, second])) as app:
        session = await app.start("a", "go")
        await until(session, "message.delta")
        first.is_heard.set()
        assert (await session.wait()).output == "A whole one"

        [aborted] = await the(session, "message.aborted")
        [whole] = await the(session, "message.completed")
        assert (aborted.attempt_id, aborted.data.get("kept")) == ("t1.s1#1", None)
        assert [part["text"] for part in whole.data["parts"]] == ["A whole one"]
        [answer] = [each for each in await session.history() if isinstance(each, ModelAnswer)]
        assert text_of(answer.parts) == "A whole one"


async def test_when_all_are_away_the_session_waits_and_takes_the_first_that_is_back() -> None:
    first = away()
    second = Asked("second", [ScriptedReply(text="hi", fails=(REJECTED,) * 3)])
    async with at_standstill(Agent("a", [first, second])) as (app, clock):
        session = await app.start("a", "go")
        gone = await until(session, "provider.unavailable")
        assert (gone.data["model"], gone.data["next_model"]) == ("second", "first")
        clock.set(milliseconds_at(gone.data["not_before"]))
        again = await until(session, "provider.still_unavailable", internals=True)
        assert (again.data["model"], again.data["next_model"]) == ("first", "second")
        clock.set(milliseconds_at(again.data["not_before"]))

        assert (await session.wait()).output == "hi"
        [back] = await the(session, "provider.available")
        assert (back.data["model"], back.data["attempts"]) == ("second", 2)
        types = await types_of(session)
        assert types.count("model.switched") == types.count("provider.unavailable") == 1
        assert types.count("session.resumed") == 1


async def test_without_patience_every_model_is_asked_before_the_turn_fails() -> None:
    first, second = away(), away("second")
    options = ModelOptions(provider_patience=0)
    async with running(Agent("a", [first, second], model_options=options)) as app:
        session = await app.start("a", "go")
        first_end = await session.wait()
        second_end = await (await session.send("and now?")).result()

        assert (first_end.status, second_end.status) == ("failed", "failed")
        assert first_end.error is not None
        assert (first_end.error.code, first.times, second.times) == ("SCRIPTED", 2, 2)


async def test_every_crash_of_a_turn_with_a_fallback_gives_the_same_answer() -> None:
    ledger = Ledger()

    @tool(idempotent=True)
    async def note() -> str:
        return "noted"

    first = BreaksOff()
    second = ScriptedModel([call("note"), say("A whole one", chunks=3)], name="second")

    async def scenario(app: Outlast) -> tuple[str | None, int, list[str]]:
        first.is_heard.clear()
        session = await app.start("a", "go")
        await until(session, "message.delta")
        first.is_heard.set()
        output = (await session.wait()).output
        answers = [each for each in await session.history() if isinstance(each, ModelAnswer)]
        assert await verify(app.store, session.id) == []
        switched = await the(session, "model.switched")
        return output, len(switched), [text_of(each.parts) for each in answers]

    agents = [Agent("a", [first, second], tools=[note])]
    report = await crash_everywhere(scenario, agents=agents, ledger=ledger, store=MemoryStore)

    assert report.undisturbed.output == ("A whole one", 1, ["", "A whole one"])
    report.assert_same_output()
    report.assert_nothing_lost()


# A worker


async def test_a_worker_that_cannot_build_one_model_warns_and_uses_the_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    second = ScriptedModel([say("hi")], name="second")
    with caplog.at_level(logging.INFO, "outlast"):
        async with running(Agent("a", ["no-such-provider:model", second])) as app:
            session = await app.start("a", "go")
            assert (await session.wait()).output == "hi"
            [left] = await the(session, "model.switched")

    assert left.data["error"]["code"] == "MODEL_NOT_BUILT"
    told = "\n".join(each.getMessage() for each in caplog.records)
    assert "this worker serves agent a without one of its models: the model 'no-such" in told
    assert f"{session.id} leaves the model no-such-provider:model for second" in told


async def test_a_worker_that_can_build_none_says_what_each_is_missing() -> None:
    app = Outlast([Agent("a", ["no-such:model", "nor-this:model"])], store="memory://")
    with pytest.raises(OutlastError, match=r"cannot serve agent a: .*no-such.*; .*nor-this"):
        await app.open()


class OwnForm(ScriptedModel):
    """A client that keeps the conversation in a form of its own."""

    def _reply(self, request: ModelRequest) -> ScriptedReply:
        view = request.view
        assert set(view.rendered) <= {self.name}
        view.rendered.extend([self.name] * (len(view.messages) - len(view.rendered)))
        return super()._reply(request)


async def test_each_model_has_the_conversation_in_its_own_form() -> None:
    def refuse_later(request: ModelRequest) -> ScriptedReply:
        if len(request.view.messages) > 1:
            raise REJECTED
        return say("one")

    first = OwnForm(refuse_later, name="first")
    second = OwnForm([say("-"), say("two")], name="second")
    async with running(Agent("a", [first, second])) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "one"
        assert (await (await session.send("more")).result()).unwrap() == "two"


class InOnePiece(ScriptedModel):
    can_stream = False


def test_limits_and_timeouts_are_those_of_the_model_that_is_asked() -> None:
    models = [ScriptedModel([], name="first"), InOnePiece([], name="second")]
    options = ModelOptions(limit=Limit(concurrency=2), timeout=9, idle_timeout=3)
    asks = Agent("a", models, model_options=options)
    executor = AgentExecutor(asks, models, None, ToolThreads(), Clock())
    begins = Lane(session="s")
    moved, older = (
        Lane(session="s", turn=Turn("t1", ("d1",), 0, fallback=name)) for name in ("second", "x")
    )

    assert executor.model_of(begins) == executor.model_of(older) == LaneModel(0, "first", True)
    assert executor.model_of(moved) == LaneModel(1, "second", False)
    assert executor.model_timeouts(begins).silence == 3
    assert executor.model_timeouts(moved).silence == inf
    names = [
        [bound.name for bound in executor.bounds_of_model(lane, starts_turn=False)]
        for lane in (begins, moved)
    ]
    assert names == [["model:first"], ["model:second"]]


async def test_a_permit_of_the_model_that_is_left_is_given_back() -> None:
    slow = ScriptedModel([say("hi", chunks=2, pace=30)], name="second")
    options = ModelOptions(limit=Limit(concurrency=1))
    async with running(Agent("a", [away(), slow], model_options=options)) as app:
        session = await app.start("a", "go")
        await until(session, "message.delta")

        permits = await app.store.limit.permits(session.id)

    assert [(each.name, each.held) for each in permits] == [("model:second", True)]


# What is said of it


async def test_explain_says_which_model_a_turn_asks_and_why() -> None:
    slow = ScriptedModel([say("hi", chunks=2, pace=30)], name="second")
    async with running(Agent("a", [away(), slow])) as app:
        session = await app.start("a", "go")
        await until(session, "message.delta")

        texts = [each.text for each in (await session.explain()).lanes[0].links]

    assert "the turn asks the model second, since first could not be had: SCRIPTED: wrong key" in (
        texts
    )
    assert "the model call t1.s1 to second is under way in attempt 2" in texts


async def test_explain_says_of_each_model_why_it_cannot_be_had() -> None:
    async with running(Agent("a", [away(), away("second")])) as app:
        session = await app.start("a", "go")
        await until(session, "session.waiting")

        texts = [each.text for each in (await session.explain()).lanes[0].links]

    assert (
        "none of its models can be had; first is next, and this session is the next to ask it:"
        " first: SCRIPTED: wrong key; second: SCRIPTED: wrong key; that does not pass by itself:"
        " somebody has to mend it"
    ) in texts


def test_a_single_model_in_a_list_is_that_model() -> None:
    assert agent([]).policy.models == ("scripted",)
    assert Agent("a", ["openai:gpt-5.2"]).policy.models == ("openai:gpt-5.2",)
