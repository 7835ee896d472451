"""Long sessions: what the model is sent of them, and what stays in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from known import known, known_as
from scene import log_of, results_of, running, the, words_of

from outlast import (
    Agent,
    Budget,
    Context,
    ContextPolicy,
    Limit,
    Limits,
    ModelOptions,
    Outlast,
    tool,
)
from outlast.agents.model.client import FinishedAnswer, ModelFailure, ModelRequest
from outlast.core.message import (
    Message,
    ModelAnswer,
    ToolCall,
    ToolOutputs,
    UserMessage,
    text_of,
)
from outlast.core.record import Failure
from outlast.core.result import Usage
from outlast.errors import InvalidDefinition
from outlast.log.verify import verify
from outlast.testing import crash_everywhere
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, calls, say

BYTES = 4


class TooLong(Exception):
    """The provider's own refusal."""


class Sized(ScriptedModel):
    """A model that counts what it is sent, and refuses what is longer than its window."""

    def __init__(
        self, script: Callable[[ModelRequest], ScriptedReply], window: int = 10**9
    ) -> None:
        self.window = window
        self.sizes: list[int] = []
        self.seen: list[list[Message]] = []
        self.refused = 0
        self.summaries: list[str] = []
        super().__init__(script)

    def _reply(self, request: ModelRequest) -> ScriptedReply:
        self.size = size = tokens_of(request)
        if size > self.window:
            self.refused += 1
            raise TooLong(f"{size} tokens are more than {self.window}")
        if request.is_summary:
            self.summaries.append(words_of(request.view.messages[0]))
            return say(f"Summary {len(self.summaries)}.")
        self.sizes.append(size)
        self.seen.append(list(request.view.messages))
        return super()._reply(request)

    async def request(self, request: ModelRequest) -> FinishedAnswer:
        return self._counted(await super().request(request))

    async def stream(self, request: ModelRequest) -> Any:
        async for piece in super().stream(request):
            yield self._counted(piece) if isinstance(piece, FinishedAnswer) else piece

    def _counted(self, answer: FinishedAnswer) -> FinishedAnswer:
        import msgspec

        return msgspec.structs.replace(answer, usage=Usage(self.size, 10))

    def classify(self, error: Exception) -> ModelFailure:
        if isinstance(error, TooLong):
            return ModelFailure("recoverable", Failure("CONTEXT_WINDOW_EXCEEDED", str(error)))
        return super().classify(error)


def tokens_of(request: ModelRequest) -> int:
    return (len(request.instructions) + sum(map(size_of, request.view.messages))) // BYTES


def size_of(message: Message) -> int:
    match message:
        case UserMessage():
            return len(text_of(message.content))
        case ModelAnswer():
            return sum(len(getattr(p, "text", "") or getattr(p, "args", "")) for p in message.parts)
    return sum(len(result.text) for result in message.results)


@tool(readonly=True)
async def look(size: int = 1_000, name: str = "a") -> str:
    return f"<{name}>" + "x" * size + f"</{name}>"


@tool(readonly=True, reads="path")
async def read_file(path: str) -> str:
    return f"{path}: " + "y" * 1_000


def answers(request: ModelRequest) -> ScriptedReply:
    """Look once in every turn, then answer."""
    last = request.view.messages[-1]
    return say("Done.") if isinstance(last, ToolOutputs) else call("look")


def told(messages: list[Message]) -> str:
    parts = []
    for message in messages:
        if isinstance(message, UserMessage):
            parts.append(text_of(message.content))
        elif isinstance(message, ToolOutputs):
            parts += [result.text for result in message.results]
    return "\n".join(parts)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


async def converse(app: Outlast, a: Agent, turns: int) -> Any:
    session = await app.start(a.name, "The first instruction: always be kind.")
    await session.wait()
    for number in range(2, turns + 1):
        receipt = await session.send(f"Message {number}")
        assert (await receipt.result()).output == "Done."
    return session


# The window nears


