"""Agents that hand work to other agents."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from scene import PATIENT, at_standstill, log_of, results_of, running, the, types_of, until

from outlast import Agent, Approval, Context, Limits, Outlast, OutlastError, Session, tool
from outlast.core.instant import date_of
from outlast.errors import StoreCorrupt
from outlast.log.verify import verify
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, calls, say

DAY = 86_400_000


def an_agent(name: str, *script: ScriptedReply, **options: Any) -> Agent[Any, Any]:
    return Agent(name, ScriptedModel(list(script)), **options)


def asks(name: str, message: str = "please") -> ScriptedReply:
    return call(name, message=message)


async def child_of(app: Outlast, session: Session[Any]) -> Session[Any]:
    called = await until(session, "subagent.called")
    return await app.session(called.data["child"])


async def over(session: Session[Any]) -> str:
    async for _ in session.events():  # till nothing more happens
        pass
    return (await session.info()).over


async def output_of(session: Session[Any]) -> str:
    """Wait for the turn's end, whatever is asked meanwhile."""
    while not await the(session, "turn.completed"):  # noqa: ASYNC110 - of another worker, perhaps
        await asyncio.sleep(0)
    return str((await session.wait()).output)


async def test_a_model_hands_work_to_another_agent_and_gets_its_answer() -> None:
    writer = an_agent("writer", say("a poem"), description="Writes poems.")
    boss = an_agent("boss", asks("writer", "Write!"), say("done"), subagents=[writer])
    async with running(boss) as app:
        session = await app.start("boss", "go")

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["a poem"]
        child = await child_of(app, session)
        info = await child.info()
        assert (info.agent, info.mode, info.over, info.parent) == (
            "writer",
            "task",
            "completed",
            session.id,
        )
        [said] = await the(child, "delivery.queued")
        assert said.data["content"][0]["text"] == "Write!"
        assert boss.tools["writer"].spec.description == "Writes poems."
        for each in (session, child):
            assert not await verify(app.store, each.id)


async def test_a_parent_that_waits_for_its_child_holds_nothing() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def think() -> str:
        begun.set()
        await go_on.wait()
        return "thought"

    thinker = an_agent("thinker", call("think"), say("42"), tools=[think])
    boss = an_agent("boss", asks("thinker"), say("done"), subagents=[thinker])
    async with running(boss) as app:
        session = await app.start("boss", "go")
        await begun.wait()
        [lane] = (await session.info()).lanes
        assert (lane.status, lane.worker, lane.ready_at) == ("sleeping", "", None)
        [waiting] = await the(session, "session.waiting")
        assert waiting.data["wait"] == ("children",)
        go_on.set()

        assert (await session.wait()).output == "done"


async def test_several_children_work_at_once() -> None:
    together = asyncio.Barrier(3)

    @tool
    async def meet() -> str:
        await together.wait()
        return "met"

    helpers = [an_agent(n, call("meet"), say(f"{n} was there"), tools=[meet]) for n in "abc"]
    boss = an_agent(
        "boss", calls(*((n, {"message": "go"}) for n in "abc")), say("done"), subagents=helpers
    )
    async with running(boss) as app:
        session = await app.start("boss", "go")

        assert (await session.wait()).output == "done"
        assert await results_of(session) == [f"{n} was there" for n in "abc"]


async def test_a_child_has_the_owner_and_capabilities_of_its_parent() -> None:
    seen = []

    @tool(approval="always")
    async def pay() -> str:
        return "paid"

    @tool
    async def who(ctx: Context) -> str:
        seen.append((ctx.session.tenant, ctx.session.principal))
        return "me"

    clerk = an_agent("clerk", calls(("who", {}), ("pay", {})), say("ok"), tools=[who, pay])
    boss = an_agent("boss", asks("clerk"), say("done"), subagents=[clerk])
    async with running(boss) as app:
        session = await app.start(
            "boss", "go", tenant="acme", principal="ada", capabilities={"request_input": False}
        )
        assert (await session.wait()).output == "done"

        assert seen == [("acme", "ada")]
        child = await child_of(app, session)
        assert "tool.denied" in await types_of(child)


