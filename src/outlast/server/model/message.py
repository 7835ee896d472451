"""Messages over the wire: what is sent to a session, and the conversation as it is read."""

from base64 import b64decode
from typing import Annotated, Any, Literal

import msgspec
from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from outlast.core import message as m
from outlast.core.message import SaidPart
from outlast.errors import InvalidMessage
from outlast.server.model.shape import In, Link, Out, example

BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
ONE_OF: JsonDict = {"oneOf": [{"required": ["data"]}, {"required": ["url"]}]}

Data = Annotated[
    str, Field(min_length=4, pattern=BASE64, json_schema_extra={"contentEncoding": "base64"})
]
MediaType = Annotated[str, Field(max_length=256)]
FileName = Annotated[str, Field(max_length=1024)]

MOST_PARTS = 1000


class TextPart(In):
    """Words."""

    kind: Literal["text"]
    text: str = Field(min_length=1, examples=["Refund order 17"])


class ImagePart(In):
    """A picture, by its bytes or by an address that the model's provider fetches."""

    model_config = ConfigDict(json_schema_extra=ONE_OF)

    kind: Literal["image"]
    data: Data = Field(default_factory=str)
    url: Link = Field(default_factory=str)
    media_type: MediaType = "image/png"


class FilePart(In):
    """A document, by its bytes or by an address that the model's provider fetches."""

    model_config = ConfigDict(json_schema_extra=ONE_OF)

    kind: Literal["file"]
    data: Data = Field(default_factory=str)
    url: Link = Field(default_factory=str)
    media_type: MediaType = "application/octet-stream"
    name: FileName = ""


AnyPart = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="kind")]
Words = Annotated[str, Field(min_length=1)]
Message = Annotated[
    Words
    | Annotated[list[Words | AnyPart], Field(min_length=1, max_length=MOST_PARTS, fail_fast=True)],
    Field(
        description="A text, or a list of texts, images and files.",
        examples=["Refund order 17", ["What is this?", {"kind": "image", "data": "aGk="}]],
    ),
]


def said(message: str | list[Any]) -> str | list[SaidPart]:
    """Return a message as the app takes it."""
    return message if isinstance(message, str) else [part_of(part) for part in message]


def part_of(part: str | TextPart | ImagePart | FilePart) -> SaidPart:
    match part:
        case TextPart():
            return m.Text(part.text)
        case ImagePart():
            return m.Image(bytes_of(part), part.url, part.media_type)
        case FilePart():
            return m.File(bytes_of(part), part.url, part.media_type, part.name)
    return part


def bytes_of(part: ImagePart | FilePart) -> bytes:
    if bool(part.data) == bool(part.url):
        raise InvalidMessage(f"a part of kind {part.kind} has either `data` or `url`")
    return b64decode(part.data)


class HistoryMessage(Out):
    """One message of a conversation. `type` says which of the other fields it has."""

    type: Literal["user", "answer", "results"]
    content: list[dict[str, Any]] | None = Field(None, description="What a user said.")
    parts: list[dict[str, Any]] | None = Field(None, description="What the model said.")
    results: list[dict[str, Any]] | None = Field(None, description="What its calls came to.")
    aborted: bool | None = Field(None, description="Whether the answer was cut off.")


class HistoryOut(Out):
    """A lane's conversation, as the model sees it."""

    model_config = example(
        {
            "lane": "main",
            "messages": [
                {"type": "user", "content": [{"kind": "text", "text": "Hello"}]},
                {"type": "answer", "parts": [{"kind": "text", "text": "Hello! What is it?"}]},
            ],
        }
    )

    lane: str
    messages: list[HistoryMessage]
    next_cursor: str | None = Field(None, description="Where the next page begins, if any.")


PROVIDERS_OWN = ("extra", "provider_id")


def history_message(message: m.Message) -> HistoryMessage:
    """Return a message without what only the model's provider understands."""
    plain: dict[str, Any] = msgspec.to_builtins(message)
    for name in ("parts", "results"):
        if name in plain:
            plain[name] = [own(part) for part in plain[name] if part.get("kind") != "foreign"]
    return HistoryMessage(**plain)


def own(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in PROVIDERS_OWN}
