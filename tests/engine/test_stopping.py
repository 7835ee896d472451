import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from known import known, known_as
from scene import Watched, agent, results_of, running, the, types_of, until

from outlast import (
    Agent,
    Context,
    DedupeKey,
    Outlast,
    OutlastError,
    Session,
    Token,
    ToolError,
    ask_question,
    tool,
)
from outlast.core.message import ModelAnswer
from outlast.core.record import StateChanged
from outlast.log.reader import Wakeups
from outlast.log.verify import verify
from outlast.store import DeliveryInfo
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, calls, say


@tool
async def hang() -> None:
    await asyncio.Event().wait()


@tool(approval="always")
async def pay() -> str:
    return "paid"


# Cancelling


async def test_a_message_cancelled_before_its_turn_is_never_taken_up() -> None:
    async with running(agent([call("hang"), say("bye")], tools=[hang])) as app:
        session = await app.start("a", "first")
        await until(session, "tool.started")
        await session.cancel("no more")
        await session.wait()

        assert await the(session, "turn.completed") == []
        [settled] = [e for e in await the(session, "delivery.settled") if e.turn]
        assert settled.data["outcome"] == "cancelled"


async def test_a_cancel_straight_after_the_start_stops_the_turn() -> None:
    answering = ScriptedReply(text="a long story", chunks=6, pace=0.05)
    async with running(agent([answering])) as app:
        session = await app.start("a", "tell me")
        await session.cancel("changed my mind")
        result = await session.wait()

        assert result.status in ("cancelled", "idle")
        assert await the(session, "turn.completed") == []


async def test_a_cancel_of_a_queued_message_leaves_the_rest_of_the_queue() -> None:
    async with running(agent([say("two")]), settings=None) as offline:
        session = await offline.start("a", "one")
        await session.cancel("not that")
        second = await session.send("two")
        async with running(*offline.agents.values(), store=offline.store):
            assert (await second.result()).output == "two"
            assert (await known(session.receipt).result()).status == "cancelled"


async def test_a_cancel_while_the_answer_streams_keeps_what_was_said() -> None:
    answering = ScriptedReply(text="once upon a time", chunks=8, pace=0.05)
    model = Watched([answering, say("the end")])
    async with running(Agent("a", model)) as app:
        session = await app.start("a", "a story")
        await until(session, "message.delta")
        await session.cancel("enough")
        assert (await session.wait()).status == "cancelled"

        kinds = await types_of(session)
        assert kinds.index("message.aborted") < kinds.index("turn.cancelled")
        await (await session.send("and?")).result()
        assert known_as(ModelAnswer, model.seen[-1][1]).aborted


async def test_a_cancel_while_a_tool_runs_interrupts_it() -> None:
    async with running(agent([calls(("hang", {}), ("pay", {}))], tools=[hang, pay])) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started")
        await session.cancel("stop it")
        result = await session.wait()

        assert result.status == "cancelled"
        assert [k for k in await types_of(session) if k not in ("usage.recorded",)][-9:] == [
            "tool.started",
            "cancel.requested",
            "request.resolved",
            "tool.interrupted",
            "tool.failed",
            "turn.cancelled",
            "delivery.settled",
            "delivery.settled",
            "session.waiting",
        ]
        [not_run] = await the(session, "tool.failed")
        assert not_run.data["error"]["code"] == "NOT_RUN"
        assert (await the(session, "request.resolved"))[0].data["how"] == "cancelled"


async def test_a_cancel_of_a_parked_turn_closes_its_requests() -> None:
    async with running(agent([call("pay"), say("hello")], tools=[pay])) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        await session.cancel()
        assert (await session.wait()).status == "cancelled"

        with pytest.raises(OutlastError) as refused:
            await session.answer(request.request_id, "approve")
        assert refused.value.code == "REQUEST_CLOSED"
        assert (await (await session.send("hi")).result()).output == "hello"


async def test_a_cancel_leaves_a_call_that_was_cut_off_of_unknown_outcome() -> None:
    ran: list[int] = []

    @tool(on_interrupt="ask", idempotency_key=DedupeKey(lambda args: "rent", "tenant"))
    async def pay_rent() -> object:
        ran.append(1)
        return object()  # which no log can keep

    async with running(agent([call("pay_rent"), say("hm")], tools=[pay_rent])) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).requests[0].kind == "interrupted"
        await session.cancel()
        await session.wait()
        other = await app.start("a", "go")
        await other.wait()

        for each in (session, other):
            [told] = await results_of(each)
            assert "outcome of this call is unknown" in told
            assert not await verify(app.store, each.id)
        assert len(ran) == 1


