import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from known import known
from pydantic import BaseModel
from scene import Watched, agent, log_of, results_of, running, the, types_of, until, words_of

from outlast import Agent, Context, File, Image, InstructionContext, OutlastError, Text, Tool, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.message import ModelAnswer, UserMessage
from outlast.errors import OutputChanged, UnknownAgent
from outlast.log.verify import verify
from outlast.stores.sqlite import MemoryStore
from outlast.testing.crash import CrashingStore
from outlast.testing.scripted import ScriptedReply, call, calls, say


async def test_a_message_is_answered_and_settled() -> None:
    async with running(agent([say("hello")])) as app:
        session = await app.start("a", "hi")
        result = await session.wait()

        assert (result.status, result.output) == ("completed", "hello")
        assert await types_of(session) == [
            "session.started",
            "delivery.queued",
            "turn.started",
            "step.started",
            "message.completed",
            "usage.recorded",
            "step.completed",
            "turn.completed",
            "delivery.settled",
            "session.waiting",
        ]


async def test_messages_are_answered_one_after_the_other_in_the_order_of_their_arrival() -> None:
    async with running(agent([say("one"), say("two"), say("three")])) as app:
        session = await app.start("a", "1")
        second, third = await session.send("2"), await session.send("3")

        assert (await third.result()).output == "three"
        assert (await second.result()).output == "two"
        assert (await known(session.receipt).result()).output == "one"


async def test_what_the_model_used_is_recorded_and_summed_over_the_turn() -> None:
    async with running(agent([call("noop"), say("done")], tools=[noop])) as app:
        session = await app.start("a", "go")
        result = await session.wait()

        used = [event.data for event in await the(session, "usage.recorded")]
        assert len(used) == 2
        assert result.usage.own.input_tokens == sum(u["input_tokens"] for u in used) > 0
        assert result.usage.own.output_tokens == sum(u["output_tokens"] for u in used) > 0


@tool(readonly=True)
async def noop() -> str:
    return "nothing"


async def test_a_streamed_answer_is_stored_once_and_read_whole() -> None:
    async with running(agent([ScriptedReply(text="abcdefgh", chunks=4, pace=0.001)])) as app:
        session = await app.start("a", "hi")
        result = await session.wait()

        deltas = [event.data["text"] for event in await the(session, "message.delta")]
        [answer] = await the(session, "message.completed")
        assert "".join(deltas) == "abcdefgh"
        assert list(answer.data["parts"]) == [{"kind": "text", "text": "abcdefgh"}]
        assert result.output == "abcdefgh"


async def test_a_reader_that_joins_late_gets_a_streamed_answer_whole() -> None:
    async with running(agent([ScriptedReply(text="abcdefgh", chunks=4, pace=0.001)])) as app:
        session = await app.start("a", "hi")
        await session.wait()
        [answer] = await the(session, "message.completed")

        late = [event async for event in session.events(after=answer.offset - 1)]

        assert list(late[0].data["parts"]) == [{"kind": "text", "text": "abcdefgh"}]


async def test_reasoning_is_recorded_apart_from_the_answer() -> None:
    async with running(
        agent([ScriptedReply(text="42", reasoning="6 x 7", chunks=2, pace=0.001)])
    ) as app:
        session = await app.start("a", "hi")

        assert (await session.wait()).output == "42"
        thoughts = [event.data["text"] for event in await the(session, "reasoning.delta")]
        assert "".join(thoughts) == "6 x 7"
        [answer] = await the(session, "message.completed")
        assert answer.data["parts"][0] == {"kind": "reasoning", "text": "6 x 7"}


async def test_tools_run_in_parallel_and_each_is_recorded_as_it_ends() -> None:
    slow_may_end = asyncio.Event()

    @tool(readonly=True)
    async def slow() -> str:
        await slow_may_end.wait()
        return "slow"

    @tool(readonly=True)
    async def fast() -> str:
        return "fast"

    script = [calls(("slow", {}), ("fast", {})), say("done")]
    async with running(agent(script, tools=[slow, fast])) as app:
        session = await app.start("a", "go")
        first = await until(session, "tool.completed")
        slow_may_end.set()
        await session.wait()

        assert first.data["value"] == "fast"
        assert [e.data["value"] for e in await the(session, "tool.completed")] == ["fast", "slow"]
        assert await results_of(session) == ["slow", "fast"]


async def test_ids_in_the_log_name_turn_step_call_and_attempt() -> None:
    async with running(agent([call("noop"), say("done")], tools=[noop])) as app:
        session = await app.start("a", "go")
        await session.wait()

        [started] = await the(session, "tool.started")
        assert (started.turn, started.step) == ("t1", 1)
        assert (started.call_id, started.attempt_id) == ("t1.s1.c1", "t1.s1.c1#1")


async def test_internal_records_are_hidden_unless_asked_for() -> None:
    async with running(agent([say("hello")])) as app:
        session = await app.start("a", "hi")
        await session.wait()

        shown = await log_of(session)
        every = await log_of(session, internals=True)

        assert "model.started" not in {event.type for event in shown}
        assert "model.started" in {event.type for event in every}
        assert [event.offset for event in every] == list(range(1, len(every) + 1))


