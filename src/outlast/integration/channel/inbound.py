"""Inbound requests of a channel: as they were posted, and what they mean."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from outlast.core.message import Said
from outlast.errors import InvalidMessage, InvalidSignature
from outlast.session import Receipt

FORM = "application/x-www-form-urlencoded"


class InboundRequest(Struct, frozen=True, kw_only=True):
    """A posted request. Header names are in lower case; `at` is its time, in seconds."""

    headers: Mapping[str, str]
    body: bytes
    at: int

    def header(self, name: str) -> str:
        """Return a header that a signature needs."""
        if value := self.headers.get(name.lower()):
            return value
        raise InvalidSignature(f"the header {name} is missing")

    def json(self) -> dict[str, Any]:
        """Return the body, if it is a JSON object."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise InvalidMessage("the body is no JSON object") from None

    def form(self) -> dict[str, str]:
        """Return the fields of a form; none if the content type is another."""
        if not self.headers.get("content-type", "").startswith(FORM):
            return {}
        return dict(parse_qsl(self.body.decode(errors="replace"), keep_blank_values=True))


class HttpReply(Struct, frozen=True):
    """The HTTP answer to the request itself."""

    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


class InboundAnswer(Struct, frozen=True, kw_only=True):
    """An answer to an open request: a pressed button, a completed form."""

    request_id: str
    option: str | None = None
    text: str | None = None
    args: Mapping[str, Any] | None = None


class Inbound(Struct, frozen=True, kw_only=True):
    """A `message` for the conversation in a `thread`, or a `reply` to a request there.

    Several with the same `id` count as one, however often the sender tries. `principal` is the
    author. Without a `tenant` it is the channel's. `answer` is the HTTP answer to the sender.
    """

    id: str
    thread: str
    message: Said | None = None
    reply: InboundAnswer | None = None
    principal: str = ""
    tenant: str = ""
    answer: HttpReply | None = None

    def __post_init__(self) -> None:
        if (self.message is None) == (self.reply is None):
            raise InvalidMessage("an inbound request is either a message or a reply")


class ReceivedRequest(Struct, frozen=True):
    """The result of a request: a receipt if it was for a session, and the HTTP answer."""

    receipt: Receipt[Any] | None = None
    answer: HttpReply | None = None
