"""The generic channel: signed webhooks in both directions.

Both directions are signed by the rules of Standard Webhooks, so that the other side needs no
code of Outlast.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from outlast.agents.agent import Agent
from outlast.core.instant import Span, milliseconds_at
from outlast.core.message import File, Image, Said, Text
from outlast.core.setting import seconds_of
from outlast.errors import InvalidDefinition, InvalidMessage
from outlast.integration.channel.channel import DEFAULT_EVENTS, Channel
from outlast.integration.channel.http import ChannelClient
from outlast.integration.channel.inbound import Inbound, InboundAnswer, InboundRequest
from outlast.integration.channel.outgoing import Outgoing
from outlast.net.address import check_url
from outlast.net.signature import ID, TOLERANCE, Secrets, check_signature, secrets_of, sign

JSON = {"content-type": "application/json", "user-agent": "outlast-channel"}


class SignedBody(Struct, frozen=True, kw_only=True):
    """The body of an inbound request."""

    thread: str
    text: str | None = None
    parts: tuple[Text | Image | File, ...] | None = None
    reply: InboundAnswer | None = None
    user: str = ""
    session_id: str = ""


class SignedWebhookChannel(Channel):
    """Takes messages that are signed with `secret`, and posts the answers to `send_url`.

    Posts are signed with `send_secret`, by default the same. Of several secrets any is accepted,
    and all of them sign.
    """

    def __init__(
        self,
        name: str,
        agent: Agent[Any, Any] | str,
        secret: Secrets,
        send_url: str,
        *,
        send_secret: Secrets = (),
        tenant: str = "default",
        events: Sequence[str] = DEFAULT_EVENTS,
        tolerance: Span = TOLERANCE,
        post: ChannelClient | None = None,
        allow_private: bool = False,
    ) -> None:
        super().__init__(name, agent, tenant=tenant, events=events)
        self._secrets = secrets_of(secret)
        if not self._secrets:
            raise InvalidDefinition(f"channel {name} has no secret to verify with", channel=name)
        self._send_secrets = secrets_of(send_secret) or self._secrets
        check_url(send_url, allow_private=allow_private)
        self._url = send_url
        self._tolerance = seconds_of("tolerance", tolerance, or_none=True)
        self._post = post or ChannelClient(allow_private=allow_private)

    def verify(self, request: InboundRequest) -> None:
        now = milliseconds_at(request.at) // 1000
        check_signature(self._secrets, request.headers, request.body, self._tolerance, now)

    def read(self, request: InboundRequest) -> Inbound:
        try:
            written = msgspec.convert(request.json(), SignedBody)
        except msgspec.MsgspecError as error:
            raise InvalidMessage(f"the body has the wrong fields: {error}") from None
        if written.session_id:
            raise InvalidMessage(
                "this channel has sent this post itself: do not send it back as a message"
            )
        return Inbound(
            id=request.header(ID),
            thread=written.thread,
            message=message_in(written),
            reply=written.reply,
            principal=written.user,
        )

    async def send(self, outgoing: Outgoing, thread: str) -> None:
        body = msgspec.json.encode(body_of(outgoing, thread))
        headers = JSON | sign(
            self._send_secrets, body, milliseconds_at(outgoing.at) // 1000, outgoing.id
        )
        await self._post.send(self._url, body, headers)


def message_in(written: SignedBody) -> Said | None:
    """Return the message in a body, if it has one; of its parts only what users may send."""
    if written.text is not None and written.parts is not None:
        raise InvalidMessage("a message needs either `text` or `parts`")
    if written.parts is None:
        return written.text
    return tuple(part_of(part) for part in written.parts)


def part_of(part: Text | Image | File) -> Text | Image | File:
    if isinstance(part, Text):
        return Text(part.text)  # the other fields of a text are for providers
    if bool(part.data) == bool(part.url):
        raise InvalidMessage("an image or a file needs either `data` or `url`")
    return part


def body_of(outgoing: Outgoing, thread: str) -> dict[str, Any]:
    """Return the body that is posted for an event."""
    body: dict[str, Any] = {
        "id": outgoing.id,
        "type": outgoing.type,
        "thread": thread,
        "text": outgoing.text,
        "session_id": outgoing.session_id,
        "agent": outgoing.agent,
        "tenant": outgoing.tenant,
    }
    if outgoing.type == "turn.completed":
        body["output"] = outgoing.output
    if request := outgoing.request:
        body["request"] = {
            "request_id": request.request_id,
            "kind": request.kind,
            "prompt": request.prompt,
            "options": request.options,
            "allow_freeform": request.allow_freeform,
            "tool": request.tool,
            "args": request.args,
            "expires_at": request.expires_at,
        }
    if outgoing.sign_in:
        body["sign_in"] = outgoing.sign_in
    if error := outgoing.event.data.get("error"):
        body["error"] = error
    return body
