import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from known import known
from msgspec.structs import replace
from scene import (
    FAST,
    Watched,
    agent,
    at_standstill,
    log_of,
    running,
    the,
    types_of,
    until,
    words_of,
)

from outlast import (
    Agent,
    Decision,
    Limits,
    ModelOptions,
    Outlast,
    OutlastError,
    ProposedCall,
    Token,
    tool,
)
from outlast.agents.model.client import (
    FinishedAnswer,
    KeepAlive,
    ModelFailure,
    ModelPiece,
    ModelRequest,
    TextPiece,
    ToolCallPiece,
)
from outlast.agents.model.error import LONGEST_MESSAGE, redact
from outlast.agents.runtime.failure import LONGEST_FAILURE
from outlast.clock import Clock
from outlast.core.instant import milliseconds_at
from outlast.core.message import ModelAnswer, Text, ToolCall, UserMessage, text_of
from outlast.core.record import Failure, MessageDelta
from outlast.core.result import Usage
from outlast.core.view import GO_ON
from outlast.store import Commit, Committed, Refused
from outlast.stores.sqlite import MemoryStore
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, calls, say
from outlast.testing.wrapped_store import WrappedStore


class Hasty(Clock):
    """Real time, and no pause between two tries."""

    def jitter(self, most: float) -> float:
        return 0.0


def flaky(times: int, text: str = "there", kind: str = "transient") -> ScriptedReply:
    return ScriptedReply(text=text, fails=(ScriptedError(kind, "overloaded"),) * times)


# Failures that pass


async def test_a_passing_failure_is_tried_again_and_told_to_readers() -> None:
    async with running(agent([flaky(3)]), clock=Hasty()) as app:
        session = await app.start("a", "hi")
        assert (await session.wait()).output == "there"

        retrying = await the(session, "model.retrying")
        assert [e.attempt_id for e in retrying] == ["t1.s1#1", "t1.s1#2", "t1.s1#3"]
        assert retrying[0].data["error"] == {"code": "SCRIPTED", "message": "overloaded"}


async def test_the_pause_between_two_tries_grows() -> None:
    async with at_standstill(agent([flaky(2)])) as (app, clock):
        session = await app.start("a", "hi")
        pauses = []
        for times in (1, 2):
            retrying = await until(session, "model.retrying", times)
            again_at = milliseconds_at(retrying.data["not_before"])
            pauses.append(again_at - clock.now())
            clock.set(again_at)
        await session.wait()

        assert 250 <= pauses[0] <= 500 <= pauses[1] <= 1000


async def test_without_patience_tries_that_are_used_up_fail_the_turn_and_no_more() -> None:
    options = ModelOptions(provider_patience=0)
    async with running(agent([flaky(4)], model_options=options), clock=Hasty()) as app:
        session = await app.start("a", "hi")
        result = await session.wait()

        assert (result.status, known(result.error).code) == ("failed", "SCRIPTED")
        assert (await types_of(session))[-5:] == [
            "provider.unavailable",
            "step.failed",
            "turn.failed",
            "delivery.settled",
            "session.waiting",
        ]
        with pytest.raises(OutlastError) as failed:
            result.unwrap()
        assert failed.value.code == "SESSION_FAILED"


async def test_the_number_of_tries_is_the_agents_to_say() -> None:
    options = ModelOptions(max_attempts=2, provider_patience=0)
    async with running(agent([flaky(9)], model_options=options), clock=Hasty()) as app:
        session = await app.start("a", "hi")
        await session.wait()

        assert len(await the(session, "model.retrying")) == 1