@pytest.mark.parametrize("summarize", [False, True])
async def test_requests_stay_bounded_and_the_first_instruction_is_in_each(
    summarize: bool,
) -> None:
    model = Sized(answers)
    policy = ContextPolicy(max_tokens=2_000, summarize=summarize, clear=not summarize)
    a = Agent("a", model, tools=[look], context=policy)
    async with running(a) as app:
        session = await converse(app, a, 60)
        done = await the(session, "compaction.completed")
        history = await session.history()
        assert await verify(app.store, session.id) == []

    assert max(model.sizes) < 2_000 + 300
    assert 3 <= len(done) <= 30
    for messages in model.seen:
        assert words_of(messages[0]) == "The first instruction: always be kind."
    # The log and its history stay whole.
    assert sum(isinstance(m, UserMessage) for m in history) == 60
    assert all(
        len(r.text) > 1_000 for m in history if isinstance(m, ToolOutputs) for r in m.results
    )
    if summarize:
        assert len(model.summaries) == len(done)
        assert "Summary" in told(model.seen[-1])


async def test_a_view_is_shortened_seldom_and_by_much() -> None:
    model = Sized(answers)
    a = Agent("a", model, tools=[look], context=ContextPolicy(max_tokens=10_000))
    async with running(a) as app:
        session = await converse(app, a, 60)
        done = await the(session, "compaction.completed")
    assert len(done) <= 4
    for each in done:
        assert each.data["before"] >= 10_000
        assert each.data["tokens"] <= 5_500


async def test_the_same_log_gives_the_same_view_in_another_process(store: str) -> None:
    policy = ContextPolicy(max_tokens=1_500, summarize=True)
    first, second = Sized(answers), Sized(answers)
    async with running(a := Agent("a", first, tools=[look], context=policy), store=store) as app:
        session = await converse(app, a, 12)
    # The other agent has no policy at all: what the model sees is in the log.
    async with running(a := Agent("a", second, tools=[look]), store=store) as app:
        session = await app.session(session.id)
        await (await session.send("Go on")).result()
        [last] = (await the(session, "compaction.completed"))[-1:]
    assert told(second.seen[0]).startswith(told(first.seen[-1]))
    assert last.data["text"] in told(second.seen[0])


@pytest.mark.parametrize("summarize", [False, True])
async def test_a_result_is_never_sent_without_the_call_that_it_answers(summarize: bool) -> None:
    def script(request: ModelRequest) -> ScriptedReply:
        results = sum(isinstance(each, ToolOutputs) for each in request.view.messages)
        return say("Done.") if results else call("look", size=4_000)

    model = Sized(script)
    policy = ContextPolicy(max_tokens=600, target=0.3, summarize=summarize, clear=False)
    a = Agent("a", model, tools=[look], context=policy)
    async with running(a) as app:
        session = await converse(app, a, 1)
        assert await the(session, "compaction.completed")
        assert await verify(app.store, session.id) == []
    assert len(model.seen) == 2
    for messages in model.seen:
        asked = [
            part.call_id
            for each in messages
            if isinstance(each, ModelAnswer)
            for part in each.parts
            if isinstance(part, ToolCall)
        ]
        told = [
            r.call_id for each in messages if isinstance(each, ToolOutputs) for r in each.results
        ]
        assert asked == told


async def test_earlier_summaries_are_kept_or_summed_up_again() -> None:
    model = Sized(answers)
    policy = ContextPolicy(max_tokens=1_500, summarize=True, clear=False)
    a = Agent("a", model, tools=[look], context=policy)
    async with running(a) as app:
        await converse(app, a, 40)
    for number, text in enumerate(model.summaries[1:], 2):
        later = [m for m in model.seen if f"Summary {number}." in told(m)]
        before = f"Summary {number - 1}."
        assert before in text or all(before in told(m) for m in later[:1])


async def test_a_summary_that_fails_clears_old_results_instead() -> None:
    class Failing(Sized):
        def _reply(self, request: ModelRequest) -> ScriptedReply:
            if request.is_summary:
                raise RuntimeError("no summaries today")
            return super()._reply(request)

    model = Failing(answers)
    policy = ContextPolicy(max_tokens=1_500, summarize=True, clear=False)
    a = Agent("a", model, tools=[look], context=policy)
    async with running(a) as app:
        session = await converse(app, a, 12)
        done = await the(session, "compaction.completed")
    assert done
    assert all(each.data.get("results") and not each.data.get("until") for each in done)
    assert "Message 2" in told(model.seen[-1])


# Results