async def test_a_reader_that_goes_on_at_a_cursor_misses_nothing_and_gets_nothing_twice() -> None:
    async with running(agent([call("noop"), say("done")], tools=[noop])) as app:
        session = await app.start("a", "go")
        await session.wait()
        whole = await log_of(session)

        for event in whole:
            rest = [e async for e in session.events(after=event.offset)]
            assert rest == whole[whole.index(event) + 1 :]


async def test_a_cursor_beyond_the_end_is_refused() -> None:
    async with running(agent([say("hello")])) as app:
        session = await app.start("a", "hi")
        await session.wait()

        with pytest.raises(OutlastError) as refused:
            [e async for e in session.events(after=1000)]
        assert refused.value.code == "CURSOR_AHEAD"


# What the model is given


async def test_images_and_files_reach_the_model() -> None:
    model = Watched([say("a cat")])
    said: list[str | Image | File] = [
        "What is this?",
        Image(data=b"\x89PNG"),
        File(url="https://x.example/a.pdf"),
    ]
    async with running(Agent("a", model)) as app:
        session = await app.start("a", said)
        await session.wait()

    [seen] = model.requests[0].view.messages[:1]
    assert seen == UserMessage(
        (Text("What is this?"), Image(data=b"\x89PNG"), File(url="https://x.example/a.pdf"))
    )


async def test_a_large_message_is_kept_apart_and_comes_back_whole() -> None:
    async with running(agent([say("long")])) as app:
        session = await app.start("a", "x" * 200_000)
        await session.wait()

        [queued] = await the(session, "delivery.queued")
        assert queued.data["content"][0]["text"] == "x" * 200_000


async def test_instructions_may_be_a_function_of_the_session_and_the_dependencies() -> None:
    model = Watched([say("hello")])

    async def instructions(ctx: InstructionContext[Any]) -> str:
        return f"serve {ctx.session.principal} at {ctx.deps}"

    @asynccontextmanager
    async def deps() -> AsyncIterator[str]:
        yield "the bank"

    async with running(Agent("a", model, instructions=instructions), deps=deps) as app:
        await (await app.start("a", "hi", principal="ada")).wait()

    assert model.requests[0].instructions == "serve ada at the bank"


async def test_dependencies_are_opened_once_per_worker_and_closed_with_it() -> None:
    opened: list[str] = []

    @asynccontextmanager
    async def deps() -> AsyncIterator[str]:
        opened.append("open")
        yield "connection"
        opened.append("closed")

    @tool(readonly=True)
    async def use(ctx: Context[str]) -> str:
        return ctx.deps

    script = [call("use"), say("one"), call("use"), say("two")]
    async with running(agent(script, tools=[use]), deps=deps) as app:
        session = await app.start("a", "1")
        await session.send("2")
        await session.wait()
        assert await results_of(session) == ["connection", "connection"]
        assert opened == ["open"]
    assert opened == ["open", "closed"]


async def test_a_failure_of_the_instructions_fails_the_turn_which_can_be_tried_again() -> None:
    prompts: dict[str, str] = {}

    def instructions(_: Context) -> str:
        return prompts["greet"]

    async with running(agent([say("hello")], instructions=instructions)) as app:
        session = await app.start("a", "hi")
        result = await session.wait()
        assert result.status == "failed"
        assert known(result.error).code == "INSTRUCTIONS_FAILED"
        assert (
            "the instructions of the agent a failed: KeyError: 'greet'"
            in known(result.error).message
        )

        prompts["greet"] = "Be kind."
        assert (await (await session.retry()).result()).output == "hello"


# Typed answers


class Order(BaseModel):
    id: int
    lines: list[str] = []


async def test_a_typed_answer_is_a_value_of_its_type() -> None:
    script = [call("final_result", id=7, lines=["tea"])]
    async with running(agent(script, output_type=Order)) as app:
        result = await (await app.start("a", "order tea")).wait()

    assert result.output == Order(id=7, lines=["tea"])


async def test_a_typed_answer_that_is_no_object_is_wrapped_for_the_model() -> None:
    model = Watched([call("final_result", value=[1, 2])])
    async with running(Agent("a", model, output_type=list[int])) as app:
        result = await (await app.start("a", "count")).wait()

    assert result.output == [1, 2]
    assert known(model.requests[0].output).schema["required"] == ["value"]


async def test_a_typed_answer_that_does_not_fit_is_corrected_by_the_model() -> None:
    model = Watched([call("final_result", id="seven"), call("final_result", id=7)])
    async with running(Agent("a", model, output_type=Order)) as app:
        result = await (await app.start("a", "order")).wait()

    assert result.output == Order(id=7)
    assert model.told == [
        "RETRY: the answer does not fit: id: Input should be a valid integer, unable to parse"
        " string as an integer"
    ]


