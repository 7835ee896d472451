"""A pydantic-ai `Model` object as an agent's model, as its own users have it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel as AnyAnswer
from pydantic_ai.providers.openai import OpenAIProvider

from outlast import Agent, Context, ModelOptions, Outlast, tool
from outlast.agents.model.pydantic_ai import ProviderModel

ANSWER = {
    "id": "1",
    "object": "chat.completion",
    "created": 0,
    "model": "gpt-5.2",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "hello"},
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


class KeepsConnections(BaseHTTPRequestHandler):
    """Gives one answer to everything, and keeps the connection for the next question."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def provider() -> Iterator[str]:
    """A provider that outlives the event loops of those who ask it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), KeepsConnections)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_one_model_serves_several_event_loops() -> None:
    with provider() as url:
        model = OpenAIChatModel("gpt-5.2", provider=OpenAIProvider(base_url=url, api_key="k"))
        helper = Agent("helper", model, model_options=ModelOptions(stream=False))

        async def ask() -> str:
            async with Outlast([helper], store="memory://") as app:
                return (await (await app.start(helper, "hi")).wait()).unwrap()

        assert [asyncio.run(ask()) for _ in range(3)] == ["hello"] * 3


def answers(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart("hello")])


@pytest.mark.parametrize(
    "model",
    [
        FunctionModel(answers),
        FallbackModel(FunctionModel(answers), AnyAnswer()),
        AnyAnswer(custom_output_text="hello", call_tools=[]),
    ],
    ids=["function", "fallback", "test"],
)
async def test_a_model_that_cannot_stream_is_asked_for_whole_answers(model: Model) -> None:
    helper = Agent("helper", model)
    async with Outlast([helper], store="memory://") as app:
        assert (await (await app.start(helper, "hi")).wait()).unwrap() == "hello"


def pays(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if len(messages) > 1:
        return answers(messages, info)
    return ModelResponse(parts=[ToolCallPart("pay", {"cents": 3})])


async def pays_in_pieces(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[str | DeltaToolCalls]:
    if len(messages) > 1:
        yield "hel"
        yield "lo"
    else:
        yield {0: DeltaToolCall(name="pay", json_args='{"cents": 3}')}


@pytest.mark.parametrize(
    "model",
    [
        FunctionModel(pays),
        FunctionModel(stream_function=pays_in_pieces),
        AnyAnswer(custom_output_text="hello"),
    ],
    ids=["function", "stream function", "test"],
)
def test_a_session_that_waits_goes_on_with_the_same_model_in_another_event_loop(
    model: Model, tmp_path: Path
) -> None:
    @tool(approval="always")
    async def pay(ctx: Context, cents: int) -> str:
        """Pay."""
        return "paid"

    payer, store = Agent("payer", model, tools=[pay]), f"sqlite:///{tmp_path / 'outlast.db'}"

    async def ask() -> str:
        async with Outlast([payer], store=store) as app:
            session = await app.start(payer, "hi", mode="task")
            assert (await session.wait()).requests
            return session.id

    async def approve(session_id: str) -> object:
        async with Outlast([payer], store=store) as app:
            session = await app.session(session_id)
            [request] = await session.requests()
            await session.answer(request.request_id, "approve")
            return (await session.wait()).output

    for _ in range(2):
        assert asyncio.run(approve(asyncio.run(ask()))) == "hello"


def test_what_can_stream_does() -> None:
    assert ProviderModel("openai:gpt-5.2").can_stream
    assert ProviderModel(AnyAnswer()).can_stream
    assert not ProviderModel(FunctionModel(answers)).can_stream
