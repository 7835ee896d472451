"""The model call that sums up what a compaction leaves out: a model call like any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from known import known
from msgspec.structs import replace
from scene import log_of, running, seen, the

from outlast import (
    Agent,
    ContextPolicy,
    Limit,
    ModelOptions,
    Outlast,
    QueueLimits,
    Session,
    tool,
)
from outlast.agents.model.client import FinishedAnswer, ModelFailure, ModelPiece, ModelRequest
from outlast.core.message import ToolOutputs, UserMessage, text_of
from outlast.core.record import Failure
from outlast.core.result import Usage
from outlast.log.verify import verify
from outlast.rules import Every, feedback
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say
from outlast.usage import Prices

POLICY = ContextPolicy(summarize=True, clear=False, superseded=False)


class Summing(ScriptedModel):
    """Looks once in every turn, then answers; its summaries can be held up, or fail."""

    def __init__(self) -> None:
        self.summaries = 0
        self.is_away = False
        self.is_held = False
        self.ignores_stops = False
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.seen: list[list[Any]] = []
        super().__init__(self._answer)

    def _answer(self, request: ModelRequest) -> ScriptedReply:
        if request.is_summary:
            self.summaries += 1
            if self.is_away:
                raise ConnectionError("no summaries today")
            return say("It was all about anchors.")
        self.seen.append(list(request.view.messages))
        return say("Done.") if isinstance(self.seen[-1][-1], ToolOutputs) else call("look")

    def classify(self, error: Exception) -> ModelFailure:
        return ModelFailure("transient", Failure("AWAY", str(error)))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        if request.is_summary and self.is_held:
            self.began.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                if not self.ignores_stops:
                    raise
                await self.go_on.wait()
        async for piece in super().stream(request):
            if isinstance(piece, FinishedAnswer):
                sent = sum(len(repr(message)) for message in request.view.messages)
                piece = replace(piece, usage=Usage(sent // 4, 10))
            yield piece


@tool(readonly=True)
async def look() -> str:
    return "an anchor " * 400


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


def agent(model: ScriptedModel, name: str = "a", **options: Any) -> Agent:
    return Agent(name, model, tools=[look], context=POLICY, **options)


async def talk(app: Outlast, a: Agent, turns: int = 4) -> Session[Any]:
    session = await app.start(a, "The first instruction.")
    await session.wait()
    for number in range(2, turns + 1):
        await (await session.send(f"Message {number}")).result()
    return session


async def explained(session: Session[Any]) -> list[str]:
    """What is said of the session's view."""
    [lane] = (await session.explain()).lanes
    return [link.text for link in lane.links if link.kind == "context"]


async def inside(session: Session[Any], kind: str) -> list[Any]:
    return [event for event in await log_of(session, internals=True) if event.type == kind]


def told(messages: list[Any]) -> str:
    return "\n".join(text_of(m.content) for m in messages if isinstance(m, UserMessage))


async def test_its_start_its_usage_and_its_outcome_are_in_the_log(store: str) -> None:
    async with running(a := agent(model := Summing()), store=store) as app:
        session = await talk(app, a)
        before = await session.usage()
        await (await session.compact()).result()
        [started] = await inside(session, "summary.started")
        [done] = await the(session, "compaction.completed")
        [used] = [each for each in await the(session, "usage.recorded") if each.call_id == "v1"]
        after = await session.usage()
        await (await session.send("Go on")).result()
        assert await verify(app.store, session.id) == []
    assert (started.call_id, started.attempt_id, started.turn) == ("v1", "v1#1", "")
    assert done.call_id == used.call_id == "v1"
    assert started.offset < used.offset < done.offset
    assert after.total.model_calls == before.total.model_calls + 1
    assert model.summaries == 1
    assert "It was all about anchors." in told(model.seen[-1])


async def test_one_that_fails_is_told_and_old_results_are_cleared() -> None:
    async with running(a := agent(model := Summing())) as app:
        model.is_away = True
        session = await talk(app, a)
        await (await session.compact()).result()
        [failed] = await inside(session, "summary.failed")
        [done] = await the(session, "compaction.completed")
        assert await verify(app.store, session.id) == []
        model.is_away = False
        await (await session.send("Go on")).result()
        await (await session.compact()).result()
        assert [each.call_id for each in await inside(session, "summary.started")] == ["v1", "v2"]
    assert failed.data["error"]["message"] == "no summaries today"
    assert done.data["results"]
    assert not done.call_id


async def test_an_empty_one_is_paid_for_and_not_used() -> None:
    class Silent(Summing):
        def _answer(self, request: ModelRequest) -> ScriptedReply:
            return say(" ") if request.is_summary else super()._answer(request)

    async with running(a := agent(Silent())) as app:
        session = await talk(app, a)
        before = await session.usage()
        await (await session.compact()).result()
        [failed] = await inside(session, "summary.failed")
        after = await session.usage()
    assert failed.data["error"]["code"] == "EMPTY_SUMMARY"
    assert after.total.model_calls == before.total.model_calls + 1


async def test_it_waits_for_a_permit_of_its_model(store: str) -> None:
    model, other = Summing(), Summing()
    options = ModelOptions(limit=Limit(concurrency=1))
    one, two = (
        agent(model, "one", model_options=options),
        agent(other, "two", model_options=options),
    )
    async with running(one, two, store=store) as app:
        busy, session = await talk(app, two), await talk(app, one)
        other.is_held = True
        held = await busy.compact()
        await other.began.wait()
        receipt = await session.compact()
        assert await waits_for(session, "limit")
        assert not await inside(session, "summary.started")
        assert await explained(session) == ["a compaction is asked for: it is made next"]
        other.go_on.set()
        assert (await held.result()).status == (await receipt.result()).status == "completed"
        assert await inside(session, "summary.started")
        await (await session.send("Go on")).result()  # it has given the permit back