async def test_an_oversized_result_is_told_in_part_and_read_by_its_reference() -> None:
    def script(request: ModelRequest) -> ScriptedReply:
        last = request.view.messages[-1]
        if isinstance(last, UserMessage):
            return call("look", size=10_000)
        text = known_as(ToolOutputs, last).results[0].text
        if "reference=" in text:
            reference = text.split('reference="')[1].split('"')[0]
            return call("read_result", reference=reference, start=9_000)
        return say("Done.")

    model = Sized(script)
    a = Agent("a", model, tools=[look], context=ContextPolicy(max_result=2_000))
    async with running(a) as app:
        session = await app.start(a, "go")
        assert (await session.wait()).output == "Done."
        whole, piece = await results_of(session)
        assert await verify(app.store, session.id) == []
    assert len(whole) == 10_007
    assert piece.startswith("x" * 900 + "x")
    assert "[7 more characters: call it again with start=10000]" in piece
    shown = known_as(ToolOutputs, model.seen[1][-1]).results[0].text
    assert len(shown) < 1_300
    assert shown.startswith("<a>xxx")
    assert shown.endswith("xxx</a>")


async def test_results_that_were_read_again_later_are_dropped_first() -> None:
    def script(request: ModelRequest) -> ScriptedReply:
        if isinstance(request.view.messages[-1], ToolOutputs):
            return say("Done.")
        return calls(("read_file", {"path": "a.md"}), ("look", {"size": 100}))

    model = Sized(script)
    policy = ContextPolicy(max_tokens=2_500, clear=False, target=0.7)
    a = Agent("a", model, tools=[look, read_file], context=policy)
    async with running(a) as app:
        session = await converse(app, a, 9)
        [first, *_] = await the(session, "compaction.completed")
    assert not first.data.get("until")
    texts = first.data["results"]
    assert texts
    assert all(call_id.endswith(".c1") for call_id in texts)
    assert all("the same was read again later" in text for text in texts.values())


async def test_what_is_told_instead_of_a_result_is_said_once() -> None:
    def script(request: ModelRequest) -> ScriptedReply:
        if isinstance(request.view.messages[-1], ToolOutputs):
            return say("Done.")
        return calls(("read_file", {"path": "a.md"}), ("look", {"size": 300}))

    policy = ContextPolicy(max_tokens=100_000, clear=False, max_result=200)
    a = Agent("a", Sized(script), tools=[look, read_file], context=policy)
    async with running(a) as app:
        session = await converse(app, a, 4)
        for _ in range(3):
            await (await session.compact()).result()
        told = await the(session, "compaction.completed")
    assert len(told) > 3
    assert [sorted(each.data.get("results", {})) for each in told[-2:]] == [[], []]
    texts = [text for each in told for text in each.data.get("results", {}).values()]
    assert all(len(text) <= 200 for text in texts)


async def test_what_is_told_instead_of_a_result_is_not_said_again_before_it_is_told() -> None:
    @tool
    async def compact_twice(ctx: Context) -> str:
        session = await app.session(ctx.session.id)
        await session.compact()
        return "z" * 1_000

    script = [call("compact_twice"), say("Done.")]
    policy = ContextPolicy(max_tokens=100_000, max_result=300)
    model = Sized(lambda request: script[request.view.answers])
    a = Agent("a", model, tools=[compact_twice], context=policy)
    async with running(a) as app:
        session = await app.start(a, "go")
        assert (await session.wait()).output == "Done."
        told = await the(session, "compaction.completed")
        assert await verify(app.store, session.id) == []
    assert [len(each.data.get("results", {})) for each in told] == [1, 0]
    shown = known_as(ToolOutputs, model.seen[1][-1]).results[0].text
    assert len(shown) <= 300


@pytest.mark.parametrize("reference", ["0", "1", "99999", "x", "-1", "9" * 30])
async def test_a_reference_that_leads_nowhere_is_told(reference: str) -> None:
    def script(request: ModelRequest) -> ScriptedReply:
        if isinstance(request.view.messages[-1], ToolOutputs):
            return say("Done.")
        return call("read_result", reference=reference)

    async with running(a := Agent("a", ScriptedModel(script), context=ContextPolicy())) as app:
        session = await app.start(a, "go")
        await session.wait()
        [result] = await results_of(session)
    assert "there is no result with the reference" in result