async def test_a_tool_can_see_which_session_its_own_works_for() -> None:
    seen = {}

    @tool
    async def whose(ctx: Context) -> str:
        seen[ctx.session.id] = ctx.session.parent
        return "seen"

    clerk = an_agent("clerk", call("whose"), say("ok"), tools=[whose])
    both = calls(("whose", {}), ("clerk", {"message": "please"}))
    boss = an_agent("boss", both, say("done"), tools=[whose], subagents=[clerk])
    async with running(boss) as app:
        session = await app.start("boss", "go")
        assert (await session.wait()).output == "done"

        child = await child_of(app, session)
        assert seen == {session.id: None, child.id: session.id}


class Verdict(BaseModel):
    guilty: bool


async def test_a_childs_output_is_of_its_own_type() -> None:
    got = []

    @tool
    async def judge_it(ctx: Context) -> str:
        verdict = await ctx.agent("judge").ask("Is he?")
        got.append(verdict)
        return "judged"

    judge = an_agent("judge", call("final_result", guilty=True), output_type=Verdict)
    boss = an_agent("boss", call("judge_it"), say("done"), tools=[judge_it])
    async with running(boss, judge) as app:
        session = await app.start("boss", "go")

        assert (await session.wait()).output == "done"
        assert got == [Verdict(guilty=True)]


async def test_tool_code_asks_agents_one_after_another() -> None:
    ordered: list[Any] = []

    @tool(on_interrupt="rerun")
    async def produce(ctx: Context) -> str:
        await ctx.step(ordered.append, 1, name="order")
        draft = await ctx.agent("writer").ask("Write")
        return str(await ctx.agent("editor").ask(f"Edit: {draft}"))

    writer, editor = an_agent("writer", say("draft")), an_agent("editor", say("final"))
    boss = an_agent("boss", call("produce"), say("done"), tools=[produce])
    async with running(boss, writer, editor) as app:
        session = await app.start("boss", "go")

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["final"]
        assert ordered == [1]
        assert len(await app.store.listing.sessions(parent=session.id)) == 2


async def test_a_failed_child_is_a_failure_that_the_model_sees() -> None:
    @tool(on_interrupt="fail", timeout=0.01)
    async def hang() -> None:
        await asyncio.Event().wait()

    weak = an_agent("weak", call("hang"), tools=[hang])
    boss = an_agent("boss", asks("weak"), say("too bad"), subagents=[weak])
    async with running(boss) as app:
        session = await app.start("boss", "go")

        assert (await session.wait()).output == "too bad"
        [told] = await results_of(session)
        assert told.startswith("SUBAGENT_FAILED: weak failed: INTERRUPTED")
        [failed] = await the(session, "subagent.failed")
        assert failed.data["error"]["code"] == "INTERRUPTED"


async def test_sessions_stand_only_so_deep() -> None:
    @tool
    async def dig(ctx: Context) -> str:
        return f"below: {await ctx.agent('digger').ask('deeper')}"

    def script(request: Any) -> ScriptedReply:
        return call("dig") if len(request.view.messages) == 1 else say("up again")

    digger = Agent("digger", ScriptedModel(script), tools=[dig], limits=Limits(max_depth=2))
    async with running(digger) as app:
        session = await app.start("digger", "go")
        assert (await session.wait()).output == "up again"

        assert len(await app.sessions()) == 3
        deepest = (await app.sessions())[0]
        told = await results_of(await app.session(deepest.session_id))
        assert "2 is the most" in told[0]


# The end of a parent


def sleeper() -> Agent[Any, Any]:
    @tool
    async def nap(ctx: Context) -> str:
        await ctx.sleep(timedelta(days=7))
        return "rested"

    return Agent("sleeper", ScriptedModel(lambda _: call("nap")), tools=[nap])


def dynasty() -> Agent[Any, Any]:
    """Three levels: each asks the next, and the last one sleeps."""
    middle = Agent("middle", ScriptedModel(lambda _: asks("sleeper")), subagents=[sleeper()])
    return Agent("top", ScriptedModel([asks("middle"), say("done")]), subagents=[middle])


