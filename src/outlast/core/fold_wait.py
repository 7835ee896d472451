"""The part of the fold about waits: requests opened and closed, timers set and fired.

Owns how a turn's open requests and a call's memo change; a wait's result is kept in the memo of
the call that waits. One table with `fold.py`, which calls it.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.lane import OpenRequest, Turn
from outlast.core.name import args_digest


def remember(turn: Turn, call_id: str, name: str, value: str) -> Turn:
    memo = {**turn.calls[call_id].memo, name: value}
    return turn.with_call(call_id, memo=memo)


def request_opened(turn: Turn, e: r.RequestOpened) -> Turn:
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
    turn = replace(turn, requests={**turn.requests, e.request_id: request})
    return turn if e.name or e.origin else turn.with_call(e.call_id, status="asked")


def close_request(turn: Turn, request_id: str) -> Turn:
    rest = {name: q for name, q in turn.requests.items() if name != request_id}
    return replace(turn, requests=rest)


def request_resolved(turn: Turn, e: r.RequestResolved) -> Turn:
    request = turn.requests[e.request_id]
    turn = close_request(turn, e.request_id)
    if e.how != "answered" or request.origin:
        return turn
    if request.name:
        said = {"option": e.option, "text": e.text, **({"args": e.args} if e.args else {})}
        return remember(turn, request.call_id, request.name, msgspec.json.encode(said).decode())
    if e.option in ("approve", "rerun"):
        return approve(turn, request.call_id, e)
    return turn


def approve(turn: Turn, call_id: str, e: r.RequestResolved) -> Turn:
    turn = turn.with_call(call_id, status="approved", approved_by=e.principal, request=e.request_id)
    if not e.args:
        return turn
    digest = args_digest(turn.calls[call_id].tool, e.args)
    return turn.with_call(call_id, args=e.args, digest=digest, dedupe=e.dedupe)


def request_expired(turn: Turn, e: r.RequestExpired) -> Turn:
    request = turn.requests[e.request_id]
    turn = close_request(turn, e.request_id)
    if request.name and not request.origin:
        return remember(turn, request.call_id, request.name, '{"expired":true}')
    return turn


def callback_opened(turn: Turn, e: r.CallbackOpened) -> Turn:
    request = OpenRequest(e.request_id, "callback", e.call_id, e.name, e.expires_at)
    return replace(turn, requests={**turn.requests, e.request_id: request})


def callback_closed(turn: Turn, e: r.CallbackClosed) -> Turn:
    name = turn.requests[e.request_id].name
    turn = close_request(turn, e.request_id)
    match e.how:
        case "answered":
            return remember(turn, e.call_id, name, e.value)
        case "expired":
            return remember(turn, e.call_id, name, '{"expired":true}')
    return turn


def authorization_required(turn: Turn, e: r.AuthorizationRequired) -> Turn:
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
    return replace(turn, requests={**turn.requests, e.request_id: request})


def authorization_ended(turn: Turn, e: r.AuthorizationCompleted | r.AuthorizationFailed) -> Turn:
    """Remember how a sign-in went, never what came of it: that is in the vault."""
    request = turn.requests[e.request_id]
    turn = close_request(turn, e.request_id)
    if isinstance(e, r.AuthorizationCompleted):
        came = {"completed": e.request_id}
    else:
        came = {} if e.how in ("cancelled", "superseded") else {e.how: e.reason}
    if request.origin or not came:
        return turn
    return remember(turn, e.call_id, request.name, msgspec.json.encode(came).decode())


def subagent_called(turn: Turn, e: r.SubagentCalled) -> Turn:
    request = OpenRequest(
        e.request_id,
        "child",
        e.call_id,
        e.name,
        child=e.child,
        agent=e.agent if e.url else "",
        url=e.url,
    )
    return replace(turn, requests={**turn.requests, e.request_id: request})


def subagent_started(turn: Turn, e: r.SubagentStarted) -> Turn:
    request = replace(turn.requests[e.request_id], child=e.child, told=e.told)
    return replace(turn, requests={**turn.requests, e.request_id: request})


def subagent_ended(turn: Turn, e: r.SubagentCompleted | r.SubagentFailed) -> Turn:
    name = turn.requests[e.request_id].name
    came = {"value": e.value} if isinstance(e, r.SubagentCompleted) else {"error": e.error}
    turn = close_request(turn, e.request_id)
    return remember(turn, e.call_id, name, msgspec.json.encode(came).decode())


def timer_set(turn: Turn, e: r.TimerSet) -> Turn:
    timers = {**turn.calls[e.call_id].timers, e.name: e.due_at}
    return turn.with_call(e.call_id, timers=timers)


def timer_fired(turn: Turn, e: r.TimerFired) -> Turn:
    others = turn.calls[e.call_id].timers
    others = {name: due_at for name, due_at in others.items() if name != e.name}
    return remember(turn.with_call(e.call_id, timers=others), e.call_id, e.name, "true")


WAITS: dict[type, Callable[[Turn, Any], Turn]] = {
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
