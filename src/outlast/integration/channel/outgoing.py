"""Outgoing events of a channel: an event of a session, with the text to show for it.

Owns these texts. Which events a thread is told, and when one is sent again, is settled in
`sender.py` and by the outbox.
"""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from outlast.agents.runtime.json_value import to_json
from outlast.core.event import Event
from outlast.core.record import Option
from outlast.core.visible import visible, visible_line
from outlast.session import Request
from outlast.session.request import request_lines
from outlast.store import SessionInfo


class SignInPrompt(Struct, frozen=True, kw_only=True):
    """A user has to sign in at `url`: the `principal`, or without one anyone, for the app.

    Show the address to no other user: one who signed in there would give away a token.
    """

    request_id: str
    connection: str
    url: str
    principal: str = ""
    expires_at: datetime | None = None


class Outgoing(Struct, frozen=True, kw_only=True):
    """An event, and the text to show for it.

    `id` is the same however often it is sent. `text` is the answer, the question with the call
    that it is about, the failure, or who has to sign in, without the address: everyone in a thread
    may read it. Invisible characters are escaped in it, and in questions also those that pass for
    others. It is empty for other types of events. `output` is the answer as a value, `request` is
    the open request, `sign_in` has the address, `at` is now.
    """

    id: str
    type: str
    text: str
    session_id: str
    agent: str
    tenant: str
    at: datetime
    event: Event
    output: Any = None
    request: Request | None = None
    sign_in: SignInPrompt | None = None


def compose(event: Event, info: SessionInfo, output: Any, at: datetime) -> Outgoing:
    """Return an event with its text; `output` is the answer of a turn that completed."""
    request = asked(event, info) if event.type == "request.opened" else None
    sign_in = required(event) if event.type == "authorization.required" else None
    return Outgoing(
        id=f"{info.session_id}-{event.offset}",
        type=event.type,
        text=words(event, output, request, sign_in),
        session_id=info.session_id,
        agent=info.agent,
        tenant=info.tenant,
        at=at,
        event=event,
        output=output,
        request=request,
        sign_in=sign_in,
    )


def words(event: Event, output: Any, request: Request | None, sign_in: SignInPrompt | None) -> str:
    if sign_in:
        who = visible_line(sign_in.principal) or "Somebody"
        return f"{who} has to sign in to {visible_line(sign_in.connection)}."
    if request:
        return "\n".join(request_lines(request))
    if event.type == "turn.completed":
        return visible(output if isinstance(output, str) else to_json(output))
    if error := event.data.get("error"):
        return visible(f"That did not work: {error['message']} ({error['code']})")
    return ""


def asked(event: Event, info: SessionInfo) -> Request:
    data = event.data
    return Request(
        request_id=data["request_id"],
        kind=data["kind"],
        prompt=data["prompt"],
        options=msgspec.convert(data.get("options", ()), tuple[Option, ...]),
        allow_freeform=data.get("allow_freeform", False),
        session_id=info.session_id,
        tool=data.get("tool", ""),
        call_id=event.call_id,
        args=None if data.get("args") in ("", None) else data["args"],
        digest=data.get("digest", ""),
        expires_at=data.get("expires_at"),
        path=tuple(data.get("path", ())),
        agent=data.get("agent") or info.agent,
    )


def required(event: Event) -> SignInPrompt:
    data = event.data
    return SignInPrompt(
        request_id=data["request_id"],
        connection=data["connection"],
        url=data["url"],
        principal=data.get("principal", ""),
        expires_at=data.get("expires_at"),
    )
