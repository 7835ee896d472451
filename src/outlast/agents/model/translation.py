"""Our messages as pydantic-ai's, and its answers as ours: plain values to plain values.

Both sides are what pydantic-ai's own type adapter reads and writes, so this file
needs nothing of the library. Parts that a provider wants back unchanged (ids, signatures,
whole parts of kinds unknown here) is kept and put back; nothing here looks into it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from outlast.agents.model.client import (
    AnswerCutOff,
    ModelPiece,
    ReasoningPiece,
    TextPiece,
    ToolCallPiece,
)
from outlast.core.message import (
    Content,
    File,
    Image,
    Message,
    ModelAnswer,
    Part,
    ProviderPart,
    Reasoning,
    Text,
    ToolCall,
    ToolOutput,
    ToolOutputs,
    UserMessage,
)
from outlast.core.result import Usage
from outlast.errors import InvalidDefinition, StoreCorrupt

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponseStreamEvent
    from pydantic_ai.usage import RequestUsage

CODEC = "pydantic-ai"

Plain = dict[str, Any]

RESPONSE = "response"
"""The entry of a part's `extra` that belongs to its whole answer."""

ORIGIN = ("provider_name", "provider_url", "canonical_system")
"""Facts about an answer that a provider needs to accept its own ids and signatures again."""


# To the model


def render(message: Message) -> Plain:
    """Return the one message of pydantic-ai that says the same."""
    match message:
        case UserMessage():
            prompt = {"part_kind": "user-prompt", "content": render_content(message.content)}
            return {"kind": "request", "parts": [prompt]}
        case ModelAnswer():
            parts = [render_part(part) for part in message.parts]
            origins = [part.pop(RESPONSE) for part in parts if RESPONSE in part]
            return {"kind": "response", "parts": parts, **(origins[0] if origins else {})}
        case ToolOutputs():
            return {"kind": "request", "parts": [render_result(it) for it in message.results]}
        case _:
            assert_never(message)


def render_content(content: Content) -> str | list[str | Plain]:
    if len(content) == 1 and isinstance(content[0], Text):
        return content[0].text
    return [part.text if isinstance(part, Text) else render_file(part) for part in content]


def render_file(part: Image | File) -> Plain:
    if part.data:
        name = {"identifier": part.name} if isinstance(part, File) and part.name else {}
        return {"kind": "binary", "data": part.data, "media_type": part.media_type, **name}
    if isinstance(part, Image):
        # The default type says nothing about a picture that was given by its address alone.
        known = part.media_type != Image().media_type
        return {"kind": "image-url", "url": part.url} | (
            {"media_type": part.media_type} if known else {}
        )
    kind = part.media_type.partition("/")[0]
    kind = kind if kind in {"image", "audio", "video"} else "document"
    return {"kind": f"{kind}-url", "url": part.url, "media_type": part.media_type}


def render_part(part: Part) -> Plain:
    match part:
        case Text():
            return {**leftovers(part.extra), "part_kind": "text", "content": part.text}
        case Reasoning():
            return {**leftovers(part.extra), "part_kind": "thinking", "content": part.text}
        case ToolCall():
            return {
                **leftovers(part.extra),
                "part_kind": "tool-call",
                "tool_name": part.tool,
                "args": part.args,
                "tool_call_id": part.provider_id or part.call_id,
            }
        case ProviderPart():
            return restore(part)
        case _:
            assert_never(part)


def leftovers(extra: str) -> Plain:
    return msgspec.json.decode(extra, type=Plain) if extra else {}


def restore(part: ProviderPart) -> Plain:
    """Return a part as it was written, if it still is what was written."""
    if part.codec != CODEC:
        raise InvalidDefinition(
            f"a part of this conversation was written by the model client {part.codec!r};"
            " continue it with a model of that client",
            codec=part.codec,
        )
    if sha256(part.data).hexdigest() != part.digest:
        raise StoreCorrupt(
            "a provider's part of an answer is not what was stored; restore it from a backup",
            digest=part.digest,
        )
    return msgspec.json.decode(part.data, type=Plain)


def render_result(result: ToolOutput) -> Plain:
    """Return a result; one that failed is an ordinary result too, marked where providers can."""
    return {
        "part_kind": "tool-return",
        "tool_name": result.tool,
        "tool_call_id": result.provider_id or result.call_id,
        "content": result.text,
        "outcome": "failed" if result.failed else "success",
    }