async def test_a_cancel_leaves_a_tool_that_waits_of_unknown_outcome() -> None:
    @tool
    async def book(ctx: Context) -> str:
        await ctx.step(lambda: 1, name="reserve")
        return (await ctx.ask("Take it?")).text

    async with running(agent([call("book")], tools=[book])) as app:
        session = await app.start("a", "go")
        await session.wait()
        await session.cancel()
        await session.wait()

        [stopped] = await the(session, "tool.interrupted")
        assert stopped.data == {"reason": "cancelled"}
        assert not await verify(app.store, session.id)


async def test_a_cancel_leaves_a_call_that_is_to_be_tried_again_as_it_failed() -> None:
    @tool(idempotent=True, max_attempts=2)
    async def fetch() -> str:
        raise ToolError("the line is down")

    async with running(agent([call("fetch")], tools=[fetch])) as app:
        session = await app.start("a", "go")
        await until(session, "tool.failed")
        await session.cancel()
        await session.wait()

        assert await results_of(session) == ["TOOL_ERROR: the line is down"]
        assert not await verify(app.store, session.id)


async def test_a_question_that_was_cancelled_can_be_asked_again() -> None:
    asks = call("ask_question", question="Which colour?")
    async with running(agent([asks, asks], tools=[ask_question])) as app:
        session = await app.start("a", "go")
        await session.wait()
        await session.cancel()
        await session.wait()
        await session.send("go on")

        [request] = (await session.wait()).requests
        assert (request.kind, request.prompt) == ("question", "Which colour?")


async def test_a_tool_that_ends_well_when_cancelled_keeps_its_result() -> None:
    started = asyncio.Event()

    @tool
    async def upload() -> str:
        try:
            started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "stopped at part 3"
        return "never"

    async with running(agent([call("upload")], tools=[upload])) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started")
        await started.wait()
        await session.cancel()
        await session.wait()

        [done] = await the(session, "tool.completed")
        assert done.data["value"] == "stopped at part 3"


async def test_a_tool_can_see_that_its_turn_is_being_cancelled() -> None:
    started = threading.Event()

    @tool
    def count(ctx: Context) -> str:
        started.set()
        while not ctx.cancelled:
            threading.Event().wait(0.001)
        return "heeded"

    async with running(agent([call("count")], tools=[count])) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started")
        await asyncio.to_thread(started.wait, 5)
        await session.cancel()
        await session.wait()

        [done] = await the(session, "tool.completed")
        assert done.data["value"] == "heeded"


async def test_the_late_result_of_a_tool_that_ignores_its_cancellation_is_dropped() -> None:
    may_end, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue
        ended.set()
        return "too late"

    @tool(readonly=True)
    async def look() -> str:
        may_end.set()
        await ended.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        return "seen"

    script = [call("stubborn"), call("look"), say("done")]
    async with running(agent(script, tools=[stubborn, look])) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started")
        second = await session.send("again")
        await session.cancel()

        assert (await second.result()).output == "done"
        assert [e.data["value"] for e in await the(session, "tool.completed")] == ["seen"]
        assert len(await the(session, "tool.started")) == 2


async def half_a_text(ctx: Context) -> object:
    return "half a character: \ud800"


async def half_a_slice(ctx: Context) -> object:
    kept = StateChanged(slice="half a character: \ud800", op="put", values=("1",))
    ctx.session._state.add(kept)
    return "fine"


