"""Queues: turns that wait for a place by settings in the store, which change while all runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from scene import FAST, agent, at_standstill, running, seen, the, types_of, until

from outlast import (
    Agent,
    Context,
    Limits,
    Outlast,
    QueueEntry,
    Session,
    Token,
    WorkflowContext,
    workflow,
)
from outlast import tool as tool_of
from outlast.agents.model.client import ModelRequest
from outlast.core.instant import date_of
from outlast.engine import queue_gate
from outlast.errors import InvalidInput, InvalidName, UnknownQueue
from outlast.log.verify import verify
from outlast.testing import ScriptedModel, calls, say
from outlast.testing.scripted import ScriptedError, ScriptedReply


class Turns:
    """An agent whose turns run until they are let go, by what they were asked."""

    def __init__(self, name: str = "a", **options: Any) -> None:
        self.now: list[str] = []
        self.began: list[str] = []
        self.most = 0
        self.gates: dict[str, asyncio.Event] = {}

        @tool_of(name="hold")
        async def hold(path: str) -> str:
            """Hold."""
            self.now.append(path)
            self.began.append(path)
            self.most = max(self.most, len(self.now))
            try:
                await self.gate(path).wait()
            finally:
                self.now.remove(path)
            return "held"

        def script(request: Any) -> Any:
            said = [m.content[0].text for m in request.view.messages if hasattr(m, "content")]
            path = said[-1]
            is_over = not hasattr(request.view.messages[-1], "content")
            return say("Done.") if is_over else calls(("hold", {"path": path}))

        self.agent = Agent(name, ScriptedModel(script), tools=[hold], **options)

    def gate(self, path: str) -> asyncio.Event:
        return self.gates.setdefault(path, asyncio.Event())

    def let_go(self, *paths: str) -> None:
        for path in paths:
            self.gate(path).set()

    async def have_begun(self, *paths: str) -> None:
        async with asyncio.timeout(30):
            while {*paths} - {*self.began}:  # noqa: ASYNC110 - no event tells of the last
                await asyncio.sleep(0.005)


@asynccontextmanager
async def queued(turns: Turns, **settings: Any) -> AsyncIterator[Outlast]:
    async with running(turns.agent) as app:
        await app.queues.set("reports", **settings)
        yield app


async def at_rest(session: Session[Any], times: int = 1) -> None:
    """Wait until a session rests in its queue."""
    for event in await seen(session, "session.waiting", times):
        assert event.data["wait"] == ("queue",)


async def why(session: Session[Any], kind: str = "permit") -> str:
    """What a session says it waits for in its queue."""
    [lane] = (await session.explain()).lanes
    return next(cause.text for cause in lane.links if cause.kind == kind)


async def test_no_more_turns_of_a_queue_run_at_once_than_it_lets(tmp_path: Path) -> None:
    turns = Turns()
    store = f"sqlite:///{tmp_path / 'queues.db'}"
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(running(turns.agent, store=store))
        await stack.enter_async_context(running(turns.agent, store=store))
        await app.queues.set("reports", concurrency=2)
        sessions = [await app.start(turns.agent, path, queue="reports") for path in "abcdef"]
        beside = await app.start(turns.agent, "beside")
        await turns.have_begun("beside")
        turns.let_go(*"abcdef", "beside")
        for session in (*sessions, beside):
            assert (await session.wait()).status == "completed"
            assert not await verify(app.store, session.id)
        assert turns.most <= 3  # with the one in no queue
        assert await app.store.limit.permits() == []


async def test_a_turn_without_a_place_holds_nothing_and_says_which_place_it_has() -> None:
    turns = Turns()
    async with queued(turns, concurrency=1) as app:
        first = await app.start(turns.agent, "a", queue="reports")
        await turns.have_begun("a")
        waiting = [await app.start(turns.agent, path, queue="reports") for path in "bc"]
        for session in waiting:
            await at_rest(session)
        info = await app.store.listing.session(waiting[1].id)
        assert info is not None
        assert (info.lanes[0].worker, info.lanes[0].status) == ("", "queued")
        assert "turn.started" not in await types_of(waiting[1])
        cause = await why(waiting[1])
        assert cause == f"turn t1 waits for the queue reports, place 2, held by {first.id} t1"
        wait = (await waiting[1].wait(timeout=0.05)).waiting_for
        assert wait is not None
        assert wait.kind == "queue"
        [line] = await app.queues.list()
        assert (line.name, line.running, line.waiting) == ("reports", 1, 2)
        assert line.oldest_at is not None
        assert not await verify(app.store, waiting[1].id)
        turns.let_go(*"abc")
        assert [(await each.wait()).status for each in (first, *waiting)] == ["completed"] * 3
        assert turns.began == ["a", "b", "c"]


async def test_a_turn_that_waits_for_a_human_keeps_nobody_out_and_goes_on_before_later_ones() -> (
    None
):
    turns = Turns()

    @tool_of
    async def decide(ctx: Context) -> str:
        """Decide."""
        return (await ctx.ask("Go on?", options=["yes"])).option or ""

    asks = Agent(
        "asks",
        ScriptedModel([calls(("decide", {})), calls(("hold", {"path": "asked"})), say("Done.")]),
        tools=[decide, turns.agent.tools["hold"]],
    )
    async with running(turns.agent, asks) as app:
        await app.queues.set("reports", concurrency=1)
        parked = await app.start(asks, "Go", queue="reports")
        [request] = (await parked.wait()).requests
        second = await app.start(turns.agent, "b", queue="reports")
        await turns.have_begun("b")
        third = await app.start(turns.agent, "c", queue="reports")
        await at_rest(third)
        await parked.answer(request.request_id, "yes")
        async with asyncio.timeout(30):
            while (await app.queues.get("reports")).waiting < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        turns.let_go("b", "asked", "c")
        for session in (parked, second, third):
            assert (await session.wait()).status == "completed"
        assert turns.began == ["b", "asked", "c"]
        assert turns.most == 1


async def test_more_turns_begin_as_soon_as_the_queue_is_widened_and_fewer_when_it_is_narrowed() -> (
    None
):
    turns = Turns()
    async with queued(turns, concurrency=1) as app:
        sessions = [await app.start(turns.agent, path, queue="reports") for path in "abcd"]
        await turns.have_begun("a")
        for session in sessions[1:]:
            await at_rest(session)
        info = await app.queues.set("reports", concurrency=3)
        assert (info.settings.concurrency, info.settings.rate) == (3, 0)
        await turns.have_begun(*"abc")
        await app.queues.set("reports", concurrency=1)
        turns.let_go("a", "b")
        for session in sessions[:2]:
            await session.wait()
        assert turns.began == ["a", "b", "c"]  # one runs, and no more may
        await app.queues.remove("reports")
        await turns.have_begun("d")
        turns.let_go("c", "d")
        assert [(await each.wait()).status for each in sessions] == ["completed"] * 4


async def test_turns_with_one_key_wait_for_each_other_and_for_no_others() -> None:
    turns = Turns()
    async with queued(turns, concurrency=2, per_key=1) as app:
        for path in "ab":
            await app.start(turns.agent, path, queue=QueueEntry("reports", key="one"))
        other = await app.start(turns.agent, "c", queue=QueueEntry("reports", key="two"))
        await turns.have_begun("a", "c")
        assert turns.now == ["a", "c"]
        turns.let_go("c")
        await other.wait()
        assert "b" not in turns.began
        alien = QueueEntry("reports", key="one")
        await app.start(turns.agent, "d", queue=alien, tenant="another")
        await turns.have_begun("d")
        turns.let_go("a", "d")
        await turns.have_begun("b")
        turns.let_go("b")


async def test_a_turn_with_priority_begins_before_those_that_came_a_little_earlier() -> None:
    turns = Turns()
    async with queued(turns, concurrency=1) as app:
        first = await app.start(turns.agent, "a", queue="reports")
        await turns.have_begun("a")
        behind = await app.start(turns.agent, "b", queue=QueueEntry("reports", priority=-5))
        usual = await app.start(turns.agent, "c", queue="reports")
        ahead = await app.start(turns.agent, "d", queue=QueueEntry("reports", priority=5))
        for session in (behind, usual, ahead):
            await at_rest(session)
        turns.let_go(*"abcd")
        for session in (first, behind, usual, ahead):
            await session.wait()
        assert turns.began == ["a", "d", "c", "b"]


async def test_a_rate_lets_so_many_turns_begin_and_another_rate_holds_at_once() -> None:
    quick = agent([say("Done.")] * 9)
    async with at_standstill(quick) as (app, clock):
        await app.queues.set("reports", rate=2, per=60)
        sessions = [await app.start(quick, "Go", queue="reports") for _ in range(4)]
        for session in sessions[2:]:
            await at_rest(session)
        assert [await types_of(each) for each in sessions[2:]].count(["turn.started"]) == 0
        clock.advance(30_000)
        assert (await sessions[2].wait()).status == "completed"
        assert not await the(sessions[3], "turn.started")
        await app.queues.set("reports", rate=1000)
        assert (await sessions[3].wait()).status == "completed"


async def test_a_turn_begins_after_its_delay_and_can_be_cancelled_before() -> None:
    quick = agent([say("Done.")] * 9)
    async with at_standstill(quick) as (app, clock):
        await app.queues.set("reports", delay=timedelta(minutes=1))
        late = await app.start(quick, "Go", queue="reports")
        sooner = await app.start(quick, "Go", queue=QueueEntry("reports", delay=10))
        never = await app.start(quick, "Go", queue="reports")
        for session in (late, sooner, never):
            await seen(session, "session.waiting")
        assert await why(late, "timer") == "its first turn begins after its delay"
        wait = (await late.wait(timeout=0.01)).waiting_for
        assert wait is not None
        assert (wait.kind, wait.next_try_at) == ("timer", date_of(clock.now() + 60_000))
        await never.cancel()
        clock.advance(10_000)
        assert (await sooner.wait()).status == "completed"
        assert not await the(late, "turn.started")
        clock.advance(50_000)
        assert (await late.wait()).status == "completed"
        assert "turn.started" not in await types_of(never)
        assert "delivery.settled" in await types_of(never)


async def test_in_a_singleton_a_start_finds_the_living_session_of_its_key() -> None:
    turns = Turns()
    async with queued(turns, singleton=True) as app:
        first = await app.start(turns.agent, "a", mode="task", queue="reports")
        again = await app.start(turns.agent, "b", mode="task", queue="reports")
        assert again.id == first.id
        assert again.receipt is not None
        assert again.receipt.duplicate
        entry = QueueEntry("reports", key="other")
        other = await app.start(turns.agent, "c", mode="task", queue=entry)
        assert other.id != first.id
        turns.let_go(*"abc")
        assert (await first.wait()).status == "completed"
        anew = await app.start(turns.agent, "a", mode="task", queue="reports")
        assert anew.id != first.id
        assert (await anew.wait()).status == "completed"
        assert "b" not in turns.began
        with pytest.raises(InvalidInput, match="token of their own"):
            await app.start(turns.agent, "a", queue="reports", continuation_token="mine")
        with pytest.raises(InvalidName, match="a queue's own"):
            await app.send(Token("queue:reports:", turns.agent), "a")


async def test_a_worker_takes_no_more_turns_of_a_queue_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_gate, "WORKER_POLL", 20)
    here, there = Turns(), Turns()
    store = f"sqlite:///{tmp_path / 'queues.db'}"
    async with running(here.agent, store=store) as app:
        await app.queues.set("reports", per_worker=1)
        first = await app.start(here.agent, "a", queue="reports")
        await here.have_begun("a")
        second = await app.start(here.agent, "b", queue="reports")
        await at_rest(second)
        async with running(there.agent, store=store):
            await there.have_begun("b")
            here.let_go("a")
            there.let_go("b")
            assert (await first.wait()).status == "completed"
            assert (await second.wait()).status == "completed"
        assert (here.most, there.most) == (1, 1)


async def test_the_sessions_of_an_agent_stand_in_its_queue_and_so_do_those_that_others_start() -> (
    None
):
    turns = Turns(limits=Limits(queue="reports"))
    asks = Agent(
        "asks",
        ScriptedModel([calls(("a", {"message": "child"})), say("Done.")]),
        subagents=[turns.agent],
        limits=Limits(queue="reports"),
    )
    async with running(asks, turns.agent) as app:
        await app.queues.set("reports", concurrency=1)
        parent = await app.start(asks, "Go")
        await turns.have_begun("child")  # the parent waits, and holds no place
        other = await app.start(turns.agent, "later")
        await at_rest(other)
        turns.let_go("child", "later")
        assert (await parent.wait()).status == "completed"
        assert (await other.wait()).status == "completed"


async def test_runs_of_workflows_wait_in_a_queue_too() -> None:
    order: list[str] = []
    go_on = asyncio.Event()

    @workflow
    async def report(ctx: WorkflowContext, name: str) -> str:
        order.append(name)
        await go_on.wait()
        return name

    async with Outlast([report], store="memory://", worker=FAST) as app:
        await app.queues.set("reports", concurrency=1)
        runs = [await app.run(report, name, queue="reports") for name in "ab"]
        async with asyncio.timeout(30):
            while (await app.queues.get("reports")).waiting != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert order == ["a"]
        go_on.set()
        assert [(await run.wait()).output for run in runs] == ["a", "b"]


async def test_runs_stand_in_the_queue_of_their_workflow_whoever_starts_them() -> None:
    now: list[str] = []
    most = 0

    async def count(name: str) -> str:
        nonlocal most
        now.append(name)
        most = max(most, len(now))
        await asyncio.sleep(0.005)
        now.remove(name)
        return name

    @workflow(queue="reports")
    async def report(ctx: WorkflowContext, name: str) -> str:
        return await ctx.step(count, name, readonly=True)

    @workflow
    async def year(ctx: WorkflowContext) -> list[str]:
        return list(await ctx.gather(*(ctx.run(report, name) for name in "abc")))

    async with Outlast([report, year], store="memory://", worker=FAST) as app:
        await app.queues.set("reports", concurrency=1)
        own = [await app.run(report, name) for name in "de"]
        elsewhere = await app.run(report, "f", queue=QueueEntry("reports", key="mine"))
        parent = await app.run(year)
        assert (await parent.wait()).output == ["a", "b", "c"]
        assert [(await run.wait()).output for run in (*own, elsewhere)] == ["d", "e", "f"]
        assert most == 1


def test_a_queue_that_cannot_be_is_refused_where_the_workflow_is_made() -> None:
    with pytest.raises(InvalidName):

        @workflow(queue="a b")
        async def report(ctx: WorkflowContext) -> None: ...


async def test_a_message_to_a_session_in_a_queue_waits_there_again() -> None:
    turns = Turns()
    async with queued(turns, concurrency=1) as app:
        first = await app.start(turns.agent, "a", queue="reports")
        await turns.have_begun("a")
        second = await app.start(turns.agent, "b", queue="reports")
        await first.send("again")
        await at_rest(second)
        turns.let_go("a", "b", "again")
        await second.wait()
        await first.wait()
        assert turns.began == ["a", "b", "again"]


async def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    turns = Turns()
    async with queued(turns, concurrency=1) as app:
        with pytest.raises(UnknownQueue, match="there is no queue reprots: make it with"):
            await app.start(turns.agent, "a", queue="reprots")
        for entry in (
            QueueEntry("no name"),
            QueueEntry("reports", priority=601),
            QueueEntry("reports", delay=float("nan")),
            17,
        ):
            with pytest.raises(InvalidInput):
                await app.start(turns.agent, "a", queue=entry)  # type: ignore[arg-type]
        for wrong in ({"concurrency": -1}, {"per": 0}, {"priority": 601}, {"singleton": 1}):
            with pytest.raises(InvalidInput):
                await app.queues.set("reports", **wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidName, match="name of a queue"):
            await app.queues.set("of:reports", concurrency=1)
        for act in (app.queues.get, app.queues.remove):
            with pytest.raises(UnknownQueue):
                await act("mail")
        assert not await app.sessions()
        [only] = await app.queues.list()
        assert (only.name, only.settings.concurrency) == ("reports", 1)


async def test_of_changes_at_once_none_is_lost() -> None:
    async with running(Turns().agent, settings=FAST) as app:
        await asyncio.gather(
            app.queues.set("reports", concurrency=3),
            app.queues.set("reports", rate=5),
            app.queues.set("reports", priority=7),
        )
        settings = (await app.queues.get("reports")).settings
        assert (settings.concurrency, settings.rate, settings.priority) == (3, 5, 7)


async def test_while_its_provider_is_away_a_turn_keeps_nobody_out_of_its_queue() -> None:
    is_away = True

    def script(request: Any) -> Any:
        if is_away:
            raise ScriptedError("blocked", "the key is rejected")
        return say("Done.")

    turns = Turns()
    cut_off = Agent("cut", ScriptedModel(script))
    async with running(turns.agent, cut_off) as app:
        await app.queues.set("reports", concurrency=1)
        waits = await app.start(cut_off, "Go", queue="reports")
        await until(waits, "session.waiting")
        other = await app.start(turns.agent, "a", queue="reports")
        await turns.have_begun("a")
        is_away = False
        turns.let_go("a")
        assert (await other.wait()).status == "completed"
        await app.providers.try_now()
        assert (await waits.wait()).status == "completed"


async def test_the_failed_turns_of_a_queue_are_found_with_their_reason_and_retried(
    path: Path,
) -> None:
    is_mended = False

    def reply(request: ModelRequest) -> ScriptedReply:
        if not is_mended:
            raise ScriptedError("recoverable", "the printer is out of paper")
        return say("printed")

    store = f"sqlite:///{path}"
    async with running(agent(reply), store=store) as app:
        await app.queues.set("reports", concurrency=2)
        failed = [await app.start("a", "print", queue="reports") for _ in range(3)]
        other = await app.start("a", "print")
        for session in (*failed, other):
            assert (await session.wait()).status == "failed"

        found = await app.sessions(queue="reports")
        assert {info.session_id for info in found} == {session.id for session in failed}
        assert all("out of paper" in info.failure.message for info in found if info.failure)
        [first] = await app.sessions(queue="reports", limit=1)
        rest = await app.sessions(queue="reports", before=first.session_id)
        assert len(rest) == 2
        assert await app.sessions(queue="reports", code="OTHER") == []
        assert (await app.bulk.retry(queue="reports", dry_run=True)).retried == 3

        is_mended = True
        await (await app.session(first.session_id)).retry()
        result = await app.bulk.retry(queue="reports")
        assert result.retried + result.left >= 2
        for session in failed:
            await until(session, "turn.completed")
        assert await app.sessions(queue="reports") == []
        assert [info.session_id for info in await app.sessions(failed=True)] == [other.id]
