"""Answers over a real wire: what is sent, what comes back, and what of it returns."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest
from pydantic_ai import messages as ai
from pydantic_ai.direct import model_request
from pydantic_ai.models.test import TestModel

from outlast.agents.model.client import (
    FinishedAnswer,
    KeepAlive,
    ModelPiece,
    ModelRequest,
    ReasoningPiece,
    TextPiece,
    ToolCallPiece,
    ToolSpec,
)
from outlast.agents.model.pydantic_ai import ProviderModel, parameters
from outlast.core.message import (
    File,
    Image,
    Message,
    ModelAnswer,
    Reasoning,
    Text,
    ToolCall,
    ToolOutput,
    ToolOutputs,
    UserMessage,
)
from outlast.core.result import Usage
from outlast.core.view import View
from outlast.testing.provider_server import (
    WireServer,
    anthropic_model,
    call,
    openai_model,
    reply,
    responses_model,
    thoughts,
    words,
)

BUILDERS = {"chat": openai_model, "messages": anthropic_model, "responses": responses_model}
Builder = Callable[[WireServer], Any]

every_protocol = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())

ADD = ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {"a": {}, "b": {}}})
REPORT = ToolSpec("report", "Give the answer.", {"type": "object", "properties": {"sum": {}}})
HELLO = UserMessage((Text("Hello"),))


def view_of(*messages: Message) -> View:
    view = View()
    view.messages.extend(messages)
    return view


def asking(*messages: Message, **changes: Any) -> ModelRequest:
    view = view_of(*(messages or (HELLO,)))
    return ModelRequest(view=view, call_id="call", attempt=1, **changes)


async def said(model: ProviderModel, request: ModelRequest) -> list[ModelPiece]:
    pieces = [piece async for piece in model.stream(request)]
    return [piece for piece in pieces if not isinstance(piece, KeepAlive)]


async def next_said(stream: AsyncIterator[ModelPiece]) -> ModelPiece:
    async for piece in stream:
        if not isinstance(piece, KeepAlive):
            return piece
    raise AssertionError("nothing more was said")


async def streamed(model: ProviderModel, request: ModelRequest) -> FinishedAnswer:
    last = (await said(model, request))[-1]
    assert isinstance(last, FinishedAnswer)
    return last


async def asked(model: ProviderModel, request: ModelRequest) -> FinishedAnswer:
    return await model.request(request)


both_ways = pytest.mark.parametrize("ask", [asked, streamed])
Ask = Callable[[ProviderModel, ModelRequest], Any]


@every_protocol
@both_ways
async def test_a_text_answer_comes_whole(build: Builder, ask: Ask) -> None:
    async with WireServer(reply(words("Hel", "lo"))) as server:
        answer = await ask(ProviderModel(build(server)), asking())
    (part,) = answer.parts
    assert isinstance(part, Text)
    assert part.text == "Hello"
    assert (answer.finish, answer.model) == ("stop", "wire")


@every_protocol
async def test_a_streamed_answer_comes_in_the_pieces_in_which_it_was_sent(build: Builder) -> None:
    answer = reply(thoughts("hm", ", so"), words("Hel", "lo"), call("add", '{"a"', ": 1}"))
    async with WireServer(answer) as server:
        *pieces, last = await said(ProviderModel(build(server)), asking(tools=(ADD,)))
    assert pieces == [
        ReasoningPiece(0, "hm"),
        ReasoningPiece(0, ", so"),
        TextPiece(1, "Hel"),
        TextPiece(1, "lo"),
        ToolCallPiece(2, "add"),
    ]
    assert isinstance(last, FinishedAnswer)
    assert [type(part) for part in last.parts] == [Reasoning, Text, ToolCall]


@every_protocol
@both_ways
async def test_tool_calls_keep_the_names_that_the_provider_gave_them(
    build: Builder, ask: Ask
) -> None:
    both = (call("add", '{"a":', "1}", id="call_a"), call("add", '{"a":2}', id="call_b"))
    async with WireServer(reply(*both)) as server:
        answer = await ask(ProviderModel(build(server)), asking(tools=(ADD,)))
    parts = [part for part in answer.parts if isinstance(part, ToolCall)]
    assert [(part.call_id, part.provider_id) for part in parts] == [("", "call_a"), ("", "call_b")]
    assert [part.args for part in parts] == ['{"a":1}', '{"a":2}']


@every_protocol
@both_ways
async def test_a_call_without_arguments_has_an_empty_object_of_them(
    build: Builder, ask: Ask
) -> None:
    async with WireServer(reply(call("add"))) as server:
        answer = await ask(ProviderModel(build(server)), asking(tools=(ADD,)))
    assert answer.parts[0].args == "{}"


@pytest.mark.parametrize("ask", [asked, streamed])
async def test_arguments_that_are_not_json_are_passed_on_as_they_are(ask: Ask) -> None:
    async with WireServer(reply(call("add", '{"a": oops'))) as server:
        answer = await ask(ProviderModel(openai_model(server)), asking(tools=(ADD,)))
    assert answer.parts[0].args == '{"a": oops'


@every_protocol
@both_ways
async def test_usage_is_what_the_provider_counted(build: Builder, ask: Ask) -> None:
    counted = reply(words("Hi"), input_tokens=20, output_tokens=3, cached_tokens=8)
    async with WireServer(counted) as server:
        model = build(server)
        usage = (await ask(ProviderModel(model), asking())).usage
    # Anthropic counts what it read from its cache apart from the input, OpenAI within it.
    assert usage.input_tokens == (28 if model.system == "anthropic" else 20)
    assert (usage.output_tokens, usage.cache_read_tokens) == (3, 8)


async def test_instructions_tools_and_settings_are_sent() -> None:
    request = asking(instructions="Be brief.", tools=(ADD,), settings={"temperature": 0.5})
    async with WireServer(reply(words("Hi"))) as server:
        await ProviderModel(openai_model(server)).request(request)
    (received,) = server.requests
    system, user = received.body["messages"]
    assert (system["role"], system["content"]) == ("system", "Be brief.")
    assert (user["role"], user["content"]) == ("user", "Hello")
    assert received.body["temperature"] == 0.5
    assert [tool["function"]["name"] for tool in received.body["tools"]] == ["add"]
    assert received.body["tool_choice"] == "auto"


async def test_instructions_reach_anthropic_as_its_system_prompt() -> None:
    async with WireServer(reply(words("Hi"))) as server:
        await ProviderModel(anthropic_model(server)).request(asking(instructions="Be brief."))
    assert "Be brief." in str(server.requests[0].body["system"])


async def test_new_instructions_leave_the_history_alone() -> None:
    request = asking(instructions="Be brief.")
    async with WireServer(reply(words("Hi")), reply(words("Hi"))) as server:
        model = ProviderModel(openai_model(server))
        await model.request(request)
        again = ModelRequest(
            view=request.view, call_id="call", attempt=2, instructions="Be long-winded."
        )
        await model.request(again)
    prompts = [received.body["messages"][0]["content"] for received in server.requests]
    assert prompts == ["Be brief.", "Be long-winded."]


@every_protocol
async def test_typed_output_is_a_tool_that_the_model_must_call(build: Builder) -> None:
    async with WireServer(reply(call("report", '{"sum":3}'))) as server:
        request = asking(tools=(ADD,), output=REPORT)
        answer = await ProviderModel(build(server)).request(request)
    assert [part.tool for part in answer.parts if isinstance(part, ToolCall)] == ["report"]
    body = server.requests[0].body
    names = [tool.get("name") or tool["function"]["name"] for tool in body["tools"]]
    assert sorted(names) == ["add", "report"]
    assert body["tool_choice"] in ("required", {"type": "any"})


async def test_the_bytes_of_an_image_arrive_at_openai() -> None:
    picture = UserMessage((Text("What is this?"), Image(data=b"\x89PNG-bytes")))
    async with WireServer(reply(words("A cat"))) as server:
        await ProviderModel(openai_model(server)).request(asking(picture))
    text, image = server.requests[0].body["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is this?"}
    encoded = b64encode(b"\x89PNG-bytes").decode()
    assert image["image_url"]["url"] == f"data:image/png;base64,{encoded}"


async def test_the_bytes_of_an_image_and_of_a_file_arrive_at_anthropic() -> None:
    paper = File(data=b"%PDF-bytes", media_type="application/pdf", name="paper.pdf")
    message = UserMessage(
        (Text("Compare."), Image(data=b"\xff\xd8", media_type="image/jpeg"), paper)
    )
    async with WireServer(reply(words("Done"))) as server:
        await ProviderModel(anthropic_model(server)).request(asking(message))
    _, image, document = server.requests[0].body["messages"][0]["content"]
    assert image["source"]["data"] == b64encode(b"\xff\xd8").decode()
    assert image["source"]["media_type"] == "image/jpeg"
    assert document["source"]["data"] == b64encode(b"%PDF-bytes").decode()


async def test_an_image_by_its_address_is_sent_as_the_address() -> None:
    picture = UserMessage((Text("What is this?"), Image(url="https://example.com/cat.png")))
    async with WireServer(reply(words("A cat"))) as server:
        await ProviderModel(openai_model(server)).request(asking(picture))
    image = server.requests[0].body["messages"][0]["content"][1]
    assert image["image_url"]["url"] == "https://example.com/cat.png"


async def second_request(
    build: Builder,
    first: Any,
    results: Callable[[FinishedAnswer], tuple[ToolOutput, ...]],
    ask: Ask,
) -> Any:
    """Answer a first request, give the results of its calls, and return the second as sent."""
    async with WireServer(first, reply(words("Done"))) as server:
        model, request = ProviderModel(build(server)), asking(tools=(ADD,))
        answer = await ask(model, request)
        request.view.messages.append(ModelAnswer(answer.parts))
        request.view.messages.append(ToolOutputs(results(answer)))
        await ask(model, request)
        return server.requests[1].body


def added(answer: FinishedAnswer) -> tuple[ToolOutput, ...]:
    calls = [part for part in answer.parts if isinstance(part, ToolCall)]
    return tuple(ToolOutput("ours", c.tool, "3", provider_id=c.provider_id) for c in calls)


SIGNATURE = "EqQBCgIYAhIM+sig/nature==\u00e9"


@both_ways
async def test_signed_reasoning_returns_to_anthropic_byte_for_byte(ask: Ask) -> None:
    first = reply(thoughts("Let me ", "add.\n", signature=SIGNATURE), call("add", '{"a":1}'))
    body = await second_request(anthropic_model, first, added, ask)
    assert body["messages"][1] == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Let me add.\n", "signature": SIGNATURE},
            {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1}},
        ],
    }


@both_ways
async def test_encrypted_reasoning_and_item_ids_return_to_openai(ask: Ask) -> None:
    first = reply(thoughts("Adding.", signature=SIGNATURE), call("add", '{"a":1}'))
    body = await second_request(lambda it: responses_model(it, "gpt-5.2"), first, added, ask)
    reasoning, calling, result = body["input"][1:]
    assert (reasoning["id"], reasoning["encrypted_content"]) == ("item_0", SIGNATURE)
    assert (calling["id"], calling["call_id"]) == ("item_1", "call_1")
    assert (result["type"], result["call_id"]) == ("function_call_output", "call_1")


@both_ways
async def test_reasoning_returns_in_the_field_in_which_it_came(ask: Ask) -> None:
    first = reply(thoughts("Adding."), call("add", '{"a":1}'))
    body = await second_request(openai_model, first, added, ask)
    assert body["messages"][1]["reasoning_content"] == "Adding."


@every_protocol
async def test_an_answer_goes_back_as_if_it_had_never_been_written_down(build: Builder) -> None:
    first = reply(
        thoughts("Adding.", signature=SIGNATURE), words("Let me see."), call("add", '{"a": 1}')
    )

    async with WireServer(first, reply(words("Done"))) as server:
        model, offered = build(server), parameters(asking(tools=(ADD,)))
        messages: list[Any] = [ai.ModelRequest.user_text_prompt("Hello")]
        messages.append(await model_request(model, messages, model_request_parameters=offered))
        messages.append(ai.ModelRequest([ai.ToolReturnPart("add", "3", "call_1")]))
        await model_request(model, messages, model_request_parameters=offered)
        expected = server.requests[1].body
    assert await second_request(build, first, added, asked) == expected


@both_ways
async def test_parallel_results_answer_their_calls_in_order(ask: Ask) -> None:
    first = reply(call("add", '{"a":1}', id="call_a"), call("add", '{"a":2}', id="call_b"))
    body = await second_request(openai_model, first, added, ask)
    _, answer, *results = body["messages"]
    assert [it["id"] for it in answer["tool_calls"]] == ["call_a", "call_b"]
    assert [(it["role"], it["tool_call_id"]) for it in results] == [
        ("tool", "call_a"),
        ("tool", "call_b"),
    ]


async def test_a_failed_call_has_an_ordinary_result_that_is_marked_as_an_error() -> None:
    def failed(answer: FinishedAnswer) -> tuple[ToolOutput, ...]:
        return (ToolOutput("ours", "add", "no such number", failed=True, provider_id="call_1"),)

    body = await second_request(anthropic_model, reply(call("add", "{}")), failed, asked)
    (result,) = body["messages"][2]["content"]
    assert (result["type"], result["tool_use_id"]) == ("tool_result", "call_1")
    assert result["is_error"] is True
    assert "no such number" in str(result["content"])


async def test_a_call_that_the_provider_did_not_name_goes_by_our_name() -> None:
    calling = ModelAnswer((ToolCall("ours", "add", "{}"),))
    result = ToolOutputs((ToolOutput("ours", "add", "3"),))
    async with WireServer(reply(words("Done"))) as server:
        await ProviderModel(openai_model(server)).request(asking(HELLO, calling, result))
    _, answer, returned = server.requests[0].body["messages"]
    assert answer["tool_calls"][0]["id"] == returned["tool_call_id"] == "ours"


async def test_history_is_translated_once() -> None:
    request = asking()
    async with WireServer(*[reply(words("Hi"))] * 3) as server:
        model = ProviderModel(openai_model(server))
        translated: list[list[Any]] = []
        for _ in range(3):
            answer = await model.request(request)
            translated.append(list(request.view.rendered))
            request.view.messages += [ModelAnswer(answer.parts), UserMessage((Text("More"),))]
    assert [len(messages) for messages in translated] == [1, 3, 5]
    for before, after in pairwise(translated):
        assert all(old is new for old, new in zip(before, after, strict=False))


async def test_the_same_conversation_is_sent_in_the_same_bytes_after_a_restart() -> None:
    request = asking()
    async with WireServer(
        reply(thoughts("Hm"), words("Hi")), *[reply(words("Done"))] * 2
    ) as server:
        first = await ProviderModel(openai_model(server)).request(request)
        request.view.messages += [ModelAnswer(first.parts), HELLO]
        await ProviderModel(openai_model(server)).request(request)
        await ProviderModel(openai_model(server)).request(asking(*request.view.messages))
    assert server.requests[1].raw == server.requests[2].raw


@every_protocol
async def test_leaving_a_stream_early_closes_its_connection(build: Builder) -> None:
    async with WireServer(reply(words(*"Hello"), hold=5)) as server:
        stream = ProviderModel(build(server)).stream(asking())
        assert await next_said(stream) == TextPiece(0, "H")
        await stream.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            await server.requests[0].hung_up.wait()


@every_protocol
async def test_a_cancelled_stream_closes_its_connection(build: Builder) -> None:
    async with WireServer(reply(words(*"Hello"), hold=5)) as server:
        begun = asyncio.Event()

        async def listen() -> None:
            async for _ in ProviderModel(build(server)).stream(asking()):
                begun.set()

        listening = asyncio.create_task(listen())
        await begun.wait()
        listening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listening
        async with asyncio.timeout(60):
            await server.requests[0].hung_up.wait()


async def test_a_piece_is_given_while_the_rest_is_still_to_come() -> None:
    gate = asyncio.Event()
    async with WireServer(reply(words("Hel", "lo"), hold=2, gate=gate)) as server:
        stream = ProviderModel(openai_model(server)).stream(asking())
        assert await next_said(stream) == TextPiece(0, "Hel")
        gate.set()
        assert await next_said(stream) == TextPiece(0, "lo")
        rest = [piece async for piece in stream]
    assert isinstance(rest[-1], FinishedAnswer)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("openai:gpt-wire", "/v1/responses"),
        ("openai-chat:gpt-wire", "/v1/chat/completions"),
        ("anthropic:claude-wire", "/v1/messages"),
    ],
)
async def test_a_model_is_built_from_its_name(
    name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    async with WireServer(reply(words("Hi"))) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        model = ProviderModel(name)
        await model.request(asking())
        await model.close()
    assert model.name == name
    assert server.requests[0].path == path


def test_a_model_serves_one_event_loop_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    model = ProviderModel("openai-chat:gpt-wire")

    async def once() -> FinishedAnswer:
        async with WireServer(reply(words("Hi"))) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
            return await model.request(asking())

    answers = [asyncio.run(once()) for _ in range(2)]
    assert [answer.parts for answer in answers] == [(Text("Hi"),)] * 2


def test_importing_the_provider_imports_no_provider() -> None:
    code = (
        "import sys, outlast.agents.model.pydantic_ai, outlast.testing.provider_server\n"
        "print(sorted({'pydantic_ai', 'openai', 'anthropic', 'httpx'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


async def test_a_stand_in_for_a_model_needs_no_finish_reason() -> None:
    model = ProviderModel(TestModel(custom_output_text="Hello there", call_tools=[]))
    *pieces, last = await said(model, asking())
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)) == "Hello there"
    assert isinstance(last, FinishedAnswer)
    assert last.parts == (Text("Hello there"),)
    assert last.usage != Usage()


async def test_a_provider_that_writes_long_arguments_shows_signs_of_life() -> None:
    async with WireServer(reply(call("look", '{"for": "', "a", "b", '"}'))) as server:
        pieces = [p async for p in ProviderModel(openai_model(server)).stream(asking())]
    assert sum(isinstance(piece, KeepAlive) for piece in pieces) >= 3
