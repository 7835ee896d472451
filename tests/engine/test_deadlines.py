import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from known import known
from scene import PATIENT, agent, at_standstill, results_of, running, the, until

from outlast import Approval, Context, OutlastError, tool
from outlast.core.instant import date_of
from outlast.errors import DeadlineExceeded
from outlast.log.explain import read_state
from outlast.log.verify import verify
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import call, calls, say
from outlast.testing.wrapped_store import WrappedStore

DAY = 86_400_000


@tool
async def ask(ctx: Context) -> str:
    return (await ctx.ask("Well?")).text


@tool
async def nap(ctx: Context) -> str:
    await ctx.sleep(timedelta(days=7))
    return "rested"


async def test_an_open_turn_fails_at_the_deadline_and_the_session_ends() -> None:
    async with at_standstill(agent([call("ask")], tools=[ask])) as (app, clock):
        session = await app.start("a", "go", deadline=timedelta(days=1))
        assert (await session.wait()).status == "waiting"
        clock.advance(DAY)

        async for _ in session.events():  # till nothing more happens
            pass
        assert (await session.info()).over == "ended"
        [failed] = await the(session, "turn.failed")
        assert failed.data["error"]["code"] == "DEADLINE_EXCEEDED"
        assert await session.requests() == ()


async def test_a_task_fails_at_its_deadline_whatever_it_waits_for() -> None:
    async with at_standstill(agent([call("nap")], tools=[nap])) as (app, clock):
        session = await app.start("a", "go", mode="task", deadline=timedelta(days=1))
        await until(session, "session.waiting")
        clock.advance(DAY)

        result = await session.wait()
        assert (result.status, known(result.error).code) == ("failed", "DEADLINE_EXCEEDED")
        with pytest.raises(DeadlineExceeded):
            result.unwrap()
        assert (await session.info()).over == "failed"


async def test_an_idle_conversation_ends_at_its_deadline() -> None:
    async with at_standstill(agent([say("hi"), say("never")])) as (app, clock):
        token = "desk"
        deadline = datetime.fromtimestamp((clock.now() + DAY) / 1000, UTC)
        session = await app.start("a", "go", deadline=deadline, continuation_token=token)
        assert (await session.wait()).output == "hi"
        clock.advance(DAY)
        async for _ in session.events():  # till nothing more happens
            pass

        [ended] = await the(session, "session.ended")
        assert ended.data["reason"] == "its deadline has passed"
        assert await app.store.listing.find_token("default", token) is None


async def test_what_is_done_in_time_is_done_as_without_a_deadline() -> None:
    async with at_standstill(agent([call("nap"), say("done")], tools=[nap])) as (app, clock):
        session = await app.start("a", "go", deadline=timedelta(days=8))
        await until(session, "session.waiting")
        clock.advance(7 * DAY)

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["rested"]


async def test_a_repeated_start_with_a_span_of_time_is_the_same_start() -> None:
    async with at_standstill(agent([say("hi")])) as (app, clock):
        first = await app.start("a", "go", dispatch_id="d", deadline=timedelta(days=1))
        clock.advance(1000)
        again = await app.start("a", "go", dispatch_id="d", deadline=timedelta(days=1))
        assert again.id == first.id


@pytest.mark.parametrize(
    "deadline", [timedelta(0), timedelta(days=-1), datetime(2020, 1, 1, tzinfo=UTC)]
)
async def test_a_deadline_that_has_passed_is_refused(deadline: datetime | timedelta) -> None:
    async with running(agent([])) as app:
        with pytest.raises(OutlastError) as refused:
            await app.start("a", "go", deadline=deadline)
        assert refused.value.code == "INVALID_INPUT"
        assert await app.sessions() == []


