"""Messages, answers and tool results in the form of OpenTelemetry's GenAI conventions.

Used only with `Telemetry(content=True)`. Leaves out the bytes of pictures and files, and parts that
only a provider's client can read.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from outlast.core.message import (
    Message,
    ModelAnswer,
    Reasoning,
    Text,
    ToolCall,
    ToolOutput,
    ToolOutputs,
    UserMessage,
)


def messages(said: Iterable[Message]) -> str:
    """Return a conversation as JSON text."""
    return to_json([message(each) for each in said])


def answer(parts: Iterable[Any], finish: str) -> str:
    """Return a model's answer as JSON text."""
    return to_json([{**with_role("assistant", parts), "finish_reason": finish}])


def message(said: Message) -> dict[str, Any]:
    match said:
        case UserMessage(content=content):
            return with_role("user", content)
        case ModelAnswer(parts=parts):
            return with_role("assistant", parts)
        case ToolOutputs(results=results):
            return with_role("tool", results)


def with_role(role: str, parts: Iterable[Any]) -> dict[str, Any]:
    return {"role": role, "parts": [part(each) for each in parts]}


def part(said: Any) -> dict[str, Any]:
    match said:
        case Text(text=text):
            return {"type": "text", "content": text}
        case Reasoning(text=text):
            return {"type": "reasoning", "content": text}
        case ToolCall():
            call = {"id": said.call_id, "name": said.tool, "arguments": from_json(said.args)}
            return {"type": "tool_call", **call}
        case ToolOutput():
            return {"type": "tool_call_response", "id": said.call_id, "response": said.text}
    return {"type": type(said).__name__.lower()}


def to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def from_json(text: str) -> Any:
    """Return JSON text as a value, or the text itself where a model wrote none."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
