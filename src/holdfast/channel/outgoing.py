"""What a channel has to tell: an event of a session, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.agents.value import to_json
from holdfast.core.event import Event
from holdfast.core.record import Option
from holdfast.session import Request
from holdfast.store import SessionInfo


class Outgoing(Struct, frozen=True, kw_only=True):
    """An event, and what to say about it.

    `id` is the same however often it is told. `text` is the answer, the question with the call
    that it is about, or what failed; empty for other types of events. `output` is the answer as
    a value, `request` is what is asked, `at` is now, in seconds.
    """

    id: str
    type: str
    text: str
    session_id: str
    agent: str
    tenant: str
    at: int
    event: Event
    output: Any = None
    request: Request | None = None


def compose(event: Event, info: SessionInfo, output: Any, at: int) -> Outgoing:
    """Return what there is to tell of an event; `output` is the answer of a turn that ended."""
    request = asked(event, info) if event.type == "input.requested" else None
    return Outgoing(
        id=f"{info.session_id}-{event.offset}",
        type=event.type,
        text=words(event, output, request),
        session_id=info.session_id,
        agent=info.agent,
        tenant=info.tenant,
        at=at,
        event=event,
        output=output,
        request=request,
    )


def words(event: Event, output: Any, request: Request | None) -> str:
    if request:
        call = f" {call_text(request.tool, request.args)}" if request.args is not None else ""
        return request.prompt + call
    if event.type == "turn.completed":
        return output if isinstance(output, str) else to_json(output)
    if error := event.data.get("error"):
        return f"That did not work: {error['message']} ({error['code']})"
    return ""


def call_text(tool: str, args: Any) -> str:
    """Return a call as people read it: nobody should approve what they do not see."""
    if not isinstance(args, Mapping):
        return f"{tool}({to_json(args)})"
    return f"{tool}({', '.join(f'{name}={to_json(value)}' for name, value in args.items())})"


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
        expires_at=data.get("expires_at", 0),
        path=tuple(data.get("path", ())),
        agent=data.get("agent") or info.agent,
    )