@pytest.mark.parametrize("unstorable", [half_a_text, half_a_slice])
async def test_a_tool_whose_end_cannot_be_stored_stops_with_its_turn(
    unstorable: Callable[[Context], Awaitable[object]], caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def stubborn(ctx: Context) -> object:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return await unstorable(ctx)

    @tool
    async def heeds() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "heeded"

    both = calls(("stubborn", {}), ("heeds", {}))
    async with running(agent([both, say("done")], tools=[stubborn, heeds])) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started", 2)
        await session.cancel()
        await session.wait()

        [cut] = await the(session, "tool.interrupted")
        assert cut.data["reason"] == "unstorable"  # and not "crash": the lane went on
        [done] = await the(session, "tool.completed")
        assert done.data["value"] == "heeded"
        [said] = [line for line in caplog.records if "cannot be stored" in line.message]
        assert vars(said)["tool"] == "stubborn"
        assert "surrogates" in vars(said)["why"]
        assert not await verify(app.store, session.id)


@pytest.mark.parametrize("which", [{"lane": "notes"}, {"turn": "notes/t1"}])
async def test_a_cancel_reaches_the_lane_that_it_names_and_no_other(which: dict[str, str]) -> None:
    async with running(agent([call("pay")], tools=[pay])) as app:
        session = await app.start("a", "go")
        side = await session.send("go", lane="notes")
        await session.wait()
        await session.cancel(**which)

        assert (await side.result()).status == "cancelled"
        assert [e.turn for e in await the(session, "turn.cancelled")] == ["notes/t1"]
        assert len(await session.requests()) == 1


async def test_a_cancel_names_a_turn_and_leaves_others_alone() -> None:
    async with running(agent([say("one"), call("pay"), say("two")], tools=[pay])) as app:
        session = await app.start("a", "1")
        await session.wait()
        await session.send("2")
        [request] = (await session.wait()).requests
        await session.cancel(turn="t1")
        assert (await session.wait()).status == "waiting"

        await session.answer(request.request_id, "approve")
        assert (await session.wait()).output == "two"


async def test_a_cancel_of_nothing_is_settled_as_ignored() -> None:
    async with running(agent([say("one")])) as app:
        session = await app.start("a", "1")
        await session.wait()
        await session.cancel()
        await session.wait()

        *_, settled = await the(session, "delivery.settled")
        assert settled.data["outcome"] == "ignored"


# Ending


async def test_an_ended_session_takes_nothing_more_and_its_token_is_dead() -> None:
    async with running(agent([say("hello")])) as app:
        session = await app.start("a", "hi", continuation_token="ticket-1")
        await session.wait()
        await session.end("solved")
        await session.wait()

        assert (await session.info()).over == "ended"
        with pytest.raises(OutlastError) as over:
            await session.send("one more thing")
        with pytest.raises(OutlastError) as dead:
            await app.send(Token("ticket-1"), "hello?")
        assert (over.value.code, dead.value.code) == ("SESSION_OVER", "NO_ACTIVE_SESSION")


async def test_an_end_cancels_the_open_turn_and_refuses_what_is_queued() -> None:
    async with running(agent([call("hang")], tools=[hang])) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started")
        queued = await session.send("and this")
        await session.end("enough")

        assert (await queued.result()).status == "refused"
        kinds = await types_of(session)
        assert kinds.index("turn.cancelled") < kinds.index("session.ended")
        assert "session.waiting" not in kinds[kinds.index("session.ended") :]


async def delivery_of(app: Outlast, session: Session[Any]) -> DeliveryInfo:
    return known(await app.store.listing.delivery(known(session.receipt).delivery_id))


async def test_an_end_stops_the_turns_of_all_lanes() -> None:
    async with running(agent([call("hang")], tools=[hang])) as app:
        session = await app.start("a", "go", lane="notes")
        await until(session, "tool.started")
        await session.end("enough")

        with Wakeups(app.store, session.id) as wakeups:
            while not (outcome := (await delivery_of(app, session)).outcome):
                await wakeups.wait()
                wakeups.clear()
        assert outcome == "cancelled"


# Messages while a turn is active


async def test_a_joining_message_is_placed_before_the_next_model_call() -> None:
    may_end = asyncio.Event()

    @tool(readonly=True)
    async def look() -> str:
        await may_end.wait()
        return "seen"

    model = Watched([call("look"), say("both")])
    async with running(Agent("a", model, tools=[look], on_busy="join")) as app:
        session = await app.start("a", "first")
        await until(session, "tool.started")
        second = await session.send("second")
        may_end.set()

        assert (await second.result()).output == "both"
        assert [type(m).__name__ for m in model.seen[-1]] == [
            "UserMessage",
            "ModelAnswer",
            "ToolOutputs",
            "UserMessage",
        ]
        assert len(await the(session, "turn.started")) == 1
        assert {e.turn for e in await the(session, "delivery.settled")} == {"t1"}


async def test_an_interrupting_message_cancels_the_turn_and_starts_its_own() -> None:
    busy = agent([call("hang"), say("new")], tools=[hang], on_busy="interrupt")
    async with running(busy) as app:
        session = await app.start("a", "old")
        await until(session, "tool.started")
        second = await session.send("new")

        assert (await second.result()).output == "new"
        assert (await known(session.receipt).result()).status == "cancelled"


async def test_an_interrupting_message_closes_open_requests_as_superseded() -> None:
    busy = agent([call("pay"), say("new")], tools=[pay], on_busy="interrupt")
    async with running(busy) as app:
        session = await app.start("a", "old")
        await session.wait()
        await (await session.send("new")).result()

        [closed] = await the(session, "request.resolved")
        assert closed.data["how"] == "superseded"


# Failing and trying again


def unlucky_once() -> Any:
    failed: list[int] = []

    def script(request: Any) -> ScriptedReply:
        if not failed:
            failed.append(1)
            return ScriptedReply(fails=(ScriptedError("recoverable", "filtered"),) * 9)
        return say("well")

    return script


async def test_a_failed_turn_can_be_tried_again_without_saying_anything_anew() -> None:
    async with running(agent(unlucky_once())) as app:
        session = await app.start("a", "hi")
        assert (await session.wait()).status == "failed"

        again = await session.retry()
        assert (await again.result()).output == "well"
        *_, started = await the(session, "turn.started")
        assert started.data["retries"] == "t1"
        assert len(await session.history()) == 2


async def test_a_failed_turn_of_a_lane_can_be_tried_again_whatever_the_others_did_since() -> None:
    broken = ScriptedReply(fails=(ScriptedError("recoverable", "filtered"),) * 9)
    replies = iter([broken, say("fine"), say("well")])
    async with running(agent(lambda _: next(replies))) as app:
        session = await app.start("a", "hi", lane="notes")
        assert (await session.wait()).status == "failed"
        assert (await (await session.send("hi")).result()).output == "fine"

        with pytest.raises(OutlastError) as refused:
            await session.retry()
        assert refused.value.code == "NOTHING_TO_RETRY"
        assert (await (await session.retry(lane="notes")).result()).output == "well"


async def test_a_second_retry_does_not_stop_the_first_even_where_messages_would() -> None:
    broken = ScriptedReply(fails=(ScriptedError("recoverable", "filtered"),) * 9)
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            if request.call_id == "t2.s1":
                asked.set()
                await go_on.wait()
            async for piece in super().stream(request):
                yield piece

    replies = iter([broken, say("well")])
    slow = Agent("a", Slow(lambda _: next(replies)), on_busy="interrupt")
    async with running(slow) as app:
        session = await app.start("a", "hi")
        await session.wait()
        first = await session.retry()
        await asked.wait()
        second = await session.retry()
        go_on.set()

        assert (await first.result()).output == "well"
        assert (await second.result()).status == "ignored"


async def test_a_turn_that_did_not_fail_cannot_be_tried_again() -> None:
    async with running(agent([say("fine")])) as app:
        session = await app.start("a", "hi")
        await session.wait()

        with pytest.raises(OutlastError) as refused:
            await session.retry()
        assert refused.value.code == "NOTHING_TO_RETRY"


# Tasks


async def test_a_task_is_over_with_its_answer() -> None:
    async with running(agent([say("done")])) as app:
        session = await app.start("a", "do it", mode="task", continuation_token="job")
        assert (await session.wait()).output == "done"

        assert (await session.info()).over == "completed"
        assert await app.store.listing.find_token("default", "job") is None
        assert (await types_of(session))[-1] == "session.completed"


async def test_a_task_that_fails_rests_and_its_token_lives() -> None:
    broken = ScriptedReply(fails=(ScriptedError("recoverable", "filtered"),) * 9)
    async with running(agent([broken])) as app:
        session = await app.start("a", "do it", mode="task", continuation_token="job")
        result = await session.wait()

        assert (result.status, known(result.error).code) == ("failed", "SCRIPTED")
        assert (await session.info()).over == ""
        assert await app.store.listing.find_token("default", "job") == session.id


async def test_a_task_takes_no_follow_up() -> None:
    async with running(agent([call("pay"), say("done")], tools=[pay])) as app:
        session = await app.start("a", "do it", mode="task")
        [request] = (await session.wait()).requests

        with pytest.raises(OutlastError) as refused:
            await session.send("by the way")
        assert refused.value.code == "TASK_CANNOT_WAIT"

        await session.answer(request.request_id, "approve")
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["paid"]