async def three_levels(app: Outlast) -> list[Session[Any]]:
    top = await app.start("top", "go")
    middle = await child_of(app, top)
    bottom = await child_of(app, middle)
    await until(bottom, "session.waiting")
    return [top, middle, bottom]


async def test_cancelling_a_parent_ends_all_below_it() -> None:
    async with running(dynasty()) as app:
        top, middle, bottom = await three_levels(app)

        await top.cancel("never mind")

        assert await over(bottom) == "ended"
        assert await over(middle) == "ended"
        assert await over(top) == ""
        assert (await top.info()).status == "idle"
        for session in (top, middle, bottom):
            assert not await verify(app.store, session.id)


async def test_ending_a_parent_ends_all_below_it() -> None:
    async with running(dynasty()) as app:
        levels = await three_levels(app)

        await levels[0].end()

        assert [await over(each) for each in reversed(levels)] == ["ended"] * 3


async def test_erasing_a_parent_erases_all_below_it() -> None:
    async with running(dynasty()) as app:
        top, _, _ = await three_levels(app)

        await app.erase(top.id)

        assert await app.sessions() == []


async def test_a_child_that_is_ended_by_itself_is_a_failure_to_its_parent() -> None:
    async with running(dynasty()) as app:
        top, middle, _ = await three_levels(app)

        await middle.end("enough")

        assert (await top.wait()).output == "done"
        [told] = await results_of(top)
        assert told == "SUBAGENT_FAILED: middle failed: ENDED: enough"


async def test_a_parent_is_told_of_a_child_that_is_erased() -> None:
    async with running(dynasty()) as app:
        top, middle, _ = await three_levels(app)

        await app.erase(middle.id)

        assert (await top.wait()).output == "done"
        [told] = await results_of(top)
        assert told == "SUBAGENT_FAILED: middle failed: ERASED: the session was erased"
        assert [info.session_id for info in await app.sessions()] == [top.id]


async def test_a_deadline_reaches_all_below() -> None:
    store_agents = dynasty()
    async with at_standstill(store_agents) as (app, clock):
        top = await app.start("top", "go", deadline=timedelta(days=1))
        middle = await child_of(app, top)
        bottom = await child_of(app, middle)
        await until(bottom, "session.waiting")
        clock.advance(DAY)

        # Whoever is quicker: its own deadline, or its parent's.
        assert await over(bottom) in ("failed", "ended")
        assert await over(middle) in ("failed", "ended")
        assert await over(top) == "ended"
        [failed] = await the(top, "turn.failed")
        assert failed.data["error"]["code"] == "DEADLINE_EXCEEDED"


# What children ask


class Bank:
    def __init__(self, timeout: float | None = None) -> None:
        self.paid: list[tuple[int, str]] = []

        @tool(approval=Approval("always", timeout=timeout))
        async def pay(ctx: Context, cents: int) -> str:
            self.paid.append((cents, ctx.approved_by))
            return f"paid {cents}"

        clerk = an_agent("clerk", call("pay", cents=5), say("paid"), tools=[pay])
        manager = an_agent("manager", asks("clerk"), say("managed"), subagents=[clerk])
        self.agent = an_agent("owner", asks("manager"), say("done"), subagents=[manager])


async def levels_of(app: Outlast, top: Session[Any]) -> list[Session[Any]]:
    middle = await child_of(app, top)
    return [top, middle, await child_of(app, middle)]


async def asked_everywhere(app: Outlast) -> list[Session[Any]]:
    top = await app.start("owner", "go")
    levels = await levels_of(app, top)
    for each in levels:
        await until(each, "request.opened")
    return levels


async def test_what_a_child_asks_is_asked_on_every_level_with_the_way_to_it() -> None:
    bank = Bank()
    async with running(bank.agent) as app:
        top, middle, bottom = await asked_everywhere(app)

        asked = [(await each.wait()).requests[0] for each in (top, middle, bottom)]

        assert [request.path for request in asked] == [
            (middle.id, bottom.id),
            (bottom.id,),
            (),
        ]
        assert {(q.tool, q.args["cents"], q.agent, q.kind) for q in asked} == {
            ("pay", 5, "clerk", "approval")
        }
        assert len({request.request_id for request in asked}) == 3
        assert [q.request_id for q in await app.requests()] == [asked[2].request_id]


