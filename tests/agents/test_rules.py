"""Policies that refuse calls, feedback while an agent works, and checks before a turn may end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from scene import Watched, agent, at_standstill, log_of, results_of, running, the, types_of

from outlast import Agent, Context, Decision, DedupeKey, Limits, Outlast, ProposedCall, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.message import ModelAnswer, ToolOutputs, UserMessage, text_of
from outlast.errors import InvalidDefinition
from outlast.log.verify import verify
from outlast.rules import (
    Every,
    PolicyCall,
    ReadBeforeWrite,
    Rule,
    SequentialDependency,
    TurnContext,
    completion,
    feedback,
    policy,
)
from outlast.testing.scripted import Script, ScriptedModel, ScriptedReply, calls, say


@tool
async def build() -> str:
    return "built"


@tool(approval="always")
async def deploy() -> str:
    return "deployed"


@tool(readonly=True, reads="path")
async def read(path: str) -> str:
    return f"what is in {path}"


@tool(idempotent=True, writes="path")
async def write(path: str, text: str) -> str:
    return f"wrote {path}"


BUILD_FIRST = SequentialDependency(tool="deploy", after="build")
FILES = [read, write]


def told(message: Any) -> str:
    return text_of(message.content) if isinstance(message, UserMessage) else ""


def by_message(**scripts: list[ScriptedReply]) -> Any:
    """A script for each first message: every lane has a conversation of its own."""

    def script(request: ModelRequest) -> ScriptedReply:
        messages = request.view.messages
        answers = sum(isinstance(each, ModelAnswer) for each in messages)
        return scripts[told(messages[0])][answers]

    return script


# Policies


async def test_a_tool_is_refused_until_another_has_succeeded_and_nobody_is_asked_before() -> None:
    script = [calls(("deploy", {})), calls(("build", {})), calls(("deploy", {})), say("done")]
    async with running(agent(script, tools=[build, deploy], rules=[BUILD_FIRST])) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        await session.answer(request.request_id, "approve")

        assert (await session.wait()).output == "done"
        assert await results_of(session) == [
            "Not run: deploy can be called only after build has succeeded.",
            "built",
            "deployed",
        ]
        [denied] = await the(session, "tool.denied")
        assert denied.data["principal"] == "policy:deploy_after_build"
        assert len(await the(session, "request.opened")) == 1
        assert not await verify(app.store, session.id)


async def test_a_call_that_failed_is_no_success() -> None:
    @tool(name="build")
    async def broken() -> str:
        raise ValueError("no compiler")

    script = [calls(("build", {})), calls(("deploy", {})), say("done")]
    async with running(agent(script, tools=[broken, deploy], rules=[BUILD_FIRST])) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == "done"
        assert (await results_of(session))[1].startswith("Not run: ")


async def test_a_success_counts_in_every_lane_and_in_later_turns() -> None:
    @tool(name="deploy")
    async def at_once() -> str:
        return "deployed"

    script = by_message(
        go=[calls(("build", {})), say("built")], release=[calls(("deploy", {})), say("done")]
    )
    async with running(agent(script, tools=[build, at_once], rules=[BUILD_FIRST])) as app:
        session = await app.start("a", "go")
        await session.wait()
        receipt = await session.send("release", lane="other")

        assert (await receipt.result()).output == "done"
        assert not await the(session, "tool.denied")


async def test_a_call_that_is_not_made_twice_counts_as_a_success_in_each_session() -> None:
    @tool(name="build", idempotency_key=DedupeKey(lambda args: "once", "tenant"))
    async def shared() -> str:
        return "built"

    @tool(name="deploy")
    async def at_once() -> str:
        return "deployed"

    def script(request: Any) -> Any:
        made = sum(isinstance(each, ToolOutputs) for each in request.view.messages)
        return [calls(("build", {})), calls(("deploy", {})), say("done")][made]

    async with running(agent(script, tools=[shared, at_once], rules=[BUILD_FIRST])) as app:
        for _ in range(2):
            session = await app.start("a", "go")
            assert (await session.wait()).output == "done"
            assert await results_of(session) == ["built", "deployed"]
            assert not await verify(app.store, session.id)


async def test_what_was_not_read_is_not_written() -> None:
    script = [
        calls(("write", {"path": "a", "text": "1"})),
        calls(("read", {"path": "a"}), ("write", {"path": "a", "text": "2"})),
        calls(("write", {"path": "a", "text": "3"}), ("write", {"path": "b", "text": "4"})),
        say("done"),
    ]
    async with running(agent(script, tools=FILES, rules=[ReadBeforeWrite()])) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == "done"
        refused = "Not run: write would write {}, which must be read first."
        assert await results_of(session) == [
            refused.format("a"),
            "what is in a",
            refused.format("a"),  # the model had not seen it when it asked for this
            "wrote a",
            refused.format("b"),
        ]


async def test_a_new_resource_can_be_written_and_is_known_from_then_on(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("old")

    @tool(name="write", idempotent=True, writes=lambda args: args["path"])
    def write_file(path: str, text: str) -> str:
        Path(path).write_text(text)
        return "wrote"

    def write_to(path: Path) -> Any:
        return calls(("write", {"path": str(path), "text": "x"}))

    def is_there(path: str) -> bool:
        return Path(path).exists()

    script = [write_to(new), write_to(new), write_to(old), say("done")]
    rule = ReadBeforeWrite(exists=is_there)
    async with running(agent(script, tools=[read, write_file], rules=[rule])) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == "done"
        results = await results_of(session)
        assert results[:2] == ["wrote", "wrote"]
        assert results[2].startswith("Not run: ")
        assert old.read_text() == "old"


async def test_what_another_lane_wrote_has_to_be_read_again() -> None:
    def change(text: str) -> Any:
        return calls(("write", {"path": "a", "text": text}))

    reads = calls(("read", {"path": "a"}))
    script = by_message(
        go=[reads, say("1"), change("y"), say("3")], other=[reads, change("x"), say("2")]
    )
    async with running(agent(script, tools=FILES, rules=[ReadBeforeWrite()])) as app:
        session = await app.start("a", "go")
        await session.wait()
        await (await session.send("other", lane="other")).result()
        await session.send("write")
        await session.wait()

        [denied] = await the(session, "tool.denied")
        assert denied.lane == "main"
        assert "a, which must be read first" in denied.data["reason"]


async def test_a_policy_sees_the_call_the_session_and_the_arguments_that_a_hook_has_left() -> None:
    class Mood(Struct, frozen=True):
        word: str

    @tool(reads=["a", "b"])
    async def compare(ctx: Context[Any], a: str, b: list[str], c: str | None = None) -> str:
        ctx.session.mutate(Mood).seed(Mood("good"))
        return "same"

    @asynccontextmanager
    async def deps() -> AsyncIterator[str]:
        yield "tools"

    seen: list[PolicyCall] = []

    @policy(tools=["compare"])
    def look(call: PolicyCall) -> str | None:
        seen.append(call)
        return None

    one = agent(
        [
            calls(("compare", {"a": "x", "b": ["y"]})),
            calls(("compare", {"a": "x", "b": []})),
            say(""),
        ],
        tools=[compare, build],
        rules=[look],
    )
    app = Outlast([one], store="memory://", deps=deps)

    @app.hook("tool.requested", decides=True)
    def widen(call: ProposedCall) -> Decision | None:
        return Decision.change({"a": "x", "b": ["y", "z"]}) if call.args["b"] else None

    async with app:
        session = await app.start("a", "go", principal="ada")
        await session.wait()

        first, second = seen
        assert (first.tool, first.args["b"], first.reads) == (
            "compare",
            ["y", "z"],
            ("x", "y", "z"),
        )
        assert (first.writes, first.succeeded, first.known) == ((), frozenset(), frozenset())
        assert first.session.principal == "ada"
        assert first.session.query(Mood).latest() is None
        assert first.deps == "tools"
        assert second.succeeded == {"compare"}
        assert second.known == {"x", "y", "z"}
        assert second.session.query(Mood).latest() == Mood("good")


async def hang(call: Any) -> str | None:
    await asyncio.Event().wait()
    return None


async def ignores_cancels(call: Any) -> str | None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
            return None


def leaves(call: Any) -> str | None:
    raise SystemExit(3)


async def leaves_the_loop(call: Any) -> str | None:
    raise SystemExit(3)


async def cancels_itself(call: Any) -> str | None:
    raise asyncio.CancelledError


def says_yes(call: Any) -> Any:
    return True


def says_nothing(call: Any) -> str | None:
    return " "


def breaks(call: Any) -> str | None:
    raise KeyError("stock")


UNFIT = [
    (hang, "took longer than 0.05 seconds"),
    (ignores_cancels, "took longer than 0.05 seconds"),
    (leaves, "failed: SystemExit: 3"),
    (leaves_the_loop, "failed: SystemExit: 3"),
    (cancels_itself, "has cancelled itself"),
    (says_yes, "returned True, and not a sentence or None"),
    (says_nothing, "returned ' ', and not a sentence or None"),
    (breaks, "failed: KeyError: 'stock'"),
]


@pytest.mark.parametrize(("function", "why"), UNFIT)
async def test_a_policy_that_fails_refuses_the_call(function: Any, why: str) -> None:
    rule = policy(timeout=0.05)(function)
    script = [calls(("build", {})), say("done")]
    async with running(agent(script, tools=[build], rules=[rule])) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == "done"
        [denied] = await the(session, "tool.denied")
        assert denied.data["reason"] == f"the policy {function.__name__} {why}"
        assert denied.data["principal"] == f"policy:{function.__name__}"


async def test_a_policy_that_is_not_async_runs_in_a_thread() -> None:
    where: list[bool] = []

    @policy
    def look(call: PolicyCall) -> str | None:
        where.append(threading.current_thread() is threading.main_thread())
        return None

    @policy(name="async")
    async def look_on(call: PolicyCall) -> str | None:
        where.append(threading.current_thread() is threading.main_thread())
        return None

    script = [calls(("build", {})), say("done")]
    async with running(agent(script, tools=[build], rules=[look, look_on])) as app:
        await (await app.start("a", "go")).wait()

    assert where == [False, True]


class Twice(Struct):
    """A policy with a state of its own: a small class is enough."""

    name: str = "twice"

    async def refuse(self, call: PolicyCall) -> str | None:
        return "no more builds" if "build" in call.succeeded else None


async def test_the_first_policy_that_refuses_gives_the_reason() -> None:
    @policy
    async def never(call: PolicyCall) -> str | None:
        return "never" if call.succeeded else None

    script = [calls(("build", {})), calls(("build", {})), say("done")]
    async with running(agent(script, tools=[build], rules=[Twice(), never])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert (await results_of(session))[1] == "Not run: no more builds."


# Feedback


def nudges(model: Watched) -> list[str]:
    return [text for seen in model.seen if (text := told(seen[-1])).startswith("Feedback")]


def watched(script: Script, **options: Any) -> tuple[Watched, Agent[Any, Any]]:
    model = Watched(script)
    return model, Agent("a", model, **options)


async def test_feedback_comes_every_so_many_calls_and_the_model_is_told_once() -> None:
    @feedback(every=Every(calls=2))
    def stay(turn: TurnContext) -> str | None:
        return f"{turn.calls} calls so far"

    one, two = calls(("build", {})), calls(("build", {}), ("build", {}))
    model, it = watched([one, one, one, two, say("1"), one, say("2")], tools=[build], rules=[stay])
    async with running(it) as app:
        session = await app.start("a", "go")
        await session.wait()
        await session.send("go on")
        await session.wait()

        assert nudges(model) == [
            "Feedback (stay): 2 calls so far",
            "Feedback (stay): 5 calls so far",
        ]
        given = await the(session, "feedback.given")
        assert [(each.turn, each.step, each.data["name"]) for each in given] == [
            ("t1", 2, "stay"),
            ("t1", 4, "stay"),
        ]
        assert isinstance(model.seen[2][-2], ToolOutputs)
        assert not await verify(app.store, session.id)


async def test_feedback_by_time_counts_within_a_turn_by_the_stores_clock() -> None:
    spans = iter([20_000, 45_000, 10_000, 70_000])

    @feedback(every=Every(seconds=60))
    async def hurry(turn: TurnContext) -> str | None:
        return f"{turn.elapsed.total_seconds():g} s"

    moved: list[Any] = []

    @tool
    async def work() -> str:
        moved[0].advance(next(spans))
        return "worked"

    one = calls(("work", {}))
    model, it = watched([one, one, say("1"), one, one, say("2")], tools=[work], rules=[hurry])
    async with at_standstill(it) as (app, clock):
        moved.append(clock)
        session = await app.start("a", "go")
        await session.wait()
        clock.advance(3_600_000)
        await session.send("go on")
        await session.wait()

        assert nudges(model) == ["Feedback (hurry): 65 s", "Feedback (hurry): 80 s"]


async def test_feedback_that_has_nothing_to_say_or_fails_is_no_message_and_comes_again() -> None:
    @feedback(every=Every(calls=1))
    def quiet(turn: TurnContext) -> str | None:
        return None

    @feedback(every=Every(calls=2))
    def broken(turn: TurnContext) -> str | None:
        raise KeyError("stock")

    one = calls(("build", {}))
    model, it = watched([one, one, one, say("done")], tools=[build], rules=[quiet, broken])
    async with running(it) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == "done"
        assert nudges(model) == []
        skipped = [
            event
            for event in await log_of(session, internals=True)
            if event.type == "feedback.skipped"
        ]
        assert [each.data["name"] for each in skipped] == ["quiet", "quiet", "broken", "quiet"]
        assert skipped[2].data["error"] == {
            "code": "RULE_FAILED",
            "message": "the feedback broken failed: KeyError: 'stock'",
        }


# Completion


async def test_a_turn_ends_only_when_its_checkers_agree() -> None:
    seen: list[TurnContext] = []

    @completion
    def built(turn: TurnContext) -> str | None:
        seen.append(turn)
        return None if "build" in turn.succeeded else "nothing was built"

    @completion
    async def long_enough(turn: TurnContext) -> str | None:
        return None if len(turn.text) > 5 else "say more"

    script = [say("Done."), calls(("build", {})), say("Built, and done.")]
    model, it = watched(script, tools=[build], rules=[built, long_enough])
    async with running(it) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == "Built, and done."
        [refused] = await the(session, "completion.refused")
        assert refused.data == {
            "reasons": {"built": "nothing was built", "long_enough": "say more"},
            "number": 1,
        }
        assert (refused.turn, refused.step) == ("t1", 1)
        assert told(model.seen[1][-1]) == (
            "You are not done yet. Go on, and answer again when this is settled:\n"
            "- built: nothing was built\n"
            "- long_enough: say more"
        )
        first, last = seen
        assert (first.text, first.output, first.calls, first.refusals) == ("Done.", "Done.", 0, 0)
        assert (last.text, last.step, last.calls, last.refusals) == ("Built, and done.", 3, 1, 1)
        kinds = [event.type for event in await log_of(session, internals=True)]
        assert kinds.index("completion.accepted") < kinds.index("turn.completed")
        assert not await verify(app.store, session.id)


async def test_a_typed_answer_is_checked_as_a_value() -> None:
    @completion
    async def even(turn: TurnContext) -> str | None:
        return f"{turn.output} is odd" if turn.output % 2 else None

    def answer(value: int) -> Any:
        return calls(("final_result", {"value": value}))

    model = Watched([answer(3), answer(4)])
    async with running(Agent("a", model, output_type=int, rules=[even])) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == 4
        outputs, note = model.seen[1][-2:]
        assert isinstance(outputs, ToolOutputs)
        assert "even: 3 is odd" in told(note)


async def test_a_turn_whose_answers_are_refused_too_often_fails_and_can_be_retried() -> None:
    is_mended: list[bool] = []

    @completion
    async def never(turn: TurnContext) -> str | None:
        return None if is_mended else "not yet"

    it = agent([say("1"), say("2"), say("3")], rules=[never], limits=Limits(max_refusals=1))
    async with running(it) as app:
        session = await app.start("a", "go")

        failed = await session.wait()
        assert failed.error is not None
        assert failed.error.code == "COMPLETION_REFUSED"
        assert "2 answers" in failed.error.message
        assert "never" in failed.error.message
        refused = await the(session, "completion.refused")
        assert [each.data["number"] for each in refused] == [1, 2]
        assert not await verify(app.store, session.id)

        is_mended.append(True)
        await session.retry()
        assert (await session.wait()).output == "3"


@pytest.mark.parametrize(("function", "why"), UNFIT)
async def test_a_checker_that_fails_lets_no_turn_end(function: Any, why: str) -> None:
    rule = completion(timeout=0.05)(function)
    it = agent([say("done")], rules=[rule], limits=Limits(max_refusals=0))
    async with running(it) as app:
        session = await app.start("a", "go")

        failed = await session.wait()
        assert failed.error is not None
        assert failed.error.code == "COMPLETION_REFUSED"
        [refused] = await the(session, "completion.refused")
        reason = f"it could not be checked: the checker {why}"
        assert refused.data["reasons"] == {function.__name__: reason}


async def test_a_turn_can_be_cancelled_while_its_end_is_checked() -> None:
    is_checking = asyncio.Event()

    @completion
    async def slow(turn: TurnContext) -> str | None:
        is_checking.set()
        return await hang(turn)

    async with running(agent([say("done")], rules=[slow])) as app:
        session = await app.start("a", "go")
        await is_checking.wait()
        await session.cancel("never mind")

        assert (await session.wait()).status == "cancelled"
        assert not await verify(app.store, session.id)


async def test_a_message_that_comes_during_a_check_does_not_begin_it_anew() -> None:
    is_checking, may_end = asyncio.Event(), asyncio.Event()
    checks: list[str] = []

    @completion
    async def slow(turn: TurnContext) -> str | None:
        checks.append(turn.turn)
        is_checking.set()
        await may_end.wait()
        return None

    async with running(agent([say("1"), say("2")], rules=[slow])) as app:
        session = await app.start("a", "go")
        await is_checking.wait()
        receipt = await session.send("and this")
        may_end.set()
        assert (await receipt.result()).output == "2"

        assert checks == ["t1", "t2"]
        assert "completion.refused" not in await types_of(session)


# Definitions


class Nameless:
    def refuse(self, call: PolicyCall) -> None: ...


BAD: list[tuple[Any, str]] = [
    ([build], "is no rule of agent a"),
    ([Nameless()], "is no rule of agent a"),
    ([ReadBeforeWrite], "is no rule of agent a"),
    (BUILD_FIRST, "have to be given in a list"),
    ([SequentialDependency(tool="ship", after="build")], "names ship, and agent a has the tools"),
    ([SequentialDependency(tool="deploy", after="x")], "names x, and agent a has the tools"),
    ([policy(tools=["ship"])(breaks)], "names ship, and agent a has the tools"),
    ([BUILD_FIRST, BUILD_FIRST], "two rules named deploy_after_build"),
    (
        [BUILD_FIRST, SequentialDependency(tool="build", after=["deploy"])],
        "could never be called: it must come after itself",
    ),
    ([ReadBeforeWrite()], "no tool of agent a says what it writes"),
]


@pytest.mark.parametrize(("rules", "why"), BAD)
def test_rules_that_cannot_be_are_refused(rules: Any, why: str) -> None:
    with pytest.raises(InvalidDefinition, match=why):
        Agent("a", ScriptedModel([]), tools=[build, deploy], rules=rules)


def test_settings_of_rules_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidDefinition, match="is never"):
        Every()
    with pytest.raises(InvalidDefinition, match="seconds of Every"):
        Every(seconds=-1)
    with pytest.raises(InvalidDefinition, match="comes every Every"):
        feedback(every=3)(breaks)  # type: ignore[arg-type]
    with pytest.raises(InvalidDefinition, match="timeout of breaks"):
        completion(timeout=0)(breaks)
    with pytest.raises(InvalidDefinition, match="stands above a function"):
        policy("x")  # type: ignore[call-overload]
    with pytest.raises(InvalidDefinition, match="is no async function"):
        Agent("a", ScriptedModel([]), tools=FILES, rules=[ReadBeforeWrite(exists=hang)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("file", "reads of look names file, and its arguments are path"),
        (["path", 3], "reads of look names arguments, or is a function of them"),
        (hang, "no async one"),
    ],
)
def test_resources_that_cannot_be_are_refused(given: Any, why: str) -> None:
    with pytest.raises(InvalidDefinition, match=why):

        @tool(reads=given)
        def look(path: str) -> str:
            return path


async def test_a_resource_that_is_no_text_is_the_tools_own_failure() -> None:
    @tool(writes=lambda args: {"path": args["path"]})
    async def put(path: str) -> str:
        return "put"

    script = [calls(("put", {"path": "a"})), say("done")]
    rules: list[Rule] = [ReadBeforeWrite()]
    async with running(agent(script, tools=[put], rules=rules)) as app:
        session = await app.start("a", "go")
        await session.wait()

        [result] = await results_of(session)
        assert "writes of put gave {'path': 'a'}" in result
