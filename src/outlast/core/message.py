"""Messages: their parts, and the messages that a model sees.

Provider-neutral. What a provider needs back unchanged (signatures, ids, parts of
kinds unknown here) travels beside the parts as text that only its client reads.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from outlast.errors import InvalidInput, InvalidMessage, MessageTooLarge, NotEncodable

MAX_MESSAGE = 32 * 1024 * 1024


class Text(Struct, frozen=True, gc=False, tag="text", tag_field="kind", omit_defaults=True):
    """A text. `extra` belongs to the provider, as JSON text."""

    text: str
    extra: str = ""


class Image(Struct, frozen=True, gc=False, tag="image", tag_field="kind", omit_defaults=True):
    """A picture: its bytes, or an address that the provider fetches."""

    data: bytes = b""
    url: str = ""
    media_type: str = "image/png"


class File(Struct, frozen=True, gc=False, tag="file", tag_field="kind", omit_defaults=True):
    """A document: its bytes, or an address that the provider fetches."""

    data: bytes = b""
    url: str = ""
    media_type: str = "application/octet-stream"
    name: str = ""


class Reasoning(
    Struct, frozen=True, gc=False, tag="reasoning", tag_field="kind", omit_defaults=True
):
    """The model's reasoning before its answer."""

    text: str
    extra: str = ""


class ToolCall(
    Struct, frozen=True, gc=False, tag="tool_call", tag_field="kind", omit_defaults=True
):
    """The model asks for a tool. `args` is JSON text, `provider_id` the provider's own name."""

    call_id: str
    tool: str
    args: str
    provider_id: str = ""
    extra: str = ""


class ProviderPart(
    Struct, frozen=True, gc=False, tag="foreign", tag_field="kind", omit_defaults=True
):
    """A part that only the provider's client understands, kept as the bytes that it wrote."""

    codec: str
    version: str
    digest: str
    data: bytes


Content = tuple[Text | Image | File, ...]
"""The parts of a user's message: at least one."""

Part = Text | Reasoning | ToolCall | ProviderPart
"""The parts of a model's answer."""


class UserMessage(Struct, frozen=True, gc=False, tag="user", omit_defaults=True):
    """A message from a user, or from whoever the session works for."""

    content: Content


class ModelAnswer(Struct, frozen=True, gc=False, tag="answer", omit_defaults=True):
    """A model's answer; `aborted` marks an answer that a crash or a lost stream cut off."""

    parts: tuple[Part, ...]
    aborted: bool = False


class ToolOutput(Struct, frozen=True, gc=False, tag="result", omit_defaults=True):
    """The result of one tool call, as the model sees it."""

    call_id: str
    tool: str
    text: str
    failed: bool = False
    provider_id: str = ""


class ToolOutputs(Struct, frozen=True, gc=False, tag="results", omit_defaults=True):
    """The results of one step, in the order of its calls."""

    results: tuple[ToolOutput, ...]


Message = UserMessage | ModelAnswer | ToolOutputs


def text_of(content: Content | tuple[Part, ...]) -> str:
    """Return the words of a message, without what is not words."""
    return "".join(part.text for part in content if isinstance(part, Text))


SaidPart = str | Text | Image | File
Said = SaidPart | Sequence[SaidPart]
"""The values that callers may pass as a message."""


def content_of(message: Said) -> Content:
    """Return a message as its parts, or say what is wrong with it."""
    items: Any = (message,) if isinstance(message, SaidPart) else message
    if not isinstance(items, Sequence) or isinstance(items, bytes) or not items:
        raise InvalidMessage(
            "a message is a text, or a sequence of texts, images and files with at least one"
        )
    content = tuple(part_of(item) for item in items)
    size = sum(size_of(part) for part in content)
    if size == 0:
        raise InvalidMessage("a message cannot be empty")
    if size > MAX_MESSAGE:
        raise MessageTooLarge(
            f"the message has {size:,} bytes, and {MAX_MESSAGE:,} is the most: "
            "put large files where tools can read them, and send where they are",
            size=size,
            limit=MAX_MESSAGE,
        )
    return content


def part_of(item: SaidPart) -> Text | Image | File:
    if isinstance(item, str):
        return Text(str.__str__(item))
    if isinstance(item, Text | Image | File):
        return checked_part(item)
    raise InvalidMessage(
        f"a {type(item).__name__} cannot be part of a message: use str, Text, Image or File"
    )


def checked_part(part: Text | Image | File) -> Text | Image | File:
    """Return a part that can be stored, if its fields are what they should be.

    Making one does not look at them.
    """
    for name in part.__struct_fields__:
        value, kind = getattr(part, name), bytes if name == "data" else str
        if not isinstance(value, kind):
            raise InvalidMessage(
                f"{type(part).__name__}({name}=…) takes {kind.__name__}, not {type(value).__name__}"
            )
        if name == "text":
            kept: Any = str.__str__(value)  # its size is counted next, which tells the rest
        else:
            kept = plain(f"{type(part).__name__}({name}=…)", value)
        if kept is not value:
            part = replace(part, **{name: kept})
    if not isinstance(part, Text) and bool(part.data) == bool(part.url):
        given = "both" if part.data else "neither"
        raise InvalidMessage(
            f"a {type(part).__name__} has data or a url, and {given} was given: give one of them"
        )
    return part


def plain(what: str, value: str | bytes) -> Any:
    """Return a text or bytes as a log can keep them: of no subclass, no halves of characters."""
    if isinstance(value, bytes):
        return bytes(value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise NotEncodable(f"{what} cannot be stored: {error}") from error
    return str.__str__(value)


def check_text(what: str, value: Any) -> str:
    """Return words that go with something other than a message, if they can be kept."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is a text, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise NotEncodable(f"{what} cannot be stored: {error}") from error
    if size > MAX_MESSAGE:
        raise MessageTooLarge(
            f"{what} has {size:,} bytes, and {MAX_MESSAGE:,} is the most",
            size=size,
            limit=MAX_MESSAGE,
        )
    return str.__str__(value)


def size_of(part: Text | Image | File) -> int:
    """Return how many bytes a part has. Raises NotEncodable if its text holds half a character."""
    if not isinstance(part, Text):
        return len(part.data) + len(part.url)
    if part.text.isascii():
        return len(part.text)
    try:
        return len(part.text.encode())
    except UnicodeEncodeError as error:
        raise NotEncodable(f"a message's text cannot be stored: {error}") from error


def storable(text: str) -> str:
    """Return a text without the halves of characters that a provider or an error may hold."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text
