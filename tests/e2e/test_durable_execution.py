"""The Durable Execution Specification of WINK, from its first line to its last.

The comments are the specification's headings. Where Outlast differs on purpose, the test says so;
the reasons are in docs/how-to/milestones.md. A real SIGKILL at every write is in
tests/crash/test_durable_loop.py, files that are damaged and disks that take nothing are in
test_durable_files.py.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from loop_scene import (
    Fails,
    Finding,
    answers_of,
    effect_file,
    effects_of,
    has_done,
    has_worked_on,
    loop_in,
    worker,
)

from outlast import Agent, Context, Outlast, ToolResult, tool
from outlast.agents.model.client import ModelRequest
from outlast.agents.planning.progress import NO_PLAN
from outlast.core import state_change
from outlast.core.message import Message, ToolOutputs, UserMessage, text_of
from outlast.errors import (
    DeadlineExceeded,
    ExecutionIncomplete,
    ExecutionRunning,
    InvalidDefinition,
    InvalidInput,
    OutputChanged,
    RequestChanged,
    SessionError,
)
from outlast.milestones import CheckpointTrigger, DurableLoop, IntervalTrigger
from outlast.planning import AddStep, Plan, Planning, ProgressSection, SetupPlan, UpdateStep
from outlast.prompts import PromptContext, PromptTemplate, Section
from outlast.session.inbox import QueueLimits
from outlast.state import Snapshot, reducer, slice_type
from outlast.testing import ScriptedModel, call, say
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import ScriptedError, ScriptedReply

T = TypeVar("T")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "milestones.md"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "worker-001"


async def interrupted(loop: DurableLoop[Any, Any], request: Any = "go") -> None:
    """Have an execution end before it has a result."""
    with pytest.raises(SessionError, match="the model is broken"):
        await loop.execute(request)


def everything(directory: Path) -> str:
    """All that is written in a directory."""
    return "".join(path.read_text() for path in directory.glob("*"))


def noting(told: list[T], what: Callable[[ModelRequest], T]) -> Fails:
    """Note something of each request, and fail none."""

    def note(request: ModelRequest) -> bool:
        told.append(what(request))
        return False

    return note


def plan_of(loop: DurableLoop[Any, Any]) -> Plan:
    checkpoint = loop.load_checkpoint()
    assert checkpoint is not None
    plan = checkpoint.query(Plan).latest()
    assert plan is not None
    return plan


def done(loop: DurableLoop[Any, Any]) -> list[str]:
    return [step.title for step in plan_of(loop).done]


# Purpose


async def test_an_agent_goes_on_from_its_last_checkpoint_and_does_no_done_step_again(
    directory: Path,
) -> None:
    await interrupted(loop_in(directory, 4, has_done(2)))
    assert effects_of(loop_in(directory)) == ["step 1", "step 2"]

    result = await loop_in(directory, 4).execute("go")
    assert (result.output, result.attempts) == ("done", 2)
    assert effects_of(loop_in(directory)) == ["step 1", "step 2", "step 3", "step 4"]


async def test_a_worker_is_known_by_its_directory_and_workers_do_not_meet(tmp_path: Path) -> None:
    one, other = loop_in(tmp_path / "worker-001"), loop_in(tmp_path / "worker-002")
    await asyncio.gather(one.execute("go"), other.execute("go"))
    assert effects_of(one) == effects_of(other) == ["step 1", "step 2"]


# Core Concepts: Checkpoint Trigger


async def test_by_default_a_step_that_is_marked_done_is_a_checkpoint(directory: Path) -> None:
    await interrupted(loop_in(directory, 2, has_worked_on("step 1")))
    assert loop_in(directory).load_checkpoint() is None  # the plan was set up, and no step is done

    await interrupted(loop_in(directory, 2, has_done(1)))
    assert done(loop_in(directory)) == ["step 1"]


@pytest.mark.parametrize(
    ("event", "is_one"),
    [
        (UpdateStep(1, status="done"), True),
        (UpdateStep(1, status="in_progress"), False),
        (UpdateStep(1, title="tea"), False),
        (SetupPlan("tea", ("boil",)), False),
        (AddStep(("pour",)), False),
        ("done", False),
        (None, False),
    ],
)
def test_the_default_trigger_is_a_predicate_on_events(event: object, is_one: bool) -> None:
    assert CheckpointTrigger().should_checkpoint(event) is is_one


async def test_a_trigger_may_be_any_change_of_the_plan(directory: Path) -> None:
    any_change = CheckpointTrigger(event_types=frozenset({SetupPlan, AddStep, UpdateStep}))
    await interrupted(loop_in(directory, 2, has_worked_on("step 1"), trigger=any_change))
    assert [step.title for step in plan_of(loop_in(directory)).remaining] == ["step 1", "step 2"]


@dataclass(frozen=True)
class ChapterReached:
    number: int


async def test_a_trigger_may_be_an_event_of_ones_own_which_a_tool_returns(directory: Path) -> None:
    @tool
    async def read(number: int) -> ToolResult[ChapterReached]:
        """Read a chapter."""
        return ToolResult("read", ChapterReached(number))

    script = [call("read", number=1), call("read", number=2), say("It was good.")]
    own = CheckpointTrigger(
        event_types=frozenset({ChapterReached}), predicate=lambda e: e.number > 1
    )
    loop = DurableLoop(Agent("reader", ScriptedModel(script), tools=[read]), directory, str, own)
    assert (await loop.execute("Read it.")).output == "It was good."
    assert len(files(directory, "checkpoint*.json")) == 1


async def test_a_trigger_may_be_the_calls_that_were_made(directory: Path) -> None:
    loop = loop_in(directory, 2, has_worked_on("step 1"), trigger=IntervalTrigger(calls=2))
    await interrupted(loop)
    assert loop.load_checkpoint() is not None


async def test_the_agents_own_milestones_count_where_the_loop_names_none(directory: Path) -> None:
    set_up = CheckpointTrigger(event_types={SetupPlan})
    agent = worker(effect_file(directory), 2, has_worked_on("step 1"), milestones=set_up)
    loop = DurableLoop(agent, directory, str)
    await interrupted(loop)
    assert done(loop) == []


# Core Concepts: Checkpoint Content


async def test_a_checkpoint_is_the_sessions_snapshot_and_goes_through_json(directory: Path) -> None:
    await interrupted(loop := loop_in(directory, 2, has_done(1)))
    snapshot = loop.load_checkpoint()
    assert snapshot is not None
    assert Snapshot.from_json(snapshot.to_json()) == snapshot

    agent = Agent("other", ScriptedModel([say("hello")]))
    async with Outlast([agent], store="memory://") as app:
        session = await app.start(agent, "hi")
        await session.wait()
        await (await session.mutate().rollback(snapshot)).result()
        assert await session.query(Finding).all() == [Finding("step 1")]


async def test_a_checkpoint_has_all_slices_and_what_the_session_is_known_by(
    directory: Path,
) -> None:
    tags = {"team": "kitchen", "day": "monday"}
    await interrupted(loop := loop_in(directory, 2, has_done(1), tags=tags))
    snapshot = loop.load_checkpoint()
    assert snapshot is not None
    assert snapshot.tags == tags
    assert snapshot.query(Finding).all() == [Finding("step 1")]
    assert snapshot.query(Plan).latest() == plan_of(loop)
    assert snapshot.session_id.startswith("ses_")
    assert snapshot.created_at <= snapshot.taken_at

    await interrupted(loop := loop_in(directory, 2, has_done(2), tags=tags))
    later = loop.load_checkpoint()
    assert later is not None
    assert (later.session_id, later.created_at) == (snapshot.session_id, snapshot.created_at)
    assert (later.tags, later.taken_at > snapshot.taken_at) == (tags, True)


async def test_a_checkpoint_has_the_sessions_that_were_started_also_before_a_crash(
    directory: Path,
) -> None:
    helper = Agent("helper", ScriptedModel(lambda _: say("helped")))
    milestone = CheckpointTrigger(event_types={ChapterReached})
    models: list[ScriptedModel] = []

    @tool
    async def ask(ctx: Context) -> ToolResult[ChapterReached]:
        """Ask the helper."""
        return ToolResult(str(await ctx.agent("helper").ask("help")), ChapterReached(1))

    def loop(*script: ScriptedReply) -> DurableLoop[str, str]:
        models.append(ScriptedModel([*script, say("done")]))
        parent = Agent("parent", models[-1], tools=[ask], subagents=[helper])
        return DurableLoop(parent, directory, str, milestone)

    broken = ScriptedReply(fails=(ScriptedError("structural", "the model is broken"),))
    await interrupted(loop(call("ask"), broken))
    first = loop().load_checkpoint()
    await loop(call("ask")).execute()
    second = loop().load_checkpoint()
    assert first is not None
    assert second is not None
    assert len(first.children) == 1
    assert len(second.children) == 2
    assert second.children[:1] == first.children
    assert second.parent is None


async def test_a_checkpoint_has_no_history_no_reducers_and_no_observers(directory: Path) -> None:
    await interrupted(loop := loop_in(directory, 2, has_done(1)))
    snapshot = loop.load_checkpoint()
    assert snapshot is not None
    assert set(json.loads(snapshot.to_json())) == {
        *("format", "session_id", "created_at", "taken_at", "offset", "tags"),
        *("parent", "children", "slices"),
    }
    assert "worked on" not in everything(directory)  # what was said is not kept


@slice_type("count")
@dataclass(frozen=True)
class Count:
    number: int


@dataclass(frozen=True)
class Counted:
    by: int


@reducer(Count, Counted)
def add(counts: Sequence[Count], event: Counted) -> Sequence[Count]:
    return [Count(sum(count.number for count in counts) + event.by)]


async def test_reducers_are_there_again_when_it_goes_on(directory: Path) -> None:
    @tool
    async def count(by: int) -> ToolResult[Counted]:
        """Count on."""
        return ToolResult("counted", Counted(by))

    def loop(*script: ScriptedReply) -> DurableLoop[str, str]:
        agent = Agent("counter", ScriptedModel([*script, say("done")]), tools=[count])
        return DurableLoop(agent, directory, str, CheckpointTrigger(event_types={Counted}))

    broken = ScriptedReply(fails=(ScriptedError("structural", "the model is broken"),))
    await interrupted(loop(call("count", by=2), broken))
    await loop(call("count", by=3)).execute()
    snapshot = loop().load_checkpoint()
    assert snapshot is not None
    assert snapshot.query(Count).all() == [Count(5)]


@slice_type("journal", kind="log")
@dataclass(frozen=True)
class JournalLine:
    text: str


async def test_a_slice_that_is_a_log_is_restored_and_goes_on(directory: Path) -> None:
    @tool
    async def note(text: str) -> ToolResult[JournalLine]:
        """Note something."""
        return ToolResult("noted", JournalLine(text))

    def loop(*script: ScriptedReply) -> DurableLoop[str, str]:
        agent = Agent("clerk", ScriptedModel([*script, say("done")]), tools=[note])
        return DurableLoop(agent, directory, str, CheckpointTrigger(event_types={JournalLine}))

    broken = ScriptedReply(fails=(ScriptedError("structural", "the model is broken"),))
    await interrupted(loop(call("note", text="one"), broken))
    await loop(call("note", text="two")).execute()
    snapshot = loop().load_checkpoint()
    assert snapshot is not None
    assert snapshot.query(JournalLine).all() == [JournalLine("one"), JournalLine("two")]


# Core Concepts: Incomplete Execution Detection


async def test_an_execution_is_incomplete_from_its_request_on_until_it_has_a_result(
    directory: Path,
) -> None:
    """The specification counts from the first checkpoint on: what came before it was lost."""
    assert not loop_in(directory).is_incomplete
    await interrupted(loop_in(directory, 2, lambda _: True))
    assert loop_in(directory).load_checkpoint() is None
    assert loop_in(directory).is_incomplete
    await interrupted(loop_in(directory, 2, has_done(1)))
    assert loop_in(directory).is_incomplete
    await loop_in(directory).execute()
    assert not loop_in(directory).is_incomplete


# MainLoop Integration: Fresh Execution Flow


def files(directory: Path, pattern: str = "*") -> list[str]:
    return sorted(path.name for path in directory.glob(pattern))


async def test_a_fresh_execution_leaves_nothing_of_the_one_before(directory: Path) -> None:
    first = await loop_in(directory).execute("go")
    await interrupted(loop_in(directory, 2, lambda _: True), "go again")
    loop = loop_in(directory)
    assert files(directory) == ["lock", "progress.json", "request.json"]
    assert (loop.load_request(), loop.load_checkpoint()) == ("go again", None)
    second = await loop.execute()
    assert second.session_id != first.session_id
    assert second.attempts == 2


async def test_what_an_agent_fails_with_is_raised_and_its_checkpoint_kept(directory: Path) -> None:
    with pytest.raises(SessionError, match="SCRIPTED: the model is broken"):
        await loop_in(directory, 2, has_done(1)).execute("go")
    assert done(loop_in(directory)) == ["step 1"]


async def test_an_execution_that_is_cancelled_goes_on_later(directory: Path) -> None:
    loop = loop_in(directory, 2, has_done(1))
    execution = asyncio.create_task(loop.execute("go"))
    await asyncio.sleep(0)
    execution.cancel()
    with pytest.raises(asyncio.CancelledError):
        await execution
    assert loop.is_incomplete
    assert (await loop_in(directory).execute()).output == "done"


# MainLoop Integration: Resume Execution Flow


async def test_a_resumption_has_the_state_and_a_new_conversation_with_the_same_request(
    directory: Path,
) -> None:
    await interrupted(loop_in(directory, 3, has_done(1)))
    asked: list[ModelRequest] = []

    def note(request: ModelRequest) -> bool:
        asked.append(request)
        return False

    await loop_in(directory, 3, note).execute()
    [message] = asked[0].view.messages[:1]
    assert isinstance(message, UserMessage)
    assert text_of(message.content) == "go"
    assert "- ✓ 1. step 1" in asked[0].tail


async def test_a_resumption_goes_on_with_checkpoints(directory: Path) -> None:
    await interrupted(loop_in(directory, 3, has_done(1)))
    await interrupted(loop_in(directory, 3, has_done(2)))
    assert done(loop_in(directory)) == ["step 1", "step 2"]
    assert (await loop_in(directory, 3).execute()).attempts == 3


async def test_no_request_means_the_one_that_is_incomplete(directory: Path) -> None:
    await interrupted(loop_in(directory, 2, has_done(1)))
    assert (await loop_in(directory).execute()).output == "done"


async def test_another_request_is_refused_while_one_is_incomplete(directory: Path) -> None:
    """The specification resumes the old work with the new request."""
    await interrupted(loop_in(directory, 2, has_done(1)))
    with pytest.raises(ExecutionIncomplete, match=r"clear\(\) gives it up"):
        await loop_in(directory).execute("something else")
    assert done(loop_in(directory)) == ["step 1"]
    loop_in(directory).clear()
    assert (await loop_in(directory).execute("something else")).attempts == 1


async def test_a_request_that_was_completed_is_not_worked_off_again(directory: Path) -> None:
    """The specification begins it anew, also where only its answer was lost on the way."""
    first = await loop_in(directory).execute("go")
    asked = answers_of(loop_in(directory))
    assert await loop_in(directory).execute("go") == first
    assert await loop_in(directory).execute() == first
    assert answers_of(loop_in(directory)) == asked


async def test_without_anything_to_go_on_with_a_request_has_to_be_given(directory: Path) -> None:
    with pytest.raises(InvalidInput, match="there is nothing to go on with"):
        await loop_in(directory).execute()
    assert not loop_in(directory).is_incomplete


# MainLoop Integration: Checkpoint Observer


async def test_the_value_that_a_tool_returned_is_what_the_trigger_looks_at(directory: Path) -> None:
    seen: list[object] = []

    def look(event: object) -> bool:
        seen.append(event)
        return False

    trigger = CheckpointTrigger(event_types={object}, predicate=look)
    await loop_in(directory, 1, trigger=trigger).execute("go")
    kinds = [type(each) for each in dict.fromkeys(seen)]
    assert kinds == [SetupPlan, Finding, UpdateStep]


async def test_a_checkpoint_is_on_the_disk_before_the_model_is_asked_again(directory: Path) -> None:
    kept: list[list[str]] = []

    def look(request: ModelRequest) -> bool:
        if "- ✓" in request.tail:
            kept.append(done(loop_in(directory)))
        return False

    await loop_in(directory, 2, look).execute("go")
    assert kept == [["step 1"], ["step 1"], ["step 1", "step 2"]]


async def test_a_milestone_in_a_transaction_is_a_checkpoint(directory: Path) -> None:
    @tool(transactional=True)
    async def book(ctx: Context) -> ToolResult[ChapterReached]:
        """Book a seat."""
        await ctx.tx.execute("CREATE TABLE seats (seat TEXT)")
        ctx.session.mutate(Finding).append(Finding("seat"))
        return ToolResult("booked", ChapterReached(1))

    agent = Agent("booker", ScriptedModel([call("book"), say("done")]), tools=[book])
    loop = DurableLoop(agent, directory, str, CheckpointTrigger(event_types={ChapterReached}))
    await loop.execute("go")
    snapshot = loop.load_checkpoint()
    assert snapshot is not None
    assert snapshot.query(Finding).all() == [Finding("seat")]


# Prompt Design for Recovery


async def test_a_prompt_of_sections_shows_what_was_done_without_being_told_of_a_resumption(
    directory: Path,
) -> None:
    def progress(ctx: PromptContext) -> str:
        found = ctx.session.query(Finding).all()
        return "\n".join(f"- found at {each.title}" for each in found) or "No progress yet."

    sections = [
        Section("objective", "Work on $objective.", title="Objective"),
        Section("progress", progress, title="Found so far"),
    ]
    told: list[str] = []

    def note(request: ModelRequest) -> bool:
        told.append(request.instructions)
        return "found at step 1" in request.instructions and "- ✓ 1" in request.tail

    prompt = PromptTemplate(sections, params={"objective": "the tea"})

    def loop(fails: Any) -> DurableLoop[str, str]:
        agent = worker(effect_file(directory), 2, fails, instructions=prompt)
        return DurableLoop(agent, directory, str)

    await interrupted(loop(note))
    before, last = told[0], told[-1]
    assert "Work on the tea." in before
    assert "No progress yet." in before
    assert "found at step 1" in last

    told.clear()
    await loop(noting(told, lambda request: request.instructions)).execute()
    assert told[0] == last  # a fresh start and a resumption are one path


async def test_progress_says_that_there_is_no_plan_or_what_is_done_and_what_remains(
    directory: Path,
) -> None:
    told: list[str] = []
    loop = loop_in(directory, 2, noting(told, lambda request: request.tail))
    await loop.execute("go")
    assert NO_PLAN in told[0]
    assert "**Objective**: work" in told[1]
    assert "**Remaining:**\n- 1. step 1 (pending)\n- 2. step 2 (pending)" in told[1]
    assert "**Completed:**\n- ✓ 1. step 1" in told[-2]


def test_progress_can_be_a_section_of_ones_own_prompt() -> None:
    template = PromptTemplate([Section("progress", ProgressSection(), tail=True)])
    assert Agent("a", ScriptedModel([]), instructions=template).prompt is not None


# Planning Tools: Critical for Recovery


def test_an_agent_that_plans_is_told_to_and_what_it_loses_without() -> None:
    told = Planning("plan-act-reflect").instructions
    assert "call `planning_setup_plan` with the objective" in told
    assert "Progress is saved whenever a step is done." in told
    assert "Work without a plan has no such points" in told
    assert "Reflect: compare what came of it" in told
    assert all(word in told for word in ("meaningful", "resumable", "atomic"))


def test_the_page_says_of_what_kind_steps_should_be() -> None:
    page = PAGE.read_text("utf-8")
    for word in ("meaningful", "resumable", "atomic"):
        assert f"**{word.capitalize()}**" in page


async def test_without_a_plan_there_is_no_checkpoint_and_the_work_begins_anew(
    directory: Path,
) -> None:
    broken = ScriptedReply(fails=(ScriptedError("structural", "the model is broken"),))
    await interrupted(DurableLoop(Agent("a", ScriptedModel([broken])), directory, str))
    assert loop_in(directory).load_checkpoint() is None
    answer = await DurableLoop(Agent("a", ScriptedModel([say("done")])), directory, str).execute()
    assert answer.output == "done"


# Storage Model


async def test_the_files_have_the_names_that_the_specification_gives_them(directory: Path) -> None:
    await loop_in(directory).execute("go")
    assert {"request.json", "checkpoint.json", "completed"} <= set(files(directory))


@dataclass(frozen=True)
class Review:
    path: str
    strict: bool = True


async def test_a_request_is_loaded_as_a_value_of_its_type(directory: Path) -> None:
    def loop(fails: Any, **options: Any) -> DurableLoop[Review, str]:
        return DurableLoop(worker(effect_file(directory), 1, fails), directory, Review, **options)

    await interrupted(loop(lambda _: True), Review("tax.py"))
    assert loop(None).load_request() == Review("tax.py")
    said: list[ModelRequest] = []
    message = loop(noting(said, lambda request: request), message=lambda r: f"See {r.path}.")
    assert (await message.execute(Review("tax.py"))).output == "done"
    first = said[0].view.messages[0]
    assert isinstance(first, UserMessage)
    assert text_of(first.content) == "See tax.py."


async def test_a_request_of_another_type_is_refused_before_anything_is_written(
    directory: Path,
) -> None:
    loop: DurableLoop[Any, str] = DurableLoop(worker(effect_file(directory)), directory, Review)
    with pytest.raises(InvalidInput, match="the request is no Review"):
        await loop.execute({"paht": "tax.py"})
    assert everything(directory) == ""


@dataclass(frozen=True)
class WiderReview:
    path: str
    strict: bool = True
    depth: int = 1


@dataclass(frozen=True)
class OtherReview:
    files: list[str]


async def test_a_request_whose_type_has_changed_is_the_same_or_is_told(directory: Path) -> None:
    await interrupted(
        DurableLoop(worker(effect_file(directory), 1, lambda _: True), directory, Review),
        Review("tax.py"),
    )
    other = DurableLoop(worker(effect_file(directory), 1), directory, OtherReview)
    with pytest.raises(RequestChanged, match="the request that was saved is no OtherReview"):
        await other.execute()
    assert other.is_incomplete
    wider = DurableLoop(worker(effect_file(directory), 1), directory, WiderReview)
    with pytest.raises(ExecutionIncomplete):
        await wider.execute(WiderReview("tax.py", depth=2))
    assert (await wider.execute(WiderReview("tax.py"))).output == "done"


async def test_to_clear_removes_the_execution_and_no_other_file(directory: Path) -> None:
    await interrupted(loop := loop_in(directory, 2, has_done(1)))
    (directory / "notes.txt").write_text("mine")
    (directory / "old").mkdir()
    loop.clear()
    assert files(directory) == ["lock", "notes.txt", "old"]
    assert not loop.is_incomplete
    loop.clear()


async def test_the_last_few_checkpoints_are_kept(directory: Path) -> None:
    await loop_in(directory, 5, keep=3).execute("go")
    kept = files(directory, "checkpoint*")
    assert kept == ["checkpoint.1.json", "checkpoint.2.json", "checkpoint.json"]
    assert len(done(loop_in(directory))) == 5

    await loop_in(directory, 3, keep=1).execute("again")
    assert files(directory, "checkpoint*") == ["checkpoint.json"]


# Workspace Considerations


async def test_a_tools_typed_result_is_in_the_session_when_it_goes_on(directory: Path) -> None:
    await interrupted(loop_in(directory, 2, has_done(1)))
    kept: list[list[Finding]] = []

    @tool
    async def look(ctx: Context) -> str:
        """Look at what is there."""
        kept.append(ctx.session.query(Finding).all())
        return "seen"

    agent = Agent("looker", ScriptedModel([call("look"), say("done")]), tools=[look])
    await DurableLoop(agent, directory, str).execute()
    assert kept == [[Finding("step 1")]]


async def test_what_a_tool_shows_the_model_and_what_it_keeps_are_two_things(
    directory: Path,
) -> None:
    told: list[Message] = []
    loop = loop_in(directory, 1, noting(told, lambda request: request.view.messages[-1]))
    await loop.execute("go")
    [results] = [message for message in told[2:3] if isinstance(message, ToolOutputs)]
    assert [result.text for result in results.results] == ["worked on step 1"]
    snapshot = loop.load_checkpoint()
    assert snapshot is not None
    assert snapshot.query(Finding).all() == [Finding("step 1")]


# Deadline as Retry Bound


async def test_only_the_deadline_bounds_how_often_it_goes_on(directory: Path) -> None:
    for _ in range(12):
        await interrupted(loop_in(directory, 2, has_done(1), deadline=timedelta(hours=1)))
    result = await loop_in(directory).execute()
    assert (result.output, result.attempts) == ("done", 13)


async def test_after_the_deadline_nothing_is_tried(directory: Path) -> None:
    clock = ManualClock()
    await interrupted(loop_in(directory, 2, has_done(1), deadline=60.0, clock=clock))
    asked = answers_of(loop_in(directory))
    clock.advance(60_001)
    for request in (None, "go"):
        with pytest.raises(DeadlineExceeded, match="the deadline of the execution"):
            await loop_in(directory, clock=clock).execute(request)
    assert answers_of(loop_in(directory)) == asked
    assert loop_in(directory).is_incomplete
    assert done(loop_in(directory)) == ["step 1"]


async def test_a_crash_renews_no_deadline(directory: Path) -> None:
    clock = ManualClock()
    await interrupted(loop_in(directory, 2, has_done(1), deadline=60.0, clock=clock))
    clock.advance(60_001)
    with pytest.raises(DeadlineExceeded):
        await loop_in(directory, deadline=timedelta(days=7), clock=clock).execute()


async def test_the_deadline_ends_what_is_under_way(directory: Path) -> None:
    @tool
    async def dawdle() -> str:
        """Take long."""
        await asyncio.sleep(600)
        return "at last"

    agent = Agent("dawdler", ScriptedModel([call("dawdle")]), tools=[dawdle])
    with pytest.raises(DeadlineExceeded):
        await DurableLoop(agent, directory, str, deadline=0.2).execute("go")


async def test_a_deadline_that_passes_before_the_agent_has_begun_is_one(directory: Path) -> None:
    clock = ManualClock()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        clock.advance(60_001)
        yield

    loop = loop_in(directory, deadline=60.0, clock=clock, deps=slow)
    with pytest.raises(DeadlineExceeded):
        await loop.execute("go")
    assert answers_of(loop) == 0


async def test_a_deadline_may_be_an_instant(directory: Path) -> None:
    past = loop_in(directory, deadline=datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(DeadlineExceeded):
        await past.execute("go")
    assert answers_of(past) == 0
    past.clear()
    assert (
        await loop_in(directory, deadline=datetime(9999, 1, 1, tzinfo=UTC)).execute("go")
    ).output


async def test_a_crash_renews_neither_usage_nor_attempts_nor_the_session(directory: Path) -> None:
    undisturbed = await loop_in(directory.with_name("other")).execute("go")
    await interrupted(loop_in(directory, 2, has_worked_on("step 2")))
    found = json.loads((directory / "progress.json").read_text())["body"]
    assert found["attempts"] == 1
    result = await loop_in(directory).execute()
    assert result.attempts == 2
    assert result.usage.output_tokens == undisturbed.usage.output_tokens + 1  # step 2 was repeated
    assert found["execution"]["session_id"] == result.session_id


async def test_a_failure_before_the_first_checkpoint_is_raised_and_begun_anew_later(
    directory: Path,
) -> None:
    """The specification cannot go on with it: the request would have to be brought again."""
    await interrupted(loop_in(directory, 2, has_worked_on("step 1")))
    assert (await loop_in(directory).execute()).output == "done"
    assert effects_of(loop_in(directory)) == ["step 1", "step 1", "step 2"]


# Limitations


async def test_a_second_execution_at_once_is_refused(directory: Path) -> None:
    both = (loop_in(directory).execute("go"), loop_in(directory).execute("go"))
    results = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(each).__name__ for each in results) == [
        "ExecutionResult",
        "ExecutionRunning",
    ]
    assert effects_of(loop_in(directory)) == ["step 1", "step 2"]


async def test_the_loops_own_second_execution_at_once_is_refused_and_so_is_a_clear(
    directory: Path,
) -> None:
    refused: list[str] = []

    def again(_: ModelRequest) -> bool:
        with pytest.raises(ExecutionRunning):
            loop.clear()
        refused.append("clear")
        return False

    loop = loop_in(directory, 1, again)
    await loop.execute("go")
    assert refused


STAYS = """
import asyncio, sys
from outlast import Agent, tool
from outlast.milestones import DurableLoop
from outlast.testing import ScriptedModel, call

