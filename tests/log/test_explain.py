"""What is said of a session that does not go on: each situation, without processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from scene import DAY, FAST, agent, at_standstill, running, until

from outlast import Agent, Context, DedupeKey, Limit, Limits, ModelOptions, Outlast, tool
from outlast.agents.model.client import ModelPiece, ModelRequest
from outlast.core import record as r
from outlast.core.instant import date_of
from outlast.core.lane import Lane
from outlast.core.record import Entry
from outlast.errors import UnknownSession
from outlast.log.explain import Cause, ExplainEvidence, Explanation, explain, gather
from outlast.rules import TurnContext, completion
from outlast.store import LaneInfo, OutboxCursor, SessionInfo, WorkerInfo
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import START
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, say


def links(told: Explanation, kind: str, lane: str = "main") -> list[Cause]:
    [found] = [each for each in told.lanes if each.lane == lane]
    return [link for link in found.links if link.kind == kind]


def kinds(told: Explanation, lane: str = "main") -> list[str]:
    [found] = [each for each in told.lanes if each.lane == lane]
    return [link.kind for link in found.links]


@tool(approval="always")
async def refund(order: int) -> str:
    """Give the money back."""
    return f"gave back {order}"


class Gate:
    """A tool that does not return before it may."""

    def __init__(self, **manners: Any) -> None:
        self.is_entered, self.opens = asyncio.Event(), asyncio.Event()

        @tool(**manners)
        async def gate() -> str:
            self.is_entered.set()
            await self.opens.wait()
            return "through"

        self.tool = gate

    def agent(self, **options: Any) -> Agent[Any, Any]:
        return agent([call("gate"), say("done")], tools=[self.tool], **options)


class SlowModel(ScriptedModel):
    """A model that does not answer before it may."""

    def __init__(self) -> None:
        super().__init__([say("done")])
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        self.is_asked.set()
        await self.may_answer.wait()
        async for said in super().stream(request):
            yield said


# The situations


async def test_a_session_that_waits_for_approval_says_which_and_since_when() -> None:
    async with at_standstill(agent([call("refund", order=17)], tools=[refund])) as (app, clock):
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        clock.advance(5_000)

        told = await session.explain()

        [asked] = links(told, "request")
        assert told.status == "waiting"
        assert asked.text.startswith(f"it waits for the approval {request.request_id}: May ")
        assert asked.text.endswith(' run? refund({"order":17})')
        assert (asked.since, asked.until) == (date_of(START), None)
        assert (asked.request, asked.call, asked.turn, asked.step) == (
            request.request_id,
            "t1.s1.c1",
            "t1",
            1,
        )
        assert kinds(told) == ["turn", "usage", "request"]
        assert links(told, "turn")[0].since == date_of(START)


async def test_messages_behind_an_open_turn_are_named_with_how_many_are_before_them() -> None:
    async with at_standstill(agent([call("refund", order=17)], tools=[refund])) as (app, _):
        session = await app.start("a", "go")
        await session.wait()
        sent = [(await session.send(str(number))).delivery_id for number in range(7)]

        queued = links(await session.explain(), "queue")

        assert [link.delivery for link in queued[:-1]] == sent[:5]
        assert queued[0].text == f"the message {sent[0]} is queued behind 1"
        assert queued[3].text == f"the message {sent[3]} is queued behind 4"
        assert queued[-1].text == "2 more are queued behind it"


async def test_a_tool_that_runs_is_told_with_its_owner_fence_and_lease() -> None:
    gate = Gate()
    async with running(gate.agent(), settings=replace(FAST, name="w1")) as app:
        session = await app.start("a", "go")
        await gate.is_entered.wait()

        told = await session.explain()

        [owner], [runs] = links(told, "owner"), links(told, "tool")
        [info] = await app.workers.list()
        assert owner.text.startswith("worker w1 on ")
        assert (owner.worker, owner.fence, owner.until) == ("w1", 1, info.lease_until)
        assert runs.text == "the tool gate runs in attempt 1"
        assert (runs.call, runs.attempt) == ("t1.s1.c1", 1)
        began = links(told, "turn")[0].since
        assert began
        assert runs.since
        assert runs.since >= began
        gate.opens.set()
        await session.wait()


async def test_a_model_call_under_way_is_told() -> None:
    async with running(agent([ScriptedReply(text="abcdef", chunks=3, pace=0.05)])) as app:
        session = await app.start("a", "go")
        await until(session, "message.delta")

        [model] = links(await session.explain(), "model")

        assert model.text == "the model call t1.s1 to scripted is under way in attempt 1"
        assert model.since
        await session.wait()


async def test_a_tool_that_sleeps_says_until_when() -> None:
    @tool
    async def nap(ctx: Context) -> str:
        await ctx.sleep(timedelta(hours=1))
        return "rested"

    async with at_standstill(agent([call("nap"), say("done")], tools=[nap])) as (app, clock):
        session = await app.start("a", "go")
        await until(session, "session.waiting")

        [timer] = links(await session.explain(), "timer")

        assert timer.text == "the tool nap sleeps"
        assert (timer.since, timer.until) == (date_of(START), date_of(START + 3_600_000))
        clock.advance(DAY)


async def test_a_model_call_without_a_place_says_under_which_limit_and_who_has_it() -> None:
    model = SlowModel()
    async with running(
        Agent("a", model, model_options=ModelOptions(limit=Limit(concurrency=1)))
    ) as app:
        first = await app.start("a", "go")
        await model.is_asked.wait()
        others = [await app.start("a", "go") for _ in range(2)]
        for each in others:
            await until(each, "session.waiting")

        told = [await each.explain() for each in others]

        [[next_one], [last]] = [links(each, "permit") for each in told]
        held = f"held by {first.id} t1.s1"
        waits = "the model call t1.s1 waits for a place under the limit model:scripted"
        assert {next_one.text, last.text} == {f"{waits}, {held}", f"{waits}, behind 1, {held}"}
        assert (next_one.call, next_one.turn, next_one.step) == ("t1.s1", "t1", 1)
        assert kinds(told[0]) == ["permit", "queue"]
        model.may_answer.set()
        for session in (first, *others):
            await session.wait()


async def test_a_model_call_within_a_turn_says_what_it_waits_for_and_since_when() -> None:
    model, gate, limit = SlowModel(), Gate(), Limit(concurrency=1)
    slow = Agent("slow", model, model_options=ModelOptions(limit=limit))
    async with running(gate.agent(model_options=ModelOptions(limit=limit)), slow) as app:
        session = await app.start("a", "go")
        await gate.is_entered.wait()
        await app.start("slow", "go")
        await model.is_asked.wait()
        gate.opens.set()
        await until(session, "session.waiting")

        [permit] = links(await session.explain(), "permit")

        assert permit.text.startswith("the model call t1.s2 waits for a place under the limit ")
        assert permit.since
        model.may_answer.set()
        await session.wait()


async def test_a_turn_that_an_agents_rate_holds_back_says_until_when() -> None:
    limited = agent([say("hi")], limits=Limits(turns=Limit(rate=1, per=60)))
    async with at_standstill(limited) as (app, clock):
        await (await app.start("a", "go")).wait()
        session = await app.start("a", "go")
        await until(session, "session.waiting")

        told = await session.explain()

        [permit] = links(told, "permit")
        assert permit.text == (
            "the model call t1.s1 waits for its next start under the rate agent:a:rate"
        )
        assert permit.until == date_of(START + 60_000)
        assert kinds(told) == ["permit", "queue"]
        clock.advance(DAY)
        await session.wait()


async def test_a_tool_without_a_place_says_under_which_limit_and_who_has_it() -> None:
    gate = Gate(limit=Limit(concurrency=1))
    async with running(gate.agent()) as app:
        first = await app.start("a", "go")
        await gate.is_entered.wait()
        second = await app.start("a", "go")
        await until(second, "session.waiting")

        [permit] = links(await second.explain(), "permit")

        assert permit.text == (
            "the tool gate waits for a place under the limit tool:gate,"
            f" held by {first.id} t1.s1.c1"
        )
        assert permit.since
        gate.opens.set()
        await second.wait()


async def test_a_lane_of_an_agent_at_its_limit_says_which_others_are_at_work() -> None:
    gate = Gate()
    async with running(gate.agent(limits=Limits(turns=Limit(concurrency=1)))) as app:
        first = await app.start("a", "go")
        await gate.is_entered.wait()
        second = await app.start("a", "go")

        [waits] = links(await second.explain(), "worker")

        assert waits.text == (
            "it waits for a worker: the agent a has as many lanes at work as its limit allows,"
            f" {first.id} main"
        )
        gate.opens.set()
        await second.wait()


async def test_a_call_whose_key_another_has_says_which() -> None:
    gate = Gate(idempotency_key=DedupeKey(lambda args: "one", "tenant"))
    async with running(gate.agent()) as app:
        first = await app.start("a", "go")
        await gate.is_entered.wait()
        assert "key" not in kinds(await first.explain())
        second = await app.start("a", "go")
        await until(second, "session.waiting")

        [key] = links(await second.explain(), "key")

        assert key.text == (
            f"the tool gate waits for the call t1.s1.c1 of {first.id}, which has its key gate:one"
        )
        assert key.since
        gate.opens.set()
        await second.wait()


async def test_a_provider_that_wants_to_be_asked_later_says_why_and_until_when() -> None:
    busy = ScriptedError("transient", "too many requests", retry_after=60_000)
    async with at_standstill(agent([ScriptedReply(text="hi", fails=(busy,))])) as (app, clock):
        session = await app.start("a", "go")
        await until(session, "session.waiting")

        [provider] = links(await session.explain(), "provider")

        assert provider.text == (
            "the model scripted cannot be had, and this session is the next to ask it:"
            " SCRIPTED: too many requests"
        )
        assert (provider.since, provider.until) == (date_of(START), date_of(START + 60_000))
        assert (provider.call, provider.attempt) == ("t1.s1", 1)
        clock.advance(DAY)
        await session.wait()


async def test_a_tool_that_is_tried_again_says_why_and_when() -> None:
    @tool(readonly=True, max_attempts=2)
    async def look() -> str:
        raise RuntimeError("no light")

    async with at_standstill(agent([call("look"), say("done")], tools=[look])) as (app, clock):
        session = await app.start("a", "go")
        await until(session, "tool.failed")

        [again] = links(await session.explain(), "retry")

        assert again.text.startswith("the tool look failed in attempt 1, and is tried again: ")
        assert "no light" in again.text
        assert again.until
        assert again.until > date_of(START)
        clock.advance(DAY)
        await session.wait()


async def test_an_idle_session_waits_for_a_message() -> None:
    async with running(agent([say("hi")])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert kinds(await session.explain()) == ["message"]


async def test_a_failed_turn_is_told_with_why() -> None:
    failing = ScriptedReply(fails=(ScriptedError("recoverable", "closed today"),))
    async with running(agent([failing])) as app:
        session = await app.start("a", "go")
        await session.wait()

        told = await session.explain()

        [failure] = links(told, "failure")
        assert failure.text == "turn t1 failed: SCRIPTED: closed today"
        assert kinds(told) == ["failure", "message"]


async def test_a_session_that_is_over_says_how_and_why() -> None:
    broken = ScriptedReply(fails=(ScriptedError("structural", "no such model"),))
    async with running(agent([broken]), Agent("b", agent([say("hi")]).model)) as app:
        failed = await app.start("a", "go")
        done = await app.start("b", "go", mode="task")
        ended = await app.start("b", "go")
        for session in (failed, done, ended):
            await session.wait()
        await ended.end("enough")
        await ended.wait()

        over = [links(await each.explain(), "over") for each in (failed, done, ended)]

        assert [[link.text for link in each] for each in over] == [
            ["the session has failed: SCRIPTED: no such model"],
            ["the session is completed"],
            ["the session was ended: enough"],
        ]
        assert all(link.since for [link] in over)


async def test_each_lane_is_explained_by_itself() -> None:
    gate = Gate()
    async with running(gate.agent()) as app:
        session = await app.start("a", "go")
        await gate.is_entered.wait()
        gate.is_entered.clear()
        await session.send("and this", lane="notes")
        await gate.is_entered.wait()

        told = await session.explain()

        assert [lane.lane for lane in told.lanes] == ["main", "notes"]
        for lane, call_id in (("main", "t1.s1.c1"), ("notes", "notes/t1.s1.c1")):
            assert [link.call for link in links(told, "tool", lane)] == [call_id]
        gate.opens.set()
        await session.wait()


async def test_an_answer_that_nobody_has_taken_yet_is_told() -> None:
    store = MemoryStore()
    script = [call("refund", order=17), say("done")]
    async with running(agent(script, tools=[refund]), store=store) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
    await session.answer(request.request_id, "approve")

    told = await session.explain()

    assert kinds(told) == ["turn", "usage", "worker", "answer"]
    [waits] = links(told, "worker")
    assert waits.text == "it waits for a worker: none is running on this store"
    assert waits.since


async def test_a_cancel_that_nobody_has_taken_yet_is_told() -> None:
    async with Outlast([agent([say("hi")])], store="memory://", worker=None) as app:
        session = await app.start("a", "go")
        await session.cancel("wrong customer")

        [cancel] = links(await session.explain(), "cancel")

    assert cancel.text == "a cancel was asked for and is not taken yet: wrong customer"


async def test_what_does_not_exist_cannot_be_explained() -> None:
    with pytest.raises(UnknownSession):
        await gather(MemoryStore(), "ses_nobody", date_of(0))


# Who could take up a lane that is ready

WORKER = WorkerInfo(
    worker="w1", host="h", pid=1, started_at=date_of(0), agents=("a",), concurrency=2
)


@pytest.mark.parametrize(
    ("workers", "why"),
    [
        ((), "none is running on this store"),
        ((replace(WORKER, agents=("b",)),), "none of the 1 there are serves it"),
        ((replace(WORKER, lanes=("bulk-*",)),), "none of the 1 there are serves it"),
        ((replace(WORKER, draining=True),), "all that serve it are draining"),
        ((replace(WORKER, silent=True),), "the database hears of none that serves it"),
        ((replace(WORKER, held=2),), "all 1 that serve it are full"),
        ((replace(WORKER, lanes=("ma*",)),), "w1 or another will take it up at once"),
    ],
)
def test_a_lane_that_is_ready_says_why_nobody_has_it(
    workers: tuple[WorkerInfo, ...], why: str
) -> None:
    [link] = links(explain(ready_lane(workers)), "worker")
    assert link.text == f"it waits for a worker: {why}"
    assert link.since == date_of(90)


NOW = 200_000
BOARD = OutboxCursor(
    session_id="s", tenant="t", agent="a", name="channel:board", url="", events=("turn.completed",)
)


@pytest.mark.parametrize(
    ("cursor", "why"),
    [
        (BOARD, None),
        (replace(BOARD, due_at=NOW - 10_000), None),
        (
            replace(BOARD, due_at=NOW - 90_000),
            "in the channel board: no process that could has looked at it",
        ),
        (
            replace(BOARD, due_at=NOW - 90_000, error="it is away"),
            "in the channel board: it is away",
        ),
        (replace(BOARD, name="webhook", due_at=NOW + 90_000, error="410"), "to webhook: 410"),
    ],
)
def test_a_session_says_where_nothing_is_told_of_it(cursor: OutboxCursor, why: str | None) -> None:
    evidence = replace(ready_lane(()), cursors=(cursor,), now=date_of(NOW))
    told = links(explain(evidence), "outbox")
    assert [link.text for link in told] == ([f"what happened is not told {why}"] if why else [])


def test_a_lane_whose_owner_is_gone_says_so() -> None:
    evidence = ready_lane((WORKER,), owner="w0", fence=12)
    told = explain(evidence)
    [owner] = links(told, "owner")
    assert owner.text == "its owner w0 is gone; another worker will take it over"
    assert (owner.worker, owner.fence) == ("w0", 12)
    assert links(told, "worker")


def test_a_lane_whose_owner_was_the_last_worker_waits_for_one_to_start() -> None:
    told = explain(ready_lane((), owner="w0", fence=12))
    [owner], [worker] = links(told, "owner"), links(told, "worker")
    assert owner.text == "its owner w0 is gone; the next worker that starts will take it over"
    assert worker.text == "it waits for a worker: none is running on this store"


def test_a_lane_is_carried_by_a_worker_that_drains() -> None:
    evidence = ready_lane(
        (replace(WORKER, draining=True, lease_until=date_of(150)),), owner="w1", fence=3
    )
    [owner] = links(explain(evidence), "owner")
    assert owner.text == "worker w1 on h (pid 1) carries it, and drains"
    assert (owner.until, owner.fence) == (date_of(150), 3)


def test_a_lane_whose_owner_cannot_be_reached_is_left_to_the_lease() -> None:
    silent = replace(WORKER, silent=True, lease_until=date_of(150))
    evidence = ready_lane((silent,), owner="w1", fence=3)
    [owner] = links(explain(evidence), "owner")
    assert owner.text.endswith(
        "carries it; the database does not hear of it, and its lease decides"
    )
    assert owner.until == date_of(150)


def test_a_lane_that_was_taken_over_says_on_which_evidence() -> None:
    taken = r.LaneTakenOver(worker="w1", fence=3, since=80, evidence="lock_file")
    before = ready_lane((WORKER,), owner="w1", fence=3)
    entries = (Entry(offset=2, at=80, lane="main", record=taken),)
    [link] = links(explain(replace(before, entries=entries)), "takeover")
    assert link.text == (
        "it took the lane over from another worker: the lock file of its process was free"
    )
    assert (link.since, link.worker, link.fence) == (date_of(80), "w1", 3)


def ready_lane(workers: tuple[WorkerInfo, ...], owner: str = "", fence: int = 0) -> ExplainEvidence:
    lane = LaneInfo(
        session_id="s",
        agent="a",
        lane="main",
        status="queued",
        turn="",
        worker=owner,
        fence=fence,
        ready_at=date_of(90),
        queued=1,
    )
    session = SessionInfo(
        session_id="s",
        tenant="t",
        agent="a",
        mode="conversation",
        status="queued",
        created_at=date_of(0),
        updated_at=date_of(0),
        end=2,
        lanes=(lane,),
    )
    return ExplainEvidence(
        session=session,
        states={"main": Lane(session="s")},
        entries=(),
        workers=workers,
        now=date_of(100),
    )


# Rules


async def test_a_turn_whose_answers_are_refused_says_why() -> None:
    is_checking, may_end = asyncio.Event(), asyncio.Event()

    @completion
    async def tests_pass(turn: TurnContext) -> str | None:
        if turn.refusals == 0:
            return "2 tests fail"
        is_checking.set()
        await may_end.wait()
        return None

    async with running(agent([say("done"), say("done now")], rules=[tests_pass])) as app:
        session = await app.start("a", "go")
        await is_checking.wait()

        refused, checked = links(await session.explain(), "completion")
        assert refused.text == (
            "1 answers in this turn were refused, the last for tests_pass: 2 tests fail"
        )
        assert (refused.turn, refused.step) == ("t1", 1)
        assert checked.text.startswith("the model has answered: rules look at that")
        may_end.set()
        await session.wait()