async def test_after_its_tries_a_model_call_waits_for_the_provider_and_readers_hear_it_once() -> (
    None
):
    options = ModelOptions(max_attempts=2)
    async with at_standstill(agent([flaky(7)], model_options=options)) as (app, clock):
        session = await app.start("a", "hi")
        retrying = await until(session, "model.retrying")
        clock.set(milliseconds_at(retrying.data["not_before"]))
        gone = await until(session, "provider.unavailable")
        assert not gone.data.get("blocked")
        pauses = []
        not_before = milliseconds_at(gone.data["not_before"])
        for times in range(1, 7):
            pauses.append(not_before - clock.now())
            clock.set(not_before)
            if times < 6:
                again = await until(session, "provider.still_unavailable", times, internals=True)
                not_before = milliseconds_at(again.data["not_before"])

        assert (await session.wait()).output == "there"
        assert all(before <= 60_000 for before in pauses)
        assert pauses[0] <= 4_000 < 15_000 < pauses[-1]
        [back] = await the(session, "provider.available")
        assert (back.data["attempts"], back.data["since"]) == (6, gone.data["since"])
        types = await types_of(session)
        assert types.count("provider.unavailable") == types.count("session.resumed") == 1
        assert types.count("session.waiting") == 2  # for the provider, and for a message


async def test_what_somebody_has_to_mend_is_waited_for_from_the_first_failure_on() -> None:
    rejected = ScriptedError("blocked", "wrong key")
    replies = ScriptedReply(text="there", fails=(rejected,) * 3)
    async with at_standstill(agent([replies])) as (app, clock):
        session = await app.start("a", "hi")
        gone = await until(session, "provider.unavailable")
        assert gone.data["blocked"]
        assert milliseconds_at(gone.data["not_before"]) == clock.now() + 60_000
        clock.advance(60_000)
        await until(session, "provider.still_unavailable", internals=True)
        clock.advance(60_000)
        await until(session, "provider.still_unavailable", 2, internals=True)
        clock.advance(60_000)

        assert (await session.wait()).output == "there"
        assert await the(session, "model.retrying") == []


async def test_an_outage_that_was_given_up_costs_a_later_message_no_tries_and_no_patience() -> None:
    def script(request: ModelRequest) -> ScriptedReply:
        last = request.view.messages[-1]
        assert isinstance(last, UserMessage)
        return flaky(99, kind="blocked") if text_of(last.content) == "hi" else flaky(1)

    options = ModelOptions(provider_patience=60)
    async with at_standstill(agent(script, model_options=options)) as (app, clock):
        session = await app.start("a", "hi")
        await until(session, "session.waiting")
        clock.advance(60_000)
        assert (await session.wait()).status == "failed"

        clock.advance(7 * 86_400_000)
        receipt = await session.send("are you back?")
        retrying = await until(session, "model.retrying")
        clock.set(milliseconds_at(retrying.data["not_before"]))
        assert (await receipt.result()).output == "there"


async def test_a_task_whose_turn_failed_rests_and_can_be_retried() -> None:
    replies = [flaky(1, kind="recoverable")]
    async with running(agent(lambda _: replies.pop() if replies else say("fine"))) as app:
        session = await app.start("a", "hi", mode="task", continuation_token="ticket")
        failed = await session.wait()
        assert (failed.status, known(failed.error).code) == ("failed", "SCRIPTED")
        assert (await types_of(session))[-1] == "session.waiting"
        assert (await the(session, "session.waiting"))[-1].data["wait"] == ("retry",)
        assert (await session.info()).over == ""

        assert (await (await session.retry()).result()).output == "fine"
        assert (await types_of(session))[-1] == "session.completed"


async def test_a_failure_that_a_follow_up_can_mend_is_not_tried_again_by_itself() -> None:
    replies = [flaky(1, kind="recoverable")]
    async with running(agent(lambda _: replies.pop() if replies else say("fine"))) as app:
        session = await app.start("a", "something refused")
        assert (await session.wait()).status == "failed"

        assert (await (await session.send("something else")).result()).output == "fine"
        assert await the(session, "model.retrying") == []