# A provider that refuses


@pytest.mark.parametrize("context", [None, ContextPolicy(max_tokens=100_000, summarize=True)])
async def test_a_request_that_is_too_long_is_shortened_and_made_again(context: Any) -> None:
    model = Sized(answers, window=1_500)
    a = Agent("a", model, tools=[look], context=context)
    async with running(a) as app:
        session = await converse(app, a, 20)
        overflowed = await the(session, "context.overflowed")
        assert not await the(session, "turn.failed")
        assert await verify(app.store, session.id) == []
    assert model.refused == len(overflowed) > 0
    for messages in model.seen:
        assert words_of(messages[0]) == "The first instruction: always be kind."


@pytest.mark.parametrize("limits", [Limits(), Limits(turn_budget=Budget(tokens=10**9))])
async def test_the_place_of_a_call_that_was_too_long_is_its_summarys(limits: Limits) -> None:
    app: Outlast
    held: list[list[str]] = []

    class Looking(Sized):
        async def stream(self, request: ModelRequest) -> Any:
            if request.is_summary:
                held.append([each.call_id for each in await app.store.limit.permits()])
            async for piece in super().stream(request):
                yield piece

    model = Looking(answers, window=1_500)
    context = ContextPolicy(max_tokens=100_000, summarize=True, clear=False)
    options = ModelOptions(limit=Limit(concurrency=1))
    a = Agent("a", model, tools=[look], context=context, model_options=options, limits=limits)
    async with running(a) as app, asyncio.timeout(60):
        session = await converse(app, a, 16)
        assert await the(session, "context.overflowed")
        assert not await app.store.limit.permits()
    assert len(held) > 1
    assert all(len(each) == 1 and ".v" in each[0] for each in held)


async def test_a_session_goes_on_after_a_message_that_is_too_long_by_itself() -> None:
    model = Sized(lambda _: say("Done."), window=1_000)
    async with running(a := Agent("a", model)) as app:
        session = await app.start(a, "start " + "z" * 100_000 + " end")
        assert (await session.wait()).output == "Done."
        shown = told(model.seen[0])
        assert shown.startswith("start zzz")
        assert shown.endswith("zzz end")
        assert (await (await session.send("go on")).result()).output == "Done."


async def test_a_provider_that_refuses_everything_fails_the_turn_and_not_the_session() -> None:
    model = Sized(lambda _: say("Done."), window=0)
    async with running(a := Agent("a", model)) as app:
        session = await app.start(a, "hello")
        result = await session.wait()
        assert known(result.error).code == "CONTEXT_WINDOW_EXCEEDED"
        model.window = 1_000
        assert (await (await session.send("go on")).result()).output == "Done."


# From outside


async def test_a_session_is_compacted_when_somebody_asks(store: str) -> None:
    model = Sized(answers)
    async with running(a := Agent("a", model, tools=[look]), store=store) as app:
        session = await converse(app, a, 12)
        receipt = await session.compact(dispatch_id="once")
        assert (await receipt.result()).status == "completed"
        again = await session.compact(dispatch_id="once")
        assert again.duplicate
        await (await session.send("Go on")).result()
        [done] = await the(session, "compaction.completed")
        assert await verify(app.store, session.id) == []
    assert done.data["tokens"] < done.data["before"] * 0.6
    assert model.sizes[-1] < model.sizes[-3]


async def test_with_an_approval_open_it_waits_until_that_is_given() -> None:
    @tool(approval="always")
    async def pay() -> str:
        return "p" * 3_000

    def script(request: ModelRequest) -> ScriptedReply:
        return say("Done.") if isinstance(request.view.messages[-1], ToolOutputs) else call("pay")

    async with running(a := Agent("a", ScriptedModel(script), tools=[pay])) as app:
        session = await app.start(a, "go")
        result = await session.wait()
        receipt = await session.compact()
        [request] = await session.requests()
        assert request == result.requests[0]
        assert not await the(session, "compaction.completed")
        await session.answer(request.request_id, "approve")
        assert (await receipt.result()).status == "completed"
        assert (await session.wait()).output == "Done."
        types = [event.type for event in await log_of(session)]
        assert types.index("tool.completed") < types.index("compaction.completed")