async def test_what_is_sent_again_after_its_deadline_is_no_mistake() -> None:
    async with at_standstill(agent([say("hi"), say("there")])) as (app, clock):
        principal = datetime.fromtimestamp(clock.now() / 1000 + 60, UTC)
        session = await app.start(
            "a", "go", dispatch_id="d", deadline=principal + timedelta(days=1)
        )
        await session.wait()
        sent = await session.send("more", dispatch_id="m", deadline=principal)
        await sent.result()
        clock.advance(2 * DAY)
        again = await session.send("more", dispatch_id="m", deadline=principal)
        assert (again.delivery_id, again.duplicate) == (sent.delivery_id, True)
        started = await app.start(
            "a", "go", dispatch_id="d", deadline=principal + timedelta(days=1)
        )
        assert started.id == session.id


async def test_what_is_new_after_its_deadline_fails_though_it_may_be_said_again() -> None:
    async with at_standstill(agent([say("hi")])) as (app, clock):
        session = await app.start("a", "go")
        await session.wait()
        late = datetime.fromtimestamp(clock.now() / 1000 - 60, UTC)
        sent = await session.send("more", dispatch_id="m", deadline=late)
        result = await sent.result()
        assert result.status == "failed"
        with pytest.raises(DeadlineExceeded):
            result.unwrap()


async def test_a_deadline_needs_a_time_zone() -> None:
    async with running(agent([])) as app:
        with pytest.raises(OutlastError, match="time zone"):
            await app.start("a", "go", deadline=datetime(2030, 1, 1))  # noqa: DTZ001
        assert await app.sessions() == []


async def test_all_turns_together_have_a_cost() -> None:
    async with running(agent([say("one"), say("two")])) as app:
        session = await app.start("a", "go")
        first = (await session.wait()).usage
        second = (await (await session.send("on")).result()).usage
        lane = await read_state(app.store, session.id, "main")
        assert lane.usage == first.own + second.own == (await session.usage()).own


# Turns


async def test_a_turn_fails_at_the_deadline_of_its_message_and_the_session_goes_on() -> None:
    script = [say("hi"), call("nap"), say("still here")]
    async with at_standstill(agent(script, tools=[nap])) as (app, clock):
        session = await app.start("a", "go")
        await session.wait()
        late = await session.send("be quick", deadline=timedelta(days=1))
        await until(session, "timer.set")
        clock.advance(DAY)

        result = await late.result()
        assert (result.status, known(result.error).code) == ("failed", "DEADLINE_EXCEEDED")
        assert (await (await session.send("well?")).result()).output == "still here"


async def test_a_message_whose_deadline_passes_in_the_queue_is_never_taken_up() -> None:
    async with at_standstill(agent([call("ask"), say("done")], tools=[ask])) as (app, clock):
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        late = await session.send("be quick", deadline=timedelta(days=1))
        clock.advance(DAY)
        await session.answer(request.request_id, text="well")

        assert (await late.result()).status == "failed"
        assert len(await the(session, "turn.started")) == 1


async def test_a_message_whose_deadline_has_passed_does_not_join_a_turn() -> None:
    script = [call("ask"), say("done")]
    async with at_standstill(agent(script, tools=[ask], on_busy="join")) as (app, clock):
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        late = await session.send("be quick", deadline=timedelta(days=1))
        in_time = await session.send("no hurry", deadline=timedelta(days=2))
        clock.advance(DAY)
        await session.answer(request.request_id, text="well")

        assert (await late.result()).status == "failed"
        assert (await in_time.result()).output == "done"
        [joined] = await the(session, "delivery.joined")
        assert joined.delivery_id == in_time.delivery_id


# Waiting for an instant


async def test_a_tool_waits_for_an_instant() -> None:
    instants: list[Any] = []

    @tool
    async def later(ctx: Context) -> str:
        await ctx.wait_until(instants[0])
        await ctx.wait_until(instants[0] - timedelta(days=9))
        return "it is time"

    async with at_standstill(agent([call("later"), say("done")], tools=[later])) as (app, clock):
        instants.append(datetime.fromtimestamp((clock.now() + DAY) / 1000, UTC))
        session = await app.start("a", "go")
        timer = await until(session, "timer.set")
        assert timer.data["due_at"] == date_of(clock.now() + DAY)
        clock.advance(DAY)

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["it is time"]