async def test_a_long_retry_after_parks_the_lane_and_counts_nothing() -> None:
    minute = 60_000
    parked = ScriptedError("transient", "quota", retry_after=minute)
    reply = ScriptedReply(text="there", fails=(parked,) * 6)
    async with at_standstill(agent([reply], model_options=ModelOptions(max_attempts=2))) as (
        app,
        clock,
    ):
        session = await app.start("a", "hi")
        waiting = await until(session, "session.waiting")
        assert waiting.data["wait"] == ("provider",)
        for times in range(1, 6):
            clock.advance(minute)
            await until(session, "provider.still_unavailable", times, internals=True)
        clock.advance(minute)

        assert (await session.wait()).output == "there"
        assert await the(session, "model.retrying") == []


async def test_time_parked_for_the_provider_is_no_active_time() -> None:
    hour = 3_600_000
    parked = ScriptedError("transient", "quota", retry_after=hour)
    patient = agent([ScriptedReply(text="there", fails=(parked,))], limits=Limits(turn_timeout=60))
    async with at_standstill(patient) as (app, clock):
        session = await app.start("a", "hi")
        await until(session, "session.waiting")
        clock.advance(hour)

        assert (await session.wait()).output == "there"


class SlowForPieces(WrappedStore):
    """A store that takes longer to write a piece of an answer than the model may take."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        if any(isinstance(r, MessageDelta) for each in commits for r in each.records):
            await asyncio.sleep(0.4)
        return await super().commit(commits)


async def test_a_whole_answer_is_kept_however_long_it_takes_to_write_its_pieces() -> None:
    answering = agent(
        [ScriptedReply(text="all is well", chunks=3, pace=0.01)],
        model_options=ModelOptions(timeout=0.2),
    )
    async with running(answering, store=SlowForPieces(MemoryStore())) as app:
        session = await app.start("a", "hi")

        assert (await session.wait()).output == "all is well"
        assert len(await the(session, "message.completed")) == 1
        assert await the(session, "model.retrying") == []


class Stubborn(ScriptedModel):
    """A model whose client does not heed its cancellation, the first time."""

    may_end: asyncio.Event

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        while request.attempt == 1 and not self.may_end.is_set():
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                yield TextPiece(0, "I will not stop")
        async for said in super().stream(request):
            yield said


async def test_a_model_that_cannot_be_stopped_is_left_behind() -> None:
    model = Stubborn([say("there")])
    model.may_end = asyncio.Event()
    async with running(
        Agent("a", model, model_options=ModelOptions(timeout=0.05)), clock=Hasty()
    ) as app:
        session = await app.start("a", "hi")
        assert (await session.wait()).output == "there"

        [retrying] = await the(session, "model.retrying")
        assert retrying.data["error"]["code"] == "MODEL_TIMEOUT"
        model.may_end.set()
        assert await the(session, "message.delta") == []


# Failures that nobody in the conversation can mend


async def test_a_structural_failure_ends_the_session_and_its_tokens() -> None:
    async with running(agent([flaky(1, kind="structural")])) as app:
        session = await app.start("a", "hi", continuation_token="ticket")
        result = await session.wait()

        assert result.status == "failed"
        assert (await types_of(session))[-4:] == [
            "step.failed",
            "turn.failed",
            "delivery.settled",
            "session.failed",
        ]
        with pytest.raises(OutlastError) as dead:
            await app.send(Token("ticket"), "hello?")
        assert dead.value.code == "NO_ACTIVE_SESSION"


async def test_a_model_that_does_not_exist_keeps_a_worker_from_opening() -> None:
    app = Outlast([Agent("a", "no-such-provider:model")], store="memory://")
    with pytest.raises(OutlastError, match="this worker cannot serve agent a: the model 'no-such"):
        await app.open()

    assert not app.is_open


WRONG_ANSWERS = {
    "a text that is none": FinishedAnswer((Text(None),)),  # type: ignore[arg-type]
    "a call of a number": FinishedAnswer((ToolCall("", 7, "{}"),)),  # type: ignore[arg-type]
    "arguments that are no text": FinishedAnswer((ToolCall("", "pay", {"cents": 5}),)),  # type: ignore[arg-type]
    "a part that is none": FinishedAnswer(("hello",)),  # type: ignore[arg-type]
    "half a token": FinishedAnswer((Text("hi"),), Usage(input_tokens=0.5)),  # type: ignore[arg-type]
    "no model": FinishedAnswer((Text("hi"),), model=None),  # type: ignore[arg-type]
    "no reason to finish": FinishedAnswer((Text("hi"),), finish=None),  # type: ignore[arg-type]
    "a piece of no part": TextPiece("first", "hi"),  # type: ignore[arg-type]
    "a piece that is no text": TextPiece(0, None),  # type: ignore[arg-type]
    "a call that begins with a number": ToolCallPiece(0, 7),  # type: ignore[arg-type]
}


class Muddled(ScriptedModel):
    """A client of somebody's own that does not give what it should."""

    def __init__(self, said: Any) -> None:
        super().__init__([])
        self._said = said

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        if words_of(request.view.messages[-1]) == "and now?":
            yield FinishedAnswer((Text("here"),))
        yield self._said

    def classify(self, error: Exception) -> ModelFailure:
        return ModelFailure("recoverable", Failure("MUDDLED", str(error)))


