"""Streams that end before the answer does, after every one of their events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from outlast.agents.model.client import (
    AnswerCutOff,
    FinishedAnswer,
    KeepAlive,
    ModelPiece,
    ModelRequest,
    ToolSpec,
)
from outlast.agents.model.pydantic_ai import ProviderModel
from outlast.core.message import Text, UserMessage
from outlast.core.view import View
from outlast.testing.provider_server import (
    WireReply,
    WireServer,
    anthropic_model,
    call,
    openai_model,
    reply,
    responses_model,
    thoughts,
    words,
)
from outlast.testing.provider_wire import anthropic_events, chat_events, responses_events

ANSWERS = {
    "text": reply(words("The ", "answer ", "is 42.")),
    "calls": reply(
        thoughts("Hm, ", "so", signature="sig"),
        words("I will ", "ask."),
        call("ask", '{"who":', ' "Ada"', "}", id="call_a"),
        call("ask", '{"who": "Bob"}', id="call_b"),
    ),
}

# How many of the last events come after the one with the provider's finish reason.
PROTOCOLS: dict[str, tuple[Callable[[WireServer], Any], Any, int]] = {
    "chat": (openai_model, chat_events, 2),
    "messages": (anthropic_model, anthropic_events, 1),
    "responses": (responses_model, responses_events, 0),
}

every_cut = pytest.mark.parametrize(
    ("protocol", "answer", "cut"),
    [
        pytest.param(protocol, answer, cut, id=f"{protocol}-{name}-{cut}")
        for name, answer in ANSWERS.items()
        for protocol, (_, events, _) in PROTOCOLS.items()
        for cut in range(1, len(list(events(answer))))
    ],
)


async def listen(protocol: str, answer: WireReply) -> tuple[list[ModelPiece], Exception | None]:
    """Return what a client heard of an answer, and how that ended."""
    view = View()
    view.messages.append(UserMessage((Text("Hello"),)))
    tools = (ToolSpec("ask", "Ask somebody.", {"type": "object", "properties": {"who": {}}}),)
    request = ModelRequest(view=view, call_id="call", attempt=1, tools=tools)
    heard: list[ModelPiece] = []
    async with WireServer(answer) as server:
        try:
            async for piece in ProviderModel(PROTOCOLS[protocol][0](server)).stream(request):
                if not isinstance(piece, KeepAlive):
                    heard.append(piece)
        except Exception as error:  # noqa: BLE001 - the test says which one it should have been
            return heard, error
        finally:
            assert len(server.requests) == 1
    return heard, None


@every_cut
async def test_a_stream_that_ends_early_is_an_answer_cut_off(
    protocol: str, answer: WireReply, cut: int
) -> None:
    whole, _ = await listen(protocol, answer)
    heard, error = await listen(protocol, replace(answer, cut=cut, quietly=True))
    _, events, after = PROTOCOLS[protocol]
    if cut >= len(list(events(answer))) - after:  # only what follows the answer is missing
        assert error is None
        assert [piece for piece in heard if not isinstance(piece, FinishedAnswer)] == whole[:-1]
        assert parts_of(heard) == parts_of(whole)
    else:
        assert isinstance(error, AnswerCutOff)
        assert not any(isinstance(piece, FinishedAnswer) for piece in heard)
        assert heard == whole[: len(heard)]


@every_cut
async def test_a_connection_that_breaks_is_an_answer_cut_off(
    protocol: str, answer: WireReply, cut: int
) -> None:
    whole, _ = await listen(protocol, answer)
    heard, error = await listen(protocol, replace(answer, cut=cut))
    assert isinstance(error, AnswerCutOff)
    assert not any(isinstance(piece, FinishedAnswer) for piece in heard)
    assert heard == whole[: len(heard)]


def parts_of(heard: list[ModelPiece]) -> Any:
    last = heard[-1]
    assert isinstance(last, FinishedAnswer)
    return [replace(part, extra="") for part in last.parts]


@pytest.mark.parametrize("quietly", [True, False])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_stream_without_a_single_event_may_be_asked_for_again(
    protocol: str, quietly: bool
) -> None:
    heard, error = await listen(protocol, replace(ANSWERS["text"], cut=0, quietly=quietly))
    assert heard == []
    assert error is not None
    assert ProviderModel("test").classify(error).kind == "transient"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_answer_cut_off_may_be_asked_for_again(protocol: str) -> None:
    _, error = await listen(protocol, replace(ANSWERS["text"], cut=2, quietly=True))
    assert isinstance(error, AnswerCutOff)
    failure = ProviderModel("test").classify(error)
    assert (failure.kind, failure.error.code) == ("transient", "ANSWER_CUT_OFF")