@pytest.mark.parametrize("level", [0, 1, 2])
async def test_an_answer_on_any_level_reaches_the_child_and_closes_the_others(level: int) -> None:
    bank = Bank()
    async with running(bank.agent) as app:
        levels = await asked_everywhere(app)
        [asked] = (await levels[level].wait()).requests

        await levels[level].answer(asked.request_id, "approve", args={"cents": 3}, principal="ada")

        assert await output_of(levels[0]) == "done"
        assert bank.paid == [(3, "ada")]
        for each in levels:
            assert await each.requests() == ()
            assert not await verify(app.store, each.id)


async def test_edited_arguments_are_checked_by_the_tool_of_the_child() -> None:
    bank = Bank()
    async with running(bank.agent) as app:
        levels = await asked_everywhere(app)
        [asked] = (await levels[0].wait()).requests

        with pytest.raises(OutlastError) as refused:
            await levels[0].answer(asked.request_id, "approve", args={"cents": "few"})

        assert refused.value.code == "INVALID_ANSWER"


async def test_answers_on_all_levels_at_once_are_one() -> None:
    bank = Bank()
    async with running(bank.agent) as app:
        levels = await asked_everywhere(app)
        asked = [(await each.wait()).requests[0].request_id for each in levels]

        answers = (each.answer(q, "approve") for each, q in zip(levels, asked, strict=True))
        await asyncio.gather(*answers, return_exceptions=True)

        assert await output_of(levels[0]) == "done"
        assert len(bank.paid) == 1
        for each in levels:
            assert await each.requests() == ()
            assert not await verify(app.store, each.id)


async def test_a_child_that_stops_asking_stops_on_every_level() -> None:
    bank = Bank()
    async with running(bank.agent) as app:
        levels = await asked_everywhere(app)

        await levels[2].end("no use")

        assert await output_of(levels[0]) == "done"
        for each in levels:
            assert await each.requests() == ()
        [told] = await results_of(levels[1])
        assert "ENDED: no use" in told


# Reading


async def test_the_events_of_children_come_between_those_of_their_parent() -> None:
    writer = an_agent("writer", say("a poem"))
    boss = an_agent("boss", asks("writer"), say("done"), subagents=[writer])
    async with running(boss) as app:
        session = await app.start("boss", "go")
        followed = [event async for event in session.events(children=True)]
        afterwards = [event async for event in session.events(children=True, follow=False)]

        child = await child_of(app, session)
        for events in (followed, afterwards):
            mine = [e.offset for e in events if e.session_id == session.id]
            theirs = [e.offset for e in events if e.session_id == child.id]
            assert mine == [e.offset for e in await log_of(session)]
            assert theirs == [e.offset for e in await log_of(child)]
            types = [e.type for e in events]
            assert types.index("subagent.called") < types.index("session.completed")


async def test_a_reader_who_answers_what_a_child_asks_gets_all_that_it_does_then() -> None:
    bank = Bank()
    async with running(bank.agent) as app:
        top = await app.start("owner", "go")
        read: list[Any] = []
        async for event in top.events(children=True):
            read.append(event)
            if event.type == "request.opened" and event.session_id == top.id:
                await top.answer(event.data["request_id"], "approve")

        levels = await levels_of(app, top)
        for depth, each in enumerate(levels):
            theirs = [event for event in read if event.session_id == each.id]
            assert [e.offset for e in theirs] == [e.offset for e in await log_of(each)]
            assert {e.path for e in theirs} == {tuple(level.id for level in levels[1 : depth + 1])}