@pytest.mark.parametrize("wrong", WRONG_ANSWERS)
async def test_an_answer_that_could_not_be_read_again_fails_its_turn_and_no_more(
    wrong: str,
) -> None:
    async with running(Agent("a", Muddled(WRONG_ANSWERS[wrong]))) as app:
        session = await app.start("a", "hi")

        result = await session.wait()
        assert (result.status, known(result.error).code) == ("failed", "MUDDLED")
        assert (await (await session.send("and now?")).result()).output == "here"


WRONG_JUDGEMENTS = {
    "nothing": None,
    "a word": "transient",
    "a kind that there is none of": ModelFailure("hopeless", Failure("X", "x")),  # type: ignore[arg-type]
    "a failure that is none": ModelFailure("recoverable", "X"),  # type: ignore[arg-type]
    "an error": ZeroDivisionError("division by zero"),
}


class Confused(ScriptedModel):
    """A client of somebody's own that cannot say what its errors mean."""

    def __init__(self, judgement: Any) -> None:
        super().__init__(self._fail)
        self._judgement = judgement

    def _fail(self, request: ModelRequest) -> ScriptedReply:
        if words_of(request.view.messages[-1]) == "and now?":
            return say("here")
        raise KeyError("model is out of order")

    def classify(self, error: Exception) -> ModelFailure:
        if isinstance(self._judgement, Exception):
            raise self._judgement
        return self._judgement  # type: ignore[no-any-return]


@pytest.mark.parametrize("wrong", WRONG_JUDGEMENTS)
async def test_a_client_that_cannot_say_what_an_error_means_fails_the_turn_and_no_more(
    wrong: str,
) -> None:
    async with running(Agent("a", Confused(WRONG_JUDGEMENTS[wrong]))) as app:
        session = await app.start("a", "hi")

        result = await session.wait()
        assert (result.status, known(result.error).code) == ("failed", "MODEL_CALL_FAILED")
        assert "model is out of order" in known(result.error).message
        assert "Confused.classify gave no ModelFailure: " in known(result.error).message
        assert (await (await session.send("and now?")).result()).output == "here"


# Answers that are cut off


def cut(text: str, *, after: int, **options: Any) -> ScriptedReply:
    return ScriptedReply(text=text, chunks=len(text), cut_after=after, pace=0.001, **options)


