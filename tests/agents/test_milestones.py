"""Milestones: what reaches one, and what the model sees when its context begins anew from there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scene import FAST, Watched, agent, at_standstill, log_of, running, the

from outlast import Agent, Context, Outlast, Session, ToolResult, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.message import ModelAnswer, ToolOutputs, UserMessage, text_of
from outlast.log.verify import verify
from outlast.milestones import CheckpointTrigger, IntervalTrigger, MilestoneTrigger
from outlast.planning import Planning
from outlast.state import slice_type
from outlast.store import Store
from outlast.stores.sqlite import MemoryStore
from outlast.testing.crash import Crashed, CrashingStore
from outlast.testing.crash_everywhere import ABRUPT, SharedStore
from outlast.testing.scripted import ScriptedError, ScriptedModel, call, calls, say

SETUP = call("planning_setup_plan", objective="tea", initial_steps=["boil", "pour", "serve"])


def done(step: int) -> Any:
    return call("planning_update_step", step_id=step, status="done")


@slice_type("analysis")
@dataclass(frozen=True)
class Analysis:
    file: str
    issues: int = 0


@dataclass(frozen=True)
class Finished:
    """An event that no slice knows."""

    what: str


@tool(idempotent=True)
async def analyse(ctx: Context[Any], file: str, issues: int = 0) -> ToolResult[Analysis]:
    return ToolResult("analysed", Analysis(file, issues))


@tool(readonly=True)
async def look(path: str = "") -> str:
    return f"seen {path}"


def shown(session_model: Watched) -> list[list[str]]:
    """What each request showed, message by message, in few letters."""
    return [[brief(message) for message in messages] for messages in session_model.seen]


def brief(message: Any) -> str:
    match message:
        case UserMessage():
            return text_of(message.content)
        case ModelAnswer():
            calls_ = [part.tool for part in message.parts if hasattr(part, "tool")]
            return "+".join(calls_) or text_of(message.parts)
        case ToolOutputs():
            return "|".join(result.text for result in message.results)
    raise TypeError(message)


async def titles(session: Session[Any]) -> list[str]:
    return [event.data["title"] for event in await the(session, "milestone.reached")]


# What reaches one


async def test_a_step_that_is_marked_done_is_a_milestone_in_the_commit_of_its_outcome() -> None:
    started = call("planning_update_step", step_id=1, status="in_progress")
    a = agent([SETUP, started, done(1), done(1), done(3), say("done")], planning=Planning())
    async with running(a) as app:
        session = await app.start(a, "go")
        await session.wait()

        assert await titles(session) == ["boil", "serve"]
        events = await log_of(session, internals=True)
        types = [event.type for event in events]
        place = types.index("milestone.reached")
        assert types[place - 2 : place] == ["state.changed", "tool.completed"]
        assert events[place].call_id == events[place - 1].call_id == "t1.s3.c1"
        assert not await verify(app.store, session.id)


async def test_a_plan_that_is_written_anew_is_one_milestone_for_all_that_it_finishes() -> None:
    steps = [
        {"title": "boil", "status": "done", "step_id": 1},
        {"title": "pour", "status": "done", "step_id": 2},
        {"title": "serve", "step_id": 3},
    ]
    a = agent(
        [SETUP, call("planning_write_plan", objective="tea", steps=steps), say("done")],
        planning=Planning(),
    )
    async with running(a) as app:
        session = await app.start(a, "go")
        await session.wait()

        assert await titles(session) == ["boil, pour"]


async def test_a_trigger_looks_at_what_tools_return_and_at_the_events_that_they_dispatch() -> None:
    @tool(idempotent=True)
    async def dispatches(ctx: Context[Any], what: str) -> str:
        ctx.session.mutate(Analysis).register(Finished, lambda all_, event: all_)
        ctx.session.mutate(Analysis).dispatch(Finished(what))
        return "dispatched"

    @tool(idempotent=True)
    async def returns(what: str) -> Any:
        return Finished(what)

    trigger = CheckpointTrigger([Analysis, Finished], lambda each: "x" not in str(each))
    script = [
        call("analyse", file="a"),
        call("analyse", file="x"),
        call("dispatches", what="a"),
        call("dispatches", what="x"),
        call("returns", what="a"),
        say("done"),
    ]
    a = agent(script, tools=[analyse, dispatches, returns], milestones=trigger)
    async with running(a) as app:
        session = await app.start(a, "go")
        await session.wait()

        reached = [event.call_id for event in await the(session, "milestone.reached")]
        assert reached == ["t1.s1.c1", "t1.s3.c1", "t1.s5.c1"]
        assert [each.file for each in await session.query(Analysis).all()] == ["a", "x"]


async def test_calls_count_from_the_last_milestone_whoever_made_them() -> None:
    a = agent(
        [calls(*(("look", {"path": str(n)}) for n in range(4))), *[call("look")] * 3, say("done")],
        tools=[look],
        milestones=IntervalTrigger(calls=3),
    )
    async with running(a) as app:
        session = await app.start(a, "go")
        await session.wait()

        reached = [event.call_id for event in await the(session, "milestone.reached")]
        assert len(reached) == 2
        assert reached[1] == "t1.s3.c1"


async def test_time_counts_from_the_last_milestone_by_the_stores_clock() -> None:
    time: list[Any] = []

    @tool(idempotent=True)
    async def work(seconds: int) -> str:
        time[0].advance(seconds * 1000)
        return "worked"

    a = agent(
        [*[call("work", seconds=40)] * 4, say("done")],
        tools=[work],
        milestones=IntervalTrigger(seconds=60),
    )
    async with at_standstill(a) as (app, clock):
        time.append(clock)
        session = await app.start(a, "go")
        await session.wait()

        reached = [event.call_id for event in await the(session, "milestone.reached")]
        assert reached == ["t1.s2.c1", "t1.s4.c1"]


async def test_triggers_are_composed() -> None:
    either = CheckpointTrigger([Analysis]) | IntervalTrigger(calls=3)
    both = CheckpointTrigger([Analysis]) & IntervalTrigger(calls=3)
    script = [call("look"), call("analyse", file="a"), call("look"), call("analyse", file="b")]
    for trigger, expected in ((either, ["t1.s2.c1", "t1.s4.c1"]), (both, ["t1.s4.c1"])):
        a = agent([*script, say("done")], tools=[look, analyse], milestones=trigger)
        async with running(a) as app:
            session = await app.start(a, "go")
            await session.wait()

            reached = [event.call_id for event in await the(session, "milestone.reached")]
            assert reached == expected


async def test_a_trigger_that_fails_makes_no_milestone_and_no_harm() -> None:
    class Broken(MilestoneTrigger, frozen=True):
        def is_reached(self, progress: Any) -> bool:
            raise ZeroDivisionError

    a = agent([call("look"), say("done")], tools=[look], milestones=Broken())
    async with running(a) as app:
        session = await app.start(a, "go")

        assert (await session.wait()).output == "done"
        assert not await the(session, "milestone.reached")


async def test_what_failed_or_was_denied_is_no_milestone() -> None:
    a = agent([done(1), SETUP, done(7), say("done")], planning=Planning())
    async with running(a) as app:
        session = await app.start(a, "go")
        await session.wait()

        assert not await the(session, "milestone.reached")


async def test_each_lane_has_milestones_of_its_own() -> None:
    script = [call("look"), call("look"), say("done")]
    a = agent(
        lambda request: script[int(request.call_id.rpartition(".s")[2]) - 1],
        tools=[look],
        milestones=IntervalTrigger(calls=3),
    )
    async with running(a) as app:
        session = await app.start(a, "go")
        await session.wait()
        await (await session.send("go", lane="notes")).result()
        await (await session.send("go")).result()

        reached = await the(session, "milestone.reached")
        assert [event.lane for event in reached] == ["main"]


# From the last milestone


def planner(model: ScriptedModel, *tools: Any, **options: Any) -> Agent:
    options.setdefault("resume", "milestone")
    return Agent("planner", model, tools=tools, planning=Planning(), **options)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    memory = MemoryStore()
    await memory.migrate()
    yield SharedStore(memory)
    await memory.close()


async def die(store: Store, a: Agent, message: str, is_due: asyncio.Event) -> str:
    """Have a session begin in a worker that is thrown away at that moment."""
    async with Outlast([a], store=store, worker=None) as app:
        session = await app.start(a, message)
    crashing = CrashingStore(store, how="raise")
    with suppress(Crashed):
        async with Outlast([a], store=crashing, worker=ABRUPT):
            await is_due.wait()
            crashing.crashed.set()
    return session.id


def hanging(**settings: Any) -> tuple[Any, asyncio.Event, list[int]]:
    """A tool that never ends in its first run."""
    is_running, runs = asyncio.Event(), list[int]()

    @tool(**settings)
    async def hang() -> str:
        runs.append(1)
        is_running.set()
        if len(runs) == 1:
            await asyncio.Event().wait()
        return "let go"

    return hang, is_running, runs


LONG = [SETUP, call("look", path="1"), done(1), call("look", path="2"), call("hang"), say("done")]


@pytest.mark.parametrize(
    ("resume", "expected"),
    [
        ("milestone", ["make tea", "look", "seen 2", "hang", "let go"]),
        (
            "transcript",
            [
                *["make tea", "planning_setup_plan", "The plan is set up. 0 of 3 steps are done;"],
                *["look", "seen 1", "planning_update_step", "Step 1 (boil) is done."],
                *["look", "seen 2", "hang", "let go"],
            ],
        ),
    ],
)
async def test_after_a_crash_the_model_sees_the_task_and_the_calls_since_the_milestone(
    store: Store, resume: Any, expected: list[str]
) -> None:
    hang, is_running, runs = hanging(idempotent=True)
    second = Watched(LONG)
    first = planner(ScriptedModel(LONG), look, hang, resume=resume)
    session_id = await die(store, first, "make tea", is_running)
    async with Outlast(
        [planner(second, look, hang, resume=resume)], store=store, worker=FAST
    ) as app:
        session = await app.session(session_id)

        assert (await session.wait()).output == "done"
        assert len(runs) == 2
        [seen] = shown(second)
        assert len(seen) == len(expected)
        assert all(said.startswith(part) for said, part in zip(seen, expected, strict=True))
        assert "✓ 1. boil" in second.requests[0].tail
        restarts = await the(session, "context.restarted")
        assert len(restarts) == (resume == "milestone")
        assert not await verify(app.store, session.id)
        # People read all of it.
        assert len(await session.history()) == 12


async def test_a_call_without_an_outcome_goes_by_its_on_interrupt_and_state_stays(
    store: Store,
) -> None:
    hang, is_running, runs = hanging()
    script = [SETUP, done(1), call("analyse", file="a"), call("hang"), say("done")]
    session_id = await die(store, planner(ScriptedModel(script), analyse, hang), "go", is_running)
    second = Watched(script)
    async with Outlast([planner(second, analyse, hang)], store=store, worker=FAST) as app:
        session = await app.session(session_id)
        await session.wait()

        assert len(runs) == 1
        [seen] = shown(second)
        assert seen[:4] == ["go", "analyse", "analysed", "hang"]
        assert seen[4].startswith("The outcome of this call is unknown")
        assert await session.query(Analysis).all() == [Analysis("a")]


async def test_siblings_of_the_call_that_reached_a_milestone_stay_with_their_step(
    store: Store,
) -> None:
    hang, is_running, _ = hanging(idempotent=True)
    both = calls(("planning_update_step", {"step_id": 1, "status": "done"}), ("hang", {}))
    script = [SETUP, both, say("done")]
    session_id = await die(store, planner(ScriptedModel(script), hang), "go", is_running)
    second = Watched(script)
    async with Outlast([planner(second, hang)], store=store, worker=FAST) as app:
        await (await app.session(session_id)).wait()

        [seen] = shown(second)
        assert seen[:2] == ["go", "planning_update_step+hang"]
        assert seen[2].endswith("|let go")


async def test_without_a_milestone_the_conversation_goes_on(store: Store) -> None:
    hang, is_running, _ = hanging(idempotent=True)
    script = [SETUP, call("hang"), say("done")]
    session_id = await die(store, planner(ScriptedModel(script), hang), "go", is_running)
    second = Watched(script)
    async with Outlast([planner(second, hang)], store=store, worker=FAST) as app:
        session = await app.session(session_id)
        await session.wait()

        assert len(shown(second)[0]) == 5
        assert not await the(session, "context.restarted")


async def test_a_model_call_that_was_cut_off_begins_anew_and_goes_on_with_no_partial(
    store: Store,
) -> None:
    is_said = asyncio.Event()
    script = [SETUP, done(1), say("Half of it and the rest", chunks=4, pace=0.05)]

    class Slow(ScriptedModel):
        async def stream(self, request: ModelRequest) -> Any:
            async for piece in super().stream(request):
                yield piece
                if request.call_id == "t1.s3":
                    is_said.set()
                    await asyncio.Event().wait()

    session_id = await die(store, planner(Slow(script)), "go", is_said)
    second = Watched([SETUP, done(1), say("All of it")])
    async with Outlast([planner(second)], store=store, worker=FAST) as app:
        session = await app.session(session_id)

        assert (await session.wait()).output == "All of it"
        assert shown(second) == [["go"]]


async def test_a_retry_begins_anew_from_the_milestone(store: Store) -> None:
    model = Failing([SETUP, call("look", path="1"), done(1), call("look", path="2")])
    async with Outlast([planner(model, look)], store=store, worker=FAST) as app:
        session = await app.start("planner", "go")
        assert (await session.wait()).status == "failed"
        model.then = [say("done")]
        receipt = await session.retry()

        assert (await receipt.result()).output == "done"
        assert shown(model)[-1] == ["go", "look", "seen 2"]
        [restart] = await the(session, "context.restarted")
        assert restart.turn == "t2"
        assert not await verify(app.store, session.id)


class Failing(Watched):
    """Fails for good when its script is over, and says something else from then on."""

    def __init__(self, script: list[Any]) -> None:
        self.replies, self.then = list(script), list[Any]()
        super().__init__(lambda request: self.reply())

    def reply(self) -> Any:
        if self.replies:
            return self.replies.pop(0)
        if self.then:
            return self.then.pop(0)
        raise ScriptedError("recoverable", "no more")


async def test_a_milestone_of_an_earlier_turn_keeps_that_turns_message_and_what_came_since(
    store: Store,
) -> None:
    hang, is_running, _ = hanging(idempotent=True)
    one = [SETUP, done(1), call("look", path="1"), say("first"), call("hang"), say("second")]
    first = planner(ScriptedModel(one), look, hang)
    async with Outlast([first], store=store, worker=FAST) as app:
        session = await app.start("planner", "go")
        await session.wait()
    crashing = CrashingStore(store, how="raise")
    async with Outlast([first], store=store, worker=None) as app:
        await (await app.session(session.id)).send("and now?")
    with suppress(Crashed):
        async with Outlast([first], store=crashing, worker=ABRUPT):
            await is_running.wait()
            crashing.crashed.set()
    second = Watched(one)
    async with Outlast([planner(second, look, hang)], store=store, worker=FAST) as app:
        await (await app.session(session.id)).wait()

        assert shown(second) == [["go", "look", "seen 1", "first", "and now?", "hang", "let go"]]


async def test_a_second_crash_begins_anew_from_the_same_milestone(store: Store) -> None:
    hang, is_running, _ = hanging(idempotent=True)
    again, is_again, _ = hanging(idempotent=True)
    again = tool(idempotent=True, name="again")(again.function)
    script = [SETUP, done(1), call("hang"), call("again"), say("done")]
    session_id = await die(store, planner(ScriptedModel(script), hang, again), "go", is_running)
    crashing = CrashingStore(store, how="raise")
    middle = planner(ScriptedModel(lambda request: call("again")), hang, again)
    with suppress(Crashed):
        async with Outlast([middle], store=crashing, worker=ABRUPT):
            await is_again.wait()
            crashing.crashed.set()
    last = Watched(lambda request: say("done"))
    async with Outlast([planner(last, hang, again)], store=store, worker=FAST) as app:
        session = await app.session(session_id)
        await session.wait()

        assert shown(last) == [["go", "hang", "let go", "again", "let go"]]
        first, second = await the(session, "context.restarted")
        assert first.data == second.data
        assert not await verify(app.store, session.id)


async def test_a_skill_that_was_loaded_before_the_milestone_is_still_seen(
    store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "tea"
    folder.mkdir()
    head = "---\nname: tea\ndescription: How tea is made.\n---\n\n"
    (folder / "SKILL.md").write_text(head + "Warm the pot first.\n", "utf-8")
    hang, is_running, _ = hanging(idempotent=True)
    again, is_again, _ = hanging(idempotent=True)
    again = tool(idempotent=True, name="again")(again.function)
    script = [
        call("look", path="1"),
        calls(("load_skill", {"skill": "tea"}), ("look", {"path": "2"})),
        SETUP,
        done(1),
        call("hang"),
        call("again"),
        say("done"),
    ]

    def cook(model: ScriptedModel) -> Agent:
        return planner(model, look, hang, again, skills=tmp_path)

    session_id = await die(store, cook(ScriptedModel(script)), "go", is_running)
    crashing = CrashingStore(store, how="raise")
    with suppress(Crashed):
        async with Outlast([cook(ScriptedModel(script))], store=crashing, worker=ABRUPT):
            await is_again.wait()
            crashing.crashed.set()
    last = Watched(script)
    async with Outlast([cook(last)], store=store, worker=FAST) as app:
        session = await app.session(session_id)
        await session.wait()

        skill = "# Skill: tea\n\nWarm the pot first.|seen 2"
        since = ["hang", "let go", "again", "let go"]
        assert shown(last) == [["go", "load_skill+look", skill, *since]]
        assert len(await the(session, "context.restarted")) == 2
        assert not await verify(app.store, session.id)


async def test_a_worker_that_stops_in_good_order_restarts_nothing(store: Store) -> None:
    hang, is_running, _ = hanging(idempotent=True)
    script = [SETUP, done(1), call("hang"), say("done")]
    async with Outlast([planner(ScriptedModel(script), hang)], store=store, worker=FAST) as app:
        session = await app.start("planner", "go")
        await is_running.wait()
    second = Watched(script)
    async with Outlast([planner(second, hang)], store=store, worker=FAST) as app:
        session = await app.session(session.id)
        await session.wait()

        assert len(shown(second)[0]) == 7
        assert not await the(session, "context.restarted")