@tool
async def stay() -> str:
    print("here", flush=True)
    await asyncio.sleep(600)
    return ""

agent = Agent("stayer", ScriptedModel([call("stay")]), tools=[stay])
asyncio.run(DurableLoop(agent, sys.argv[1], str).execute("go"))
"""


async def test_a_second_worker_is_refused_for_as_long_as_the_first_one_lives(
    directory: Path,
) -> None:
    first = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STAYS, str(directory), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert first.stdout is not None
        assert await first.stdout.readline() == b"here\n"
        with pytest.raises(ExecutionRunning, match="another execute"):
            await loop_in(directory).execute()
        with pytest.raises(ExecutionRunning):
            loop_in(directory).clear()
        assert loop_in(directory).is_incomplete
    finally:
        first.kill()
        await first.wait()
    assert (await loop_in(directory).execute()).output == "done"


async def test_a_step_that_a_crash_cut_off_is_done_again_from_its_start(directory: Path) -> None:
    await interrupted(loop_in(directory, 2, has_worked_on("step 2")))
    await loop_in(directory).execute()
    assert effects_of(loop_in(directory)) == ["step 1", "step 2", "step 2"]


async def test_nobody_can_be_asked_and_what_needs_an_approval_is_denied(directory: Path) -> None:
    @tool(approval="always")
    async def pay() -> str:
        """Pay."""
        raise AssertionError

    told: list[ModelRequest] = []
    script = [call("pay"), say("I was not allowed to.")]
    model = ScriptedModel(script, on_request=told.append)
    result = await DurableLoop(Agent("payer", model, tools=[pay]), directory, str).execute("go")
    assert result.output == "I was not allowed to."


async def test_no_two_attempts_have_an_idempotency_key_in_common(directory: Path) -> None:
    """Calls are named after their places, and another attempt may do something else there."""
    keys: list[tuple[str, str]] = []

    @tool
    async def pay(ctx: Context) -> str:
        """Pay."""
        keys.append((ctx.session.id, ctx.idempotency_key))
        return "paid"

    broken = ScriptedReply(fails=(ScriptedError("structural", "the model is broken"),))
    await interrupted(
        DurableLoop(
            Agent("payer", ScriptedModel([call("pay"), broken]), tools=[pay]), directory, str
        )
    )
    again = Agent("payer", ScriptedModel([call("pay"), say("done")]), tools=[pay])
    await DurableLoop(again, directory, str).execute()
    [first, second] = keys
    assert first[0] == second[0]
    assert first[1] != second[1]


# Future Considerations


@slice_type("bulk")
@dataclass(frozen=True)
class Bulk:
    text: str


async def test_a_large_checkpoint_is_compressed(directory: Path) -> None:
    @tool
    async def gather() -> ToolResult[Bulk]:
        """Gather a lot."""
        return ToolResult("gathered", Bulk("tea " * 1_000_000))

    agent = Agent("gatherer", ScriptedModel([call("gather"), say("done")]), tools=[gather])
    loop = DurableLoop(agent, directory, str, CheckpointTrigger(event_types={Bulk}))
    await loop.execute("go")
    assert (directory / "checkpoint.json").stat().st_size < 100_000
    snapshot = loop.load_checkpoint()
    assert snapshot is not None
    assert snapshot.query(Bulk).all() == [Bulk("tea " * 1_000_000)]


async def test_an_execution_goes_on_with_a_state_that_no_message_and_no_other_session_may_have(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Elsewhere these are 32 and 128 MiB, which would take seconds.
    monkeypatch.setattr(state_change, "MAX_MESSAGE", 100_000)
    small = QueueLimits(session=1000, session_bytes=250_000)
    defaults = Outlast.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "queue_limits", small)
    is_broken = [True]

    @tool
    async def gather() -> ToolResult[Bulk]:
        """Gather a lot."""
        return ToolResult("gathered", Bulk("tea " * 50_000))

    def reply(request: ModelRequest) -> ScriptedReply:
        if not is_broken[0]:
            return say("done")
        if len(request.view.messages) > 1:
            raise ScriptedError("structural", "the model is broken")
        return call("gather")

    agent = Agent("gatherer", ScriptedModel(reply), tools=[gather])
    loop = DurableLoop(agent, directory, str, CheckpointTrigger(event_types={Bulk}))
    await interrupted(loop)
    is_broken[0] = False

    assert (await loop.execute()).attempts == 2
    snapshot = loop.load_checkpoint()
    assert snapshot is not None
    assert snapshot.query(Bulk).all() == [Bulk("tea " * 50_000)]


# What a loop is made of


@dataclass(frozen=True)
class Verdict:
    is_good: bool


@dataclass(frozen=True)
class LongVerdict:
    is_good: bool
    reasons: list[str]


def judge(directory: Path, output_type: type[T]) -> DurableLoop[str, T]:
    model = ScriptedModel([call("final_result", is_good=True)])
    return DurableLoop(Agent("judge", model, output_type=output_type), directory, str)


async def test_a_typed_answer_is_kept_as_a_value_of_its_type(directory: Path) -> None:
    assert (await judge(directory, Verdict).execute("Is it good?")).output == Verdict(is_good=True)
    assert (await judge(directory, Verdict).execute()).output == Verdict(is_good=True)
    with pytest.raises(OutputChanged, match="give new fields defaults") as caught:
        await judge(directory, LongVerdict).execute()
    assert caught.value.details["output"] == '{"is_good":true}'


def test_a_loop_may_be_used_from_synchronous_code_again_and_again(directory: Path) -> None:
    loop = loop_in(directory)
    for request in ("one", "another"):
        assert asyncio.run(loop.execute(request)).output == "done"


async def test_tools_have_their_dependencies_once_in_each_attempt(directory: Path) -> None:
    entered = []

    @asynccontextmanager
    async def deps() -> AsyncIterator[str]:
        entered.append("deps")
        yield "deps"

    @tool
    async def look(ctx: Context[str]) -> str:
        """Look."""
        entered.append(f"tool with {ctx.deps}")
        return "seen"

    await interrupted(loop_in(directory, 2, has_done(1)))
    agent = Agent("looker", ScriptedModel([call("look"), say("done")]), tools=[look])
    await DurableLoop(agent, directory, str, deps=deps).execute()
    assert entered == ["deps", "tool with deps"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"agent": "worker"}, "a DurableLoop runs an Agent"),
        ({"trigger": UpdateStep}, "is one such as CheckpointTrigger"),
        ({"keep": 0}, "keep has to be a whole number of 1 or more"),
        ({"schema_change": "guess"}, "schema_change has to be migrate or fresh"),
        ({"deadline": 0}, "deadline of a DurableLoop is more than no time"),
        ({"deadline": datetime(2030, 1, 1)}, "deadline needs a time zone"),  # noqa: DTZ001 - it is said
    ],
)
def test_a_loop_that_cannot_work_is_refused(
    directory: Path, options: dict[str, Any], why: str
) -> None:
    given = {
        "agent": worker(effect_file(directory)),
        "directory": directory,
        "request_type": str,
        **options,
    }
    with pytest.raises(InvalidInput, match=why):
        DurableLoop(**given)


def test_the_trigger_of_a_loop_is_not_its_agents(directory: Path) -> None:
    agent = worker(effect_file(directory))
    before = agent.milestones
    DurableLoop(agent, directory, str, CheckpointTrigger(event_types={SetupPlan}))
    assert agent.milestones is before
    with pytest.raises(InvalidDefinition):
        CheckpointTrigger(event_types=[])
