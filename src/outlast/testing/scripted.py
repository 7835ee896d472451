"""A model that follows a script: no provider, no network, the same every time.

The script's place is read from the conversation itself, so a scripted agent goes on
where it was when another process takes over, as a real model would.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from outlast.agents.model.client import (
    AnswerCutOff,
    FinishedAnswer,
    ModelFailure,
    ModelPiece,
    ModelRequest,
    ReasoningPiece,
    TextPiece,
    ToolCallPiece,
)
from outlast.core.message import ModelAnswer, Part, Reasoning, Text, ToolCall, UserMessage, text_of
from outlast.core.record import Failure
from outlast.core.result import Usage
from outlast.core.view import GO_ON


class ScriptedError(Exception):
    """A failure that the script asks for."""

    def __init__(self, kind: str, message: str, retry_after: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after


class ScriptedReply(Struct, frozen=True, kw_only=True):
    """One answer of the script. `chunks` texts are streamed `pace` seconds apart."""

    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    reasoning: str = ""
    chunks: int = 1
    pace: float = 0.0
    delay: float = 0.0
    fails: tuple[ScriptedError, ...] = ()
    cut_after: int | None = None


def say(text: str, *, chunks: int = 1, pace: float = 0.0, delay: float = 0.0) -> ScriptedReply:
    """Answer with a text."""
    return ScriptedReply(text=text, chunks=chunks, pace=pace, delay=delay)


def call(tool: str, **args: Any) -> ScriptedReply:
    """Ask for one tool."""
    return ScriptedReply(calls=((tool, args),))


def calls(*wanted: tuple[str, Mapping[str, Any]], text: str = "") -> ScriptedReply:
    """Ask for several tools at once."""
    return ScriptedReply(calls=wanted, text=text)


Script = Sequence[ScriptedReply] | Callable[[ModelRequest], ScriptedReply]


class ScriptedModel:
    """Gives the n-th reply of a script where n answers have been given; or asks a function."""

    def __init__(
        self,
        script: Script,
        *,
        name: str = "scripted",
        on_request: Callable[[ModelRequest], None] | None = None,
    ) -> None:
        self.name = name
        self._script = script
        self._on_request = on_request

    async def request(self, request: ModelRequest) -> FinishedAnswer:
        reply = self._reply(request)
        if reply.delay:
            await asyncio.sleep(reply.delay)
        return finished(reply, request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        reply = self._reply(request)
        if reply.delay:
            await asyncio.sleep(reply.delay)
        whole = finished(reply, request)
        for said, piece in enumerate(pieces(reply, whole)):
            if said == reply.cut_after and request.attempt == 1:
                raise AnswerCutOff("the script cuts the stream off here")
            yield piece
            if reply.pace:
                await asyncio.sleep(reply.pace)
        yield whole

    def classify(self, error: Exception) -> ModelFailure:
        if isinstance(error, ScriptedError):
            failure = Failure("SCRIPTED", str(error))
            return ModelFailure(error.kind, failure, error.retry_after)  # type: ignore[arg-type]
        return ModelFailure("structural", Failure("SCRIPT", f"{type(error).__name__}: {error}"))

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _reply(self, request: ModelRequest) -> ScriptedReply:
        if self._on_request:
            self._on_request(request)
        if callable(self._script):
            reply = self._script(request)
        else:
            place = answers_given(request)
            if place >= len(self._script):
                raise ScriptedError("recoverable", f"the script has no reply number {place + 1}")
            reply = self._script[place]
        if request.attempt <= len(reply.fails):
            raise reply.fails[request.attempt - 1]
        return reply


def answers_given(request: ModelRequest) -> int:
    """Count the whole answers in the conversation, those included that are no longer seen."""
    return request.view.answers


def said_before(request: ModelRequest) -> str:
    """Return what the model had said of this answer when it was cut off, if it is to go on."""
    messages = request.view.messages
    said = ""
    for message in reversed(messages):
        if isinstance(message, UserMessage) and text_of(message.content) == GO_ON:
            continue
        if isinstance(message, ModelAnswer) and message.aborted:
            said = text_of(message.parts) + said
            continue
        break
    return said


def finished(reply: ScriptedReply, request: ModelRequest) -> FinishedAnswer:
    parts: list[Part] = []
    if reply.reasoning:
        parts.append(Reasoning(reply.reasoning))
    text = reply.text.removeprefix(said_before(request))
    if text or not reply.calls:
        parts.append(Text(text))
    for tool, args in reply.calls:
        parts.append(ToolCall("", tool, msgspec.json.encode(args).decode()))
    usage = Usage(input_tokens=len(request.view.messages) * 10, output_tokens=len(text) // 4 + 1)
    return FinishedAnswer(tuple(parts), usage, "scripted", "stop")


def pieces(reply: ScriptedReply, whole: FinishedAnswer) -> list[ModelPiece]:
    """Return the answer in pieces; an answer in one chunk is not streamed at all."""
    found: list[ModelPiece] = []
    for number, part in enumerate(whole.parts):
        match part:
            case Text() if reply.chunks > 1:
                found += [TextPiece(number, text) for text in split(part.text, reply.chunks)]
            case Reasoning() if reply.chunks > 1:
                found += [ReasoningPiece(number, text) for text in split(part.text, reply.chunks)]
            case ToolCall() if reply.chunks > 1:
                found.append(ToolCallPiece(number, part.tool))
    return found


def split(text: str, chunks: int) -> list[str]:
    size = max(1, -(-len(text) // chunks))
    return [text[i : i + size] for i in range(0, len(text), size)]