async def test_a_view_goes_back_behind_a_turn_and_the_log_stays() -> None:
    model = Sized(answers)
    async with running(a := Agent("a", model, tools=[look])) as app:
        session = await converse(app, a, 5)
        assert (await (await session.rewind("t2")).result()).status == "completed"
        await (await session.send("Another way")).result()
        history = await session.history()
        assert await verify(app.store, session.id) == []
    said = [text_of(m.content) for m in model.seen[-2] if isinstance(m, UserMessage)]
    assert said == ["The first instruction: always be kind.", "Message 2", "Another way"]
    assert sum(isinstance(m, UserMessage) for m in history) == 6


async def test_a_turn_that_is_unknown_is_no_place_to_go_back_to() -> None:
    async with running(a := Agent("a", Sized(answers), tools=[look])) as app:
        session = await converse(app, a, 2)
        result = await (await session.rewind("t17")).result()
    assert (result.status, result.error.code) == ("refused", "UNKNOWN_TURN")


async def test_a_view_goes_back_behind_compactions_and_forward_again(store: str) -> None:
    model = Sized(answers)
    async with running(a := Agent("a", model, tools=[look]), store=store) as app:
        session = await converse(app, a, 8)
        before = told(model.seen[-1])
        await (await session.compact()).result()
        await (await session.send("Go on")).result()
        shortened = told(model.seen[-1])
        await (await session.compact()).result()
        # Behind both compactions, then before them, then between them.
        for turn, seen in (("t8", before), ("t2", "Message 2"), ("t9", shortened)):
            assert (await (await session.rewind(turn)).result()).status == "completed"
            await (await session.send(f"After {turn}")).result()
            assert told(model.seen[-2]).startswith(seen) or seen == "Message 2"
        assert "After t2" not in told(model.seen[-1])
        assert await verify(app.store, session.id) == []
        last = model.seen[-1]

    again = Sized(answers)
    async with running(a := Agent("a", again, tools=[look]), store=store) as app:
        session = await app.session(session.id)
        await (await session.send("And now?")).result()
    assert told(again.seen[0]).startswith(told(last))


async def test_a_view_that_went_back_is_counted_and_compacted_in_time() -> None:
    model = Sized(answers)
    a = Agent("a", model, tools=[look], context=ContextPolicy(max_tokens=3_000))
    async with running(a) as app:
        session = await converse(app, a, 14)
        assert (await (await session.rewind("t4")).result()).status == "completed"
        [back] = await the(session, "context.rewound")
        for _ in range(6):
            await (await session.send("Go on")).result()
    assert back.data["tokens"] > 500
    assert max(model.sizes) < 3_000 + 300


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"max_tokens": 10}, "max_tokens of ContextPolicy"),
        ({"max_tokens": "many"}, "max_tokens of ContextPolicy"),
        ({"max_result": 0}, "max_result of ContextPolicy"),
        ({"target": 2}, "target of ContextPolicy is a share"),
        ({"keep_results": -1}, "keep_results of ContextPolicy"),
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidDefinition, match=why):
        Agent("a", "test", context=ContextPolicy(**given))
    with pytest.raises(InvalidDefinition, match=r"is a ContextPolicy\(max_tokens=…\)"):
        Agent("a", "test", context=17)  # type: ignore[arg-type]


# Crashes


@pytest.mark.parametrize("overflows", [False, True])
async def test_a_crash_at_any_commit_of_a_compaction_changes_nothing(overflows: bool) -> None:
    model = Sized(answers, window=900 if overflows else 10**9)
    policy = ContextPolicy(max_tokens=50_000 if overflows else 900, summarize=True, clear=False)
    a = Agent("a", model, tools=[look], context=policy)

    async def scenario(app: Outlast) -> str:
        session = await app.start(a.name, "The first instruction: always be kind.")
        for number in range(3):
            await (await session.send(f"m{number}", dispatch_id=f"m{number}")).result()
        await session.wait()
        assert await the(session, "compaction.completed")
        return str(len(await session.history()))

    report = await crash_everywhere(scenario, agents=[a])
    report.assert_same_output()
    report.assert_nothing_lost()
    assert any("compaction.completed" in run.point.writing for run in report.runs if run.point)