# Requests that expire


def strict(on_expiry: Literal["deny", "fail"]) -> Any:
    @tool(approval=Approval("always", timeout=3600.0, on_expiry=on_expiry))
    async def pay() -> str:
        return "paid"

    return pay


async def test_a_call_that_nobody_approves_in_time_is_denied() -> None:
    script = [call("pay"), say("sorry")]
    async with at_standstill(agent(script, tools=[strict("deny")])) as (app, clock):
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        assert request.expires_at == date_of(clock.now() + 3_600_000)
        clock.advance(3_600_000)

        assert (await session.wait()).output == "sorry"
        assert await results_of(session) == ["Not run: nobody answered in time."]
        with pytest.raises(OutlastError) as refused:
            await session.answer(request.request_id, "approve")
        assert refused.value.code == "REQUEST_CLOSED"


class JustInTime(WrappedStore):
    """A store in which a request is answered at the last moment, unseen by who lets it expire."""

    answer: Any = None

    async def commit(self, commits: Any) -> Any:
        closed = [closed.how for commit in commits for closed in commit.index.closed]
        if self.answer and "expired" in closed:
            answer, self.answer = self.answer, None
            await answer()
        return await super().commit(commits)


async def test_an_answer_just_in_time_counts_and_disturbs_no_other_call() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    clock = ManualClock()
    store = JustInTime(MemoryStore(clock))

    @tool(approval=Approval("always", timeout=60.0))
    async def pay() -> str:
        return "paid"

    @tool
    async def pack() -> str:
        begun.set()
        await go_on.wait()
        return "packed"

    both = calls(("pay", {}), ("pack", {}))
    worker = agent([both, say("done")], tools=[pay, pack])
    async with running(worker, settings=PATIENT, store=store, clock=clock) as app:
        session = await app.start("a", "go")
        await begun.wait()
        [request] = await session.requests()

        async def answer() -> None:
            clock.advance(-60_000)
            await session.answer(request.request_id, "approve")
            clock.advance(60_000)

        store.answer = answer
        clock.advance(60_000)
        await session.cancel(turn="t9")  # has the lane look at its clock
        await until(session, "tool.completed")
        go_on.set()

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["paid", "packed"]
        assert len(await the(session, "tool.started")) == 2
        assert not await verify(app.store, session.id)


async def test_a_call_that_was_cut_off_and_that_nobody_answers_for_is_of_unknown_outcome() -> None:
    @tool(on_interrupt="ask", approval=Approval("never", timeout=3600.0))
    async def pay() -> object:
        return object()  # which no log can keep

    script = [call("pay"), call("pay"), say("never")]
    async with at_standstill(agent(script, tools=[pay])) as (app, clock):
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        assert request.kind == "interrupted"
        clock.advance(3_600_000)

        [repeat] = (await session.wait()).requests
        assert "may have happened already" in repeat.prompt
        assert "outcome of this call is unknown" in (await results_of(session))[0]
        assert not await verify(app.store, session.id)


async def test_a_turn_can_fail_because_nobody_answered_in_time() -> None:
    async with at_standstill(agent([call("pay")], tools=[strict("fail")])) as (app, clock):
        session = await app.start("a", "go")
        await session.wait()
        clock.advance(3_600_000)

        result = await session.wait()
        assert (result.status, known(result.error).code) == ("failed", "REQUEST_EXPIRED")


async def test_a_question_of_a_tool_can_fail_the_turn_likewise() -> None:
    @tool
    async def inquire(ctx: Context) -> str:
        return (await ctx.ask("Well?", timeout=timedelta(hours=1), on_expiry="fail")).text

    async with at_standstill(agent([call("inquire")], tools=[inquire])) as (app, clock):
        session = await app.start("a", "go")
        await session.wait()
        clock.advance(3_600_000)

        result = await session.wait()
        assert (result.status, known(result.error).code) == ("failed", "REQUEST_EXPIRED")
        assert not await verify(app.store, session.id)
