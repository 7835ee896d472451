"""Inbound requests of a channel: as they were posted, and what they mean.

Owns the types between a channel, which reads a post, and `receiver.py`, which takes what it means
to a session. The other direction is `outgoing.py`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from msgspec import Struct

from outlast.core.json_text import JsonRefused, read_json
from outlast.core.message import Said
from outlast.errors import InvalidMessage, InvalidSignature
from outlast.session import Receipt

FORM = "application/x-www-form-urlencoded"
MOST_FIELDS = 1000


class InboundRequest(Struct, frozen=True, kw_only=True):
    """A posted request. Header names are in lower case; `at` is when it came."""

    headers: Mapping[str, str]
    body: bytes
    at: datetime

    def header(self, name: str) -> str:
        """Return a header that a signature needs."""
        if value := self.headers.get(name.lower()):
            return value
        raise InvalidSignature(f"the header {name} is missing")

    def json(self) -> dict[str, Any]:
        """Return the body, if it is a JSON object: of bounded size, every name once."""
        try:
            value = read_json(self.body)
        except JsonRefused as why:
            raise InvalidMessage(f"the body is not a JSON object: {why}") from None
        if not isinstance(value, dict):
            raise InvalidMessage("the body is not a JSON object")
        return value

    def form(self) -> dict[str, str]:
        """Return the fields of a form; none if the content type is another."""
        if not self.headers.get("content-type", "").startswith(FORM):
            return {}
        text = self.body.decode(errors="replace")
        try:
            return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
        except ValueError:
            raise InvalidMessage(f"the form has more than {MOST_FIELDS:,} fields") from None


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
    author. Without a `tenant` it is the channel's. A session that a message starts gets the
    `tags`. `answer` is the HTTP answer to the sender.
    """

    id: str
    thread: str
    message: Said | None = None
    reply: InboundAnswer | None = None
    principal: str = ""
    tenant: str = ""
    tags: Mapping[str, str] = {}
    answer: HttpReply | None = None

    def __post_init__(self) -> None:
        if (self.message is None) == (self.reply is None):
            raise InvalidMessage("an Inbound needs either a message or a reply")


class ReceivedRequest(Struct, frozen=True):
    """The result of a request: a receipt if it was for a session, and the HTTP answer."""

    receipt: Receipt[Any] | None = None
    answer: HttpReply | None = None