async def waits_for(session: Session[Any], what: str) -> bool:
    async with asyncio.timeout(20):
        while what not in (await session.info()).lanes[0].wait:  # noqa: ASYNC110 - it rests
            await asyncio.sleep(0.01)
    return True


async def test_a_provider_that_is_away_is_not_asked_for_one() -> None:
    model = Summing()
    options = ModelOptions(max_attempts=1)
    async with running(a := agent(model, model_options=options)) as app:
        sessions = [await talk(app, a) for _ in range(4)]
        model.is_away = True
        for session in sessions[:3]:  # what they find out counts for all
            await (await session.compact()).result()
        assert model.summaries == 3
        [provider] = await app.providers.list()
        assert provider.state == "open"

        last = sessions[-1]
        assert (await (await last.compact()).result()).status == "completed"
        [failed] = await inside(last, "summary.failed")
        assert not await inside(last, "summary.started")
    assert model.summaries == 3
    assert failed.data["asked"] is False
    assert failed.data["error"]["message"] == "no summaries today"


@pytest.mark.parametrize("ignores_stops", [False, True])
async def test_one_that_takes_too_long_is_given_up(ignores_stops: bool) -> None:
    model = Summing()
    options = ModelOptions(timeout=0.3, idle_timeout=0.1)
    async with running(a := agent(model, model_options=options)) as app:
        session = await talk(app, a)
        model.is_held, model.ignores_stops = True, ignores_stops
        assert (await (await session.compact()).result()).status == "completed"
        [failed] = await inside(session, "summary.failed")
        model.go_on.set()
    assert failed.data["error"]["code"] == "MODEL_TIMEOUT"


async def test_a_turn_is_cancelled_in_its_middle() -> None:
    model = Summing()
    policy = ContextPolicy(max_tokens=1_500, summarize=True, clear=False)
    async with running(a := Agent("a", model, tools=[look], context=policy)) as app:
        session = await talk(app, a, 2)
        model.is_held = True
        receipt = await session.send("What else?")
        await model.began.wait()
        assert "the model is asked for a summary, t3.v2, attempt 1" in await explained(session)
        await session.cancel()
        assert (await receipt.result()).status == "cancelled"
        assert {each.turn for each in await the(session, "compaction.completed")} == {"t2"}
        model.is_held = False
        assert (await (await session.send("Go on")).result()).output == "Done."
        started = [each.call_id for each in await inside(session, "summary.started")]
        assert started == ["t2.v1", "t3.v2", "t4.v3"]
        assert await verify(app.store, session.id) == []


async def test_a_view_that_goes_back_in_its_middle_drops_it() -> None:
    async with running(a := agent(model := Summing())) as app:
        session = await talk(app, a)
        model.is_held = True
        compacts = await session.compact()
        await model.began.wait()
        # Those before it in the line are made first, whatever they are.
        rewinds = await session.rewind("t1")
        model.go_on.set()
        assert (await compacts.result()).status == (await rewinds.result()).status == "completed"
        [text] = await explained(session)
        assert text == "the model sees it as it was behind turn t1, and what came since"
        await (await session.send("Go on")).result()
        await (await session.compact()).result()
        [text] = await explained(session)
        assert text.startswith("the model's view was made shorter, to ")
        assert await verify(app.store, session.id) == []
    assert "Message 2" not in told(model.seen[-1])


async def test_feedback_that_becomes_due_in_its_middle_takes_nothing_from_it() -> None:
    model = Summing()

    @feedback(every=Every(seconds=0.2))
    async def hurry(ctx: Any) -> str:
        return "Hurry up."

    policy = ContextPolicy(max_tokens=1_500, summarize=True, clear=False)
    a = Agent("a", model, tools=[look], context=policy, rules=[hurry])
    async with running(a) as app:
        session = await talk(app, a, 2)
        model.is_held = True
        receipt = await session.send("What else?")
        await model.began.wait()
        async with asyncio.timeout(20):
            while not await the(session, "feedback.given"):
                await session.send("more")  # looks at the lane again
                await asyncio.sleep(0.05)
        model.go_on.set()
        assert (await receipt.result()).output == "Done."
        assert await the(session, "compaction.completed")
        assert await verify(app.store, session.id) == []


async def test_a_model_without_a_price_is_not_asked_where_that_is_refused() -> None:
    model = Summing()
    options = ModelOptions(prices=Prices(unknown="refuse"))
    async with running(a := agent(model, model_options=options)) as app:
        session = await app.start(a, "hello")
        await seen(session, "provider.unavailable")
        assert not model.seen


async def test_a_session_that_is_too_large_refuses_to_be_compacted(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path}/a.db"
    async with running(a := agent(Summing()), store=store) as app:
        session = await talk(app, a)
        # Accepted where there was room, and taken where there is none.
    async with Outlast([a], store=store, worker=None) as app:
        session = await app.session(session.id)
        receipts = [await session.compact(), await session.rewind("t1")]
    async with running(a, store=store, queue_limits=QueueLimits(session_bytes=3_000)) as app:
        for receipt in receipts:
            result = await (await app.session(session.id)).result_of(receipt.delivery_id)
            assert (result.status, known(result.error).code) == ("refused", "SESSION_TOO_LARGE")