async def test_an_answer_given_above_in_time_counts_whenever_it_is_handed_down() -> None:
    bank, clock = Bank(timeout=60), ManualClock()
    store = MemoryStore(clock)
    async with running(bank.agent, store=store, clock=clock, settings=PATIENT) as app:
        top, *_ = await asked_everywhere(app)
        [request] = await top.requests()
    async with Outlast([bank.agent], store=store, clock=clock, worker=None) as app:
        top = await app.session(top.id)
        await top.answer(request.request_id, "approve", principal="ada")
    clock.advance(DAY)
    async with running(bank.agent, store=store, clock=clock, settings=PATIENT) as app:
        top = await app.session(top.id)

        assert await output_of(top) == "done"
        assert bank.paid == [(5, "ada")]


async def test_what_nobody_answers_above_expires_on_all_levels() -> None:
    bank = Bank(timeout=60)
    async with at_standstill(bank.agent) as (app, clock):
        top, *_ = await asked_everywhere(app)
        [request] = await top.requests()
        assert request.expires_at == date_of(clock.now() + 60_000)
        clock.advance(60_000)

        assert await output_of(top) == "done"
        assert bank.paid == []
        for level in await levels_of(app, top):
            assert len(await the(level, "request.expired")) == 1
            assert not await verify(app.store, level.id)
        [denied] = await the((await levels_of(app, top))[-1], "tool.denied")
        assert denied.data["reason"] == "nobody answered in time"


async def test_children_survive_the_worker_that_started_them() -> None:
    store, bank = MemoryStore(), Bank()
    async with running(bank.agent, store=store) as app:
        top_id = (await asked_everywhere(app))[0].id
    async with running(bank.agent, store=store) as app:
        top = await app.session(top_id)
        [asked] = await top.requests()
        await top.answer(asked.request_id, "approve")

        assert (await top.wait()).output == "done"
        assert len(bank.paid) == 1


# Rubbish


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("", "INVALID_MESSAGE"),
        (17, "INVALID_MESSAGE"),
        ([], "INVALID_MESSAGE"),
        ("x" * (33 * 1024 * 1024), "MESSAGE_TOO_LARGE"),
        ("half a character: \ud800", ""),
    ],
    ids=["empty", "no text", "nothing", "too large", "unstorable"],
)
async def test_a_message_that_cannot_be_said_starts_no_child(message: Any, code: str) -> None:
    @tool
    async def pass_on(ctx: Context) -> str:
        return str(await ctx.agent("writer").ask(message))

    boss = an_agent("boss", call("pass_on"), say("sorry"), tools=[pass_on])
    async with running(boss, an_agent("writer", say("never"))) as app:
        session = await app.start("boss", "go")

        assert (await session.wait()).output == "sorry"
        assert code in (await results_of(session))[0]
        assert len(await app.sessions()) == 1


class OfAnotherRelease:
    """A performer that cannot read what an older one had its agent answer."""

    def __init__(self, performer: Any) -> None:
        self._performer = performer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._performer, name)

    def output_of(self, text: str, output: str | None) -> str:
        raise StoreCorrupt("this is no Verdict")


async def test_a_child_whose_output_the_code_of_today_cannot_read_has_failed() -> None:
    writer = an_agent("writer", say("a poem"))
    boss = an_agent("boss", asks("writer"), say("too bad"), subagents=[writer])
    async with running(boss) as app:
        performers: Any = app.worker._executors if app.worker else {}
        performers["writer"] = OfAnotherRelease(performers["writer"])
        session = await app.start("boss", "go")

        assert (await session.wait()).output == "too bad"
        [told] = await results_of(session)
        assert told == "SUBAGENT_FAILED: writer failed: STORE_CORRUPT: this is no Verdict"


async def test_a_child_that_was_erased_stops_nobody_who_reads_the_others() -> None:
    gone, kept = an_agent("gone", say("a poem")), an_agent("kept", say("a song"))
    script = (calls(("gone", {"message": "go"}), ("kept", {"message": "go"})), say("done"))
    boss = an_agent("boss", *script, subagents=[gone, kept])
    async with running(boss) as app:
        session = await app.start("boss", "go")
        await session.wait()
        called = {
            event.data["agent"]: event.data["child"]
            for event in await the(session, "subagent.called")
        }
        await app.erase(called["gone"])

        for follow in (True, False):
            read = {e.session_id async for e in session.events(children=True, follow=follow)}
            assert read == {session.id, called["kept"]}
