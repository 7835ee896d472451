"""What has happened to what a turn waits for: requests opened and closed, and times that are over.

Together with `fold.py` this is one table; what a wait came to is remembered by its call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.lane import Lane, OpenRequest
from outlast.core.name import args_digest


def remember(lane: Lane, call_id: str, name: str, value: str) -> Lane:
    assert lane.turn is not None
    memo = {**lane.turn.calls[call_id].memo, name: value}
    return lane.with_call(call_id, memo=memo)


def request_opened(lane: Lane, e: r.RequestOpened) -> Lane:
    assert lane.turn is not None
    is_elsewhere = bool(e.name and e.digest)
    request = OpenRequest(
        e.request_id,
        e.kind,
        e.call_id,
        e.name,
        e.expires_at,
        child=e.path[0] if e.path else "",
        origin=e.origin,
        on_expiry=e.on_expiry,
        tool=e.tool if is_elsewhere else "",
        digest=e.digest if is_elsewhere else "",
        expires_above=e.expires_above,
    )
    lane = lane.with_turn(requests={**lane.turn.requests, e.request_id: request})
    return lane if e.name or e.origin else lane.with_call(e.call_id, status="asked")


def close_request(lane: Lane, request_id: str) -> Lane:
    assert lane.turn is not None
    rest = {name: q for name, q in lane.turn.requests.items() if name != request_id}
    return lane.with_turn(requests=rest)


def request_resolved(lane: Lane, e: r.RequestResolved) -> Lane:
    assert lane.turn is not None
    request = lane.turn.requests[e.request_id]
    lane = close_request(lane, e.request_id)
    if e.how != "answered" or request.origin:
        return lane
    if request.name:
        said = {"option": e.option, "text": e.text, **({"args": e.args} if e.args else {})}
        return remember(lane, request.call_id, request.name, msgspec.json.encode(said).decode())
    if e.option in ("approve", "rerun"):
        return approve(lane, request.call_id, e)
    return lane


def approve(lane: Lane, call_id: str, e: r.RequestResolved) -> Lane:
    lane = lane.with_call(call_id, status="approved", approved_by=e.principal, request=e.request_id)
    if not e.args:
        return lane
    assert lane.turn is not None
    digest = args_digest(lane.turn.calls[call_id].tool, e.args)
    return lane.with_call(call_id, args=e.args, digest=digest, dedupe=e.dedupe)


def request_expired(lane: Lane, e: r.RequestExpired) -> Lane:
    assert lane.turn is not None
    request = lane.turn.requests[e.request_id]
    lane = close_request(lane, e.request_id)
    if request.name and not request.origin:
        return remember(lane, request.call_id, request.name, '{"expired":true}')
    return lane


def callback_opened(lane: Lane, e: r.CallbackOpened) -> Lane:
    assert lane.turn is not None
    request = OpenRequest(e.request_id, "callback", e.call_id, e.name, e.expires_at)
    return lane.with_turn(requests={**lane.turn.requests, e.request_id: request})


def callback_closed(lane: Lane, e: r.CallbackClosed) -> Lane:
    assert lane.turn is not None
    name = lane.turn.requests[e.request_id].name
    lane = close_request(lane, e.request_id)
    match e.how:
        case "answered":
            return remember(lane, e.call_id, name, e.value)
        case "expired":
            return remember(lane, e.call_id, name, '{"expired":true}')
    return lane


def authorization_required(lane: Lane, e: r.AuthorizationRequired) -> Lane:
    assert lane.turn is not None
    request = OpenRequest(
        e.request_id,
        "authorization",
        e.call_id,
        e.name,
        e.expires_at,
        child=e.path[0] if e.path else "",
        origin=e.origin,
        connection=e.connection,
    )
    return lane.with_turn(requests={**lane.turn.requests, e.request_id: request})


def authorization_ended(lane: Lane, e: r.AuthorizationCompleted | r.AuthorizationFailed) -> Lane:
    """Remember how a sign-in went, never what came of it: that is in the vault."""
    assert lane.turn is not None
    request = lane.turn.requests[e.request_id]
    lane = close_request(lane, e.request_id)
    if isinstance(e, r.AuthorizationCompleted):
        came = {"completed": e.request_id}
    else:
        came = {} if e.how in ("cancelled", "superseded") else {e.how: e.reason}
    if request.origin or not came:
        return lane
    return remember(lane, e.call_id, request.name, msgspec.json.encode(came).decode())


def subagent_called(lane: Lane, e: r.SubagentCalled) -> Lane:
    assert lane.turn is not None
    request = OpenRequest(
        e.request_id,
        "child",
        e.call_id,
        e.name,
        child=e.child,
        agent=e.agent if e.url else "",
        url=e.url,
    )
    return lane.with_turn(requests={**lane.turn.requests, e.request_id: request})


def subagent_started(lane: Lane, e: r.SubagentStarted) -> Lane:
    assert lane.turn is not None
    request = replace(lane.turn.requests[e.request_id], child=e.child, told=e.told)
    return lane.with_turn(requests={**lane.turn.requests, e.request_id: request})


def subagent_ended(lane: Lane, e: r.SubagentCompleted | r.SubagentFailed) -> Lane:
    assert lane.turn is not None
    name = lane.turn.requests[e.request_id].name
    came = {"value": e.value} if isinstance(e, r.SubagentCompleted) else {"error": e.error}
    lane = close_request(lane, e.request_id)
    return remember(lane, e.call_id, name, msgspec.json.encode(came).decode())


def timer_set(lane: Lane, e: r.TimerSet) -> Lane:
    assert lane.turn is not None
    timers = {**lane.turn.calls[e.call_id].timers, e.name: e.due_at}
    return lane.with_call(e.call_id, timers=timers)


def timer_fired(lane: Lane, e: r.TimerFired) -> Lane:
    assert lane.turn is not None
    others = lane.turn.calls[e.call_id].timers
    others = {name: due_at for name, due_at in others.items() if name != e.name}
    return remember(lane.with_call(e.call_id, timers=others), e.call_id, e.name, "true")


WAITS: dict[type, Callable[[Lane, Any], Lane]] = {
    r.RequestOpened: request_opened,
    r.RequestResolved: request_resolved,
    r.RequestExpired: request_expired,
    r.CallbackOpened: callback_opened,
    r.CallbackClosed: callback_closed,
    r.AuthorizationRequired: authorization_required,
    r.AuthorizationCompleted: authorization_ended,
    r.AuthorizationFailed: authorization_ended,
    r.SubagentCalled: subagent_called,
    r.SubagentStarted: subagent_started,
    r.SubagentCompleted: subagent_ended,
    r.SubagentFailed: subagent_ended,
    r.TimerSet: timer_set,
    r.TimerFired: timer_fired,
}