async def test_a_cut_off_answer_is_gone_on_with() -> None:
    model = Watched([cut("abcdef", after=3)])
    async with running(Agent("a", model), clock=Hasty()) as app:
        session = await app.start("a", "hi")
        result = await session.wait()

        said = [e.data["text"] for e in await the(session, "message.delta")]
        assert "".join(said) == result.output == "abcdef"
        assert model.seen[1] == [
            UserMessage((Text("hi"),)),
            ModelAnswer((Text("abc"),), aborted=True),
            UserMessage((Text(GO_ON),)),
        ]
        [aborted] = await the(session, "message.aborted")
        assert aborted.data["kept"]


@pytest.mark.parametrize("cuts", [1, 2])
async def test_a_continued_answer_is_one_whole_answer_to_everybody(cuts: int) -> None:
    def reply(request: ModelRequest) -> ScriptedReply:
        if words_of(request.view.messages[-1]) == "and then?":
            return say("bye")
        said = "abcdef"[2 * (request.attempt - 1) :]
        return cut(said, after=2) if request.attempt <= cuts else say(said)

    model = Watched(reply)
    async with running(Agent("a", model), clock=Hasty()) as app:
        session = await app.start("a", "hi")
        assert (await session.wait()).output == "abcdef"
        events = [event async for event in session.events(follow=False)]
        for start in (0, *(event.offset for event in events)):
            read = [event async for event in session.events(start, follow=False)]
            for event in read:
                if event.type == "message.completed":
                    assert event.data["parts"] == ({"kind": "text", "text": "abcdef"},)
        assert await session.history() == [
            UserMessage((Text("hi"),)),
            ModelAnswer((Text("abcdef"),)),
        ]

        await (await session.send("and then?")).result()
        assert model.seen[-1] == [
            UserMessage((Text("hi"),)),
            ModelAnswer((Text("abcdef"),)),
            UserMessage((Text("and then?"),)),
        ]


async def test_a_cut_off_answer_is_started_again_where_the_agent_says_so() -> None:
    model = Watched([cut("abcdef", after=3)])
    async with running(
        Agent("a", model, model_options=ModelOptions(on_partial="restart")), clock=Hasty()
    ) as app:
        session = await app.start("a", "hi")

        assert (await session.wait()).output == "abcdef"
        assert model.seen[1] == [UserMessage((Text("hi"),))]
        [aborted] = await the(session, "message.aborted")
        assert "kept" not in aborted.data
        assert aborted.attempt_id == "t1.s1#1"


async def test_a_tool_call_that_was_cut_off_never_runs() -> None:
    ran: list[str] = []

    @tool
    async def pay(to: str) -> str:
        ran.append(to)
        return "paid"

    def script(request: ModelRequest) -> ScriptedReply:
        if any(isinstance(m, ModelAnswer) and not m.aborted for m in request.view.messages):
            return say("done")
        if request.attempt == 1:
            return cut("so", after=3, calls=(("pay", {"to": "eve"}), ("pay", {"to": "mallory"})))
        return call("pay", to="ada")

    async with running(agent(script, tools=[pay]), clock=Hasty()) as app:
        session = await app.start("a", "hi")
        await session.wait()

        assert ran == ["ada"]


async def test_a_model_that_says_nothing_for_too_long_is_tried_again() -> None:
    def script(request: ModelRequest) -> ScriptedReply:
        return ScriptedReply(text="there", delay=60 if request.attempt == 1 else 0)

    async with running(
        agent(script, model_options=ModelOptions(idle_timeout=0.01)), clock=Hasty()
    ) as app:
        session = await app.start("a", "hi")
        assert (await session.wait()).output == "there"

        [retrying] = await the(session, "model.retrying")
        assert retrying.data["error"]["code"] == "MODEL_TIMEOUT"


async def test_a_model_that_answers_in_one_piece_cannot_be_silent_for_too_long() -> None:
    script = [ScriptedReply(text="there", delay=0.05)]
    async with running(
        agent(script, model_options=ModelOptions(idle_timeout=0.01, stream=False)), clock=Hasty()
    ) as app:
        session = await app.start("a", "hi")

        assert (await session.wait()).output == "there"
        assert await the(session, "model.retrying") == []