# From the model


def read_parts(response: Plain, version: str) -> tuple[Part, ...]:
    """Return the parts of an answer; `version` is that of the pydantic-ai which wrote it down."""
    parts = tuple(read_part(part, version) for part in response["parts"])
    if not any(part.get("provider_name") for part in response["parts"]):
        return parts
    origin = {name: response[name] for name in ORIGIN if response.get(name)}
    return tuple(keep_origin(parts, origin))


def keep_origin(parts: tuple[Part, ...], origin: Plain) -> Iterator[Part]:
    """Write where an answer came from beside the first of its parts that has room for it."""
    for part in parts:
        if origin and not isinstance(part, ProviderPart):
            extra = to_text({**leftovers(part.extra), RESPONSE: origin})
            yield msgspec.structs.replace(part, extra=extra)
            origin = {}
        else:
            yield part


def read_part(part: Plain, version: str) -> Part:
    match part["part_kind"]:
        case "text":
            return Text(part["content"], extra_of(part, "content"))
        case "thinking":
            return Reasoning(part["content"], extra_of(part, "content"))
        case "tool-call":
            return ToolCall(
                call_id="",
                tool=part["tool_name"],
                args=arguments(part["args"]),
                provider_id=part["tool_call_id"],
                extra=extra_of(part, "tool_name", "args", "tool_call_id"),
            )
        case _:
            data = msgspec.json.encode(part)
            return ProviderPart(CODEC, version, sha256(data).hexdigest(), data)


def extra_of(part: Plain, *known: str) -> str:
    """Return what else the provider said of a part, as JSON text."""
    rest = {
        name: value
        for name, value in part.items()
        if value is not None and name not in known and name != "part_kind"
    }
    return to_text(rest) if rest else ""


def arguments(args: str | Plain | None) -> str:
    """Return arguments as JSON text, as the model wrote them; a call without any has none."""
    return args or "{}" if isinstance(args, str) else to_text(args or {})


def to_text(value: Plain) -> str:
    return msgspec.json.encode(value).decode()


def read_usage(usage: RequestUsage) -> Usage:
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        details=dict(usage.details),
    )


class StreamTranslator:
    """Turns the events of a stream into pieces of an answer, and remembers what it has said."""

    def __init__(self) -> None:
        self._texts: dict[int, list[str]] = {}
        self._calls: set[int] = set()

    def announce(self, event: ModelResponseStreamEvent) -> Iterator[ModelPiece]:
        """Give the piece in an event, if there is one."""
        if event.event_kind == "part_start":
            part = event.part
            if part.part_kind == "text":
                yield from self._text(event.index, part.content)
            elif part.part_kind == "thinking":
                yield from self._reasoning(event.index, part.content)
            elif part.part_kind == "tool-call" and event.index not in self._calls:
                self._calls.add(event.index)
                yield ToolCallPiece(event.index, part.tool_name)
        elif event.event_kind == "part_delta":
            delta = event.delta
            if delta.part_delta_kind == "text":
                yield from self._text(event.index, delta.content_delta)
            elif delta.part_delta_kind == "thinking":
                yield from self._reasoning(event.index, delta.content_delta)

    def complete(self, parts: Sequence[Part]) -> Iterator[ModelPiece]:
        """Give what was not announced of the whole answer; refuse one that is not what was said."""
        for number in self._calls:
            if number >= len(parts) or not isinstance(parts[number], ToolCall):
                raise AnswerCutOff("a tool call that had begun is not in the answer")
        for number in self._texts:
            if number >= len(parts) or not isinstance(parts[number], Text | Reasoning):
                raise AnswerCutOff("a text that had begun is not in the answer")
        for number, part in enumerate(parts):
            if isinstance(part, Text | Reasoning):
                said = "".join(self._texts.get(number, ()))
                if not part.text.startswith(said):
                    raise AnswerCutOff("the answer is not what was streamed of it")
                say = self._text if isinstance(part, Text) else self._reasoning
                yield from say(number, part.text[len(said) :])

    def _text(self, part: int, text: str) -> Iterator[ModelPiece]:
        if text:
            self._texts.setdefault(part, []).append(text)
            yield TextPiece(part, text)

    def _reasoning(self, part: int, text: str | None) -> Iterator[ModelPiece]:
        if text:
            self._texts.setdefault(part, []).append(text)
            yield ReasoningPiece(part, text)