@pytest.mark.parametrize(
    ("reply", "output"),
    [(call("final_result", id=7), '{"id":7}'), (say('{"id": 7}'), '{"id": 7}')],
    ids=["as arguments", "as text"],
)
async def test_an_answer_that_is_not_of_todays_type_can_still_be_had_as_it_was_said(
    tmp_path: Path, reply: ScriptedReply, output: str
) -> None:
    class Stricter(Order):
        customer: str

    store = f"sqlite:///{tmp_path}/outlast.db"
    async with running(agent([reply], output_type=Order), store=store) as app:
        session_id = (await app.start("a", "order")).id
        await (await app.session(session_id)).wait()

    async with running(agent([], output_type=Stricter), store=store) as app:
        with pytest.raises(OutputChanged, match="fit Stricter as it is today: cust") as changed:
            await (await app.session(session_id)).wait()
    assert changed.value.details == {"agent": "a", "output": output}


async def test_a_text_where_a_typed_answer_was_asked_for_is_corrected_by_the_model() -> None:
    model = Watched([say("Sure! The order is 7."), say("Oh."), call("final_result", id=7)])
    async with running(Agent("a", model, output_type=Order)) as app:
        session = await app.start("a", "order")
        result = await session.wait()

        assert result.output == Order(id=7)
        asked = [words_of(seen[-1]) for seen in model.seen[1:]]
        assert all("call final_result" in words for words in asked)
        usage = await the(session, "usage.recorded")
        assert len(usage) == 3
        assert result.usage.own.input_tokens == sum(e.data["input_tokens"] for e in usage)


async def test_a_model_that_never_gives_the_answer_asked_for_fails_the_turn() -> None:
    async with running(agent([say("no")] * 10, output_type=Order)) as app:
        result = await (await app.start("a", "order")).wait()

    assert result.status == "failed"
    assert known(result.error).code == "TOO_MANY_CORRECTIONS"


async def test_a_typed_answer_given_as_json_text_counts_as_well() -> None:
    async with running(agent([say('{"id": 7}')], output_type=Order)) as app:
        result = await (await app.start("a", "order")).wait()

    assert result.output == Order(id=7)


async def test_history_is_the_conversation_as_the_model_sees_it() -> None:
    async with running(agent([say("hello"), say("bye")])) as app:
        session = await app.start("a", "hi")
        await (await session.send("leaving")).result()

        assert await session.history() == [
            UserMessage((Text("hi"),)),
            ModelAnswer((Text("hello"),)),
            UserMessage((Text("leaving"),)),
            ModelAnswer((Text("bye"),)),
        ]


async def test_lanes_of_a_session_have_their_own_queues_and_transcripts() -> None:
    async with running(agent([say("one")])) as app:
        session = await app.start("a", "to main")
        notes = await session.send("to notes", lane="notes")
        await notes.result()
        await session.wait()

        assert await session.history("notes") == [
            UserMessage((Text("to notes"),)),
            ModelAnswer((Text("one"),)),
        ]
        assert {e.turn for e in await the(session, "turn.completed")} == {"t1", "notes/t1"}


@pytest.mark.parametrize("lane", ["bulk.s", "bob.smith", "my.crew", "docs.search", "x.c1", "a/t1"])
async def test_a_lane_may_be_called_anything(lane: str) -> None:
    @tool
    async def look() -> str:
        return "seen"

    async with running(agent([call("look"), say("done")], tools=[look])) as app:
        session = await app.start("a", "go", lane=lane)

        assert (await session.wait()).output == "done"
        [completed] = await the(session, "tool.completed")
        assert (completed.turn, completed.step) == (f"{lane}/t1", 1)
        assert await verify(app.store, session.id) == []


class Note(BaseModel):
    text: str


async def test_a_tool_that_keeps_something_costs_no_commit_more_than_one_that_does_not() -> None:
    def steps(one: Tool) -> Agent:
        def script(request: ModelRequest) -> ScriptedReply:
            return calls((one.name, {})) if len(request.view.messages) < 7 else say("Done.")

        return agent(script, tools=[one])

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    @tool
    async def note(ctx: Context) -> str:
        """Note."""
        ctx.session.mutate(Note).seed(Note(text="put"))
        ctx.session.mutate(Note).append(Note(text="appended"))
        ctx.emit("noted", 1)
        return "noted"

    commits = []
    for each in (look, note):
        store = CrashingStore(MemoryStore())
        async with running(steps(each), store=store) as app:
            session = await app.start("a", "Go")
            assert (await session.wait()).output == "Done."
        commits.append(store.commits)
    assert commits[0] == commits[1] == 8


async def test_an_agent_that_is_not_the_apps_own_is_refused_though_it_has_the_name_of_one() -> None:
    own, stranger = agent([say("hello")]), agent([say("boo")])
    async with running(own) as app:
        with pytest.raises(UnknownAgent, match="named a, and it is not this one"):
            await app.start(stranger, "hi")
        assert not await app.sessions()

        assert (await (await app.start(own, "hi")).wait()).output == "hello"