async def test_hooks_that_take_their_time_to_decide_cost_no_answer() -> None:
    @tool
    async def pay() -> str:
        return "paid"

    started: list[str] = []
    script = [calls(*[("pay", {})] * 4), say("done")]
    app = Outlast(
        [agent(script, tools=[pay], model_options=ModelOptions(idle_timeout=1.0))],
        store="memory://",
        worker=FAST,
    )

    @app.hook("tool.requested", decides=True)
    async def think(call: ProposedCall) -> Decision:
        started.append(call.call_id)
        await asyncio.sleep(0.3)
        return Decision.allow()

    async with app:
        session = await app.start("a", "hi")
        assert (await session.wait()).output == "done"
        assert len(started) == 4


class Deaf(Stubborn):
    """A client that does not stop, having said more than is in the log."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        if request.attempt > 1:
            for _ in range(30):
                await asyncio.sleep(0.04)  # longer than what the first said may wait, in all
                yield KeepAlive()
            yield FinishedAnswer((Text("three"),))
            return
        yield TextPiece(0, "one ")
        await asyncio.sleep(0.02)  # what was said is in the log
        yield TextPiece(0, "two ")
        while not self.may_end.is_set():
            with suppress(asyncio.CancelledError):
                await self.may_end.wait()


async def test_nothing_that_a_client_said_lands_after_it_was_left_behind() -> None:
    settings = replace(FAST, flush=1.0, stop_grace=0.02)
    model = Deaf([])
    model.may_end = asyncio.Event()
    quick = Agent("a", model, model_options=ModelOptions(idle_timeout=0.3))
    async with running(quick, settings=settings, clock=Hasty()) as app:
        session = await app.start("a", "hi")

        assert (await session.wait()).output == "one three"
        model.may_end.set()
        [said] = await the(session, "message.delta")
        assert said.data["text"] == "one "


@pytest.mark.parametrize("stream", [True, False])
async def test_a_model_that_takes_too_long_in_all_is_tried_again(stream: bool) -> None:
    def script(request: ModelRequest) -> ScriptedReply:
        slow = request.attempt == 1
        return ScriptedReply(text="there", delay=60 if slow else 0)

    async with running(
        agent(script, model_options=ModelOptions(timeout=0.01, stream=stream)), clock=Hasty()
    ) as app:
        session = await app.start("a", "hi")
        assert (await session.wait()).output == "there"

        [retrying] = await the(session, "model.retrying")
        assert retrying.data["error"]["code"] == "MODEL_TIMEOUT"


async def test_a_turn_ends_when_its_active_time_is_used_up_by_a_model_that_hangs() -> None:
    hanging = agent([ScriptedReply(text="never", delay=60)], limits=Limits(turn_timeout=0.05))
    async with running(hanging, settings=FAST) as app:
        result = await (await app.start("a", "hi")).wait()

    assert (result.status, known(result.error).code) == ("failed", "TURN_TIMEOUT")


async def test_what_a_tool_raises_is_told_up_to_a_length() -> None:
    @tool
    async def fail() -> str:
        """Fail."""
        raise ValueError("x" * 1_000_000)

    async with running(agent([call("fail"), say("sorry")], tools=[fail])) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "sorry"
        [failed] = [e for e in await log_of(session) if e.type == "tool.failed"]
        assert len(failed.data["error"]["message"]) == LONGEST_FAILURE + 1


def test_what_a_provider_says_is_told_up_to_a_length() -> None:
    assert len(redact("x" * 1_000_000)) == LONGEST_MESSAGE + 1


async def test_half_a_character_in_what_a_provider_says_of_an_error_holds_nothing_up() -> None:
    broken = ScriptedReply(fails=(ScriptedError("recoverable", "no \ud800"),))
    async with running(agent([broken])) as app:
        result = await (await app.start("a", "hi")).wait()

    assert result.status == "failed"
    assert result.error is not None
    assert "no ?" in result.error.message
