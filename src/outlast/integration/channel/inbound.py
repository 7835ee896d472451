"""What comes in from a channel: the request as it came, and what it means."""

from __future__ import annotations

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
    """What somebody posted. Header names are in lower case; `at` is when, in seconds."""

    headers: Mapping[str, str]
    body: bytes
    at: int

    def header(self, name: str) -> str:
        """Return a header that a signature cannot do without."""
        if value := self.headers.get(name.lower()):
            return value
        raise InvalidSignature(f"the header {name} is missing")

    def json(self) -> dict[str, Any]:
        """Return the body, if it is an object of JSON."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise InvalidMessage("the body is no JSON object") from None

    def form(self) -> dict[str, str]:
        """Return the fields of a form; of a body that is none, whatever it looks like, nothing."""
        if not self.headers.get("content-type", "").startswith(FORM):
            return {}
        return dict(parse_qsl(self.body.decode(errors="replace"), keep_blank_values=True))


class HttpReply(Struct, frozen=True):
    """What is answered to the request itself, at once."""

    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


class InboundAnswer(Struct, frozen=True, kw_only=True):
    """An answer to an open request: a button that was pressed, a form that was filled in."""

    request_id: str
    option: str | None = None
    text: str | None = None
    args: Mapping[str, Any] | None = None


class Inbound(Struct, frozen=True, kw_only=True):
    """A `message` for the conversation in a `thread`, or a `reply` to what was asked there.

    Several with the same `id` are one, however often the sender tries. `principal` is who says
    it. Without a `tenant` it is the channel's. `answer` is for the sender's request itself.
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
            raise InvalidMessage("what comes in is either a message or a reply")


class ReceivedRequest(Struct, frozen=True):
    """What became of a request: the receipt if it was for a session, and what to answer."""

    receipt: Receipt[Any] | None = None
    answer: HttpReply | None = None
