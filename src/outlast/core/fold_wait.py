"""The part of the fold about waits: requests opened and closed, timers set and fired.

Owns how a turn's open requests and a call's memo change; a wait's result is kept in the memo of
the call that waits. One table with `fold.py`, which calls it.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.index import GIVEN_UP
from outlast.core.lane import OpenRequest, RemoteChild, Turn, UnsentAnswer
from outlast.core.name import args_digest

WITHDRAWN = '{"withdrawn":true}'
"""The outcome of a wait that the tool itself gave up: asked for again, it is asked anew."""


def remember(turn: Turn, call_id: str, name: str, value: str) -> Turn:
    return turn.with_call(call_id, memo=turn.calls[call_id].memo.having(name, value))


def request_opened(turn: Turn, e: r.RequestOpened) -> Turn:
    request = OpenRequest(
        e.request_id,
        e.kind,
        e.call_id,
        e.name,
        e.expires_at,
        child=e.path[0] if e.path else "",
        origin=e.origin,
        on_expiry=e.on_expiry,
        tool=e.tool if e.subagent else "",
        digest=e.digest if e.subagent else "",
        expires_above=e.expires_above,
        subagent=e.subagent,
        asked=e.prompt if e.name and not e.origin else "",
        restricted=e.restricted,
        budget=e.budget,
        extends_by=e.extends_by,
    )
    # Counted, since the server may list the same request again after it had ceased to.
    turn = count_shown(turn, e.subagent)
    turn = replace(turn, requests={**turn.requests, e.request_id: request})
    if e.kind == "budget" and not e.origin:
        return replace(turn, budget_asks=turn.budget_asks + 1)
    if e.name or e.origin:
        return turn
    return turn.with_call(e.call_id, status="asked", vanished=0)


def count_shown(turn: Turn, subagent: str) -> Turn:
    """Count what a remote child asks: each request that is shown here has a name of its own."""
    remote = turn.requests[subagent].remote if subagent else None
    return turn.with_remote(subagent, shown=remote.shown + 1) if remote else turn


def close_request(turn: Turn, request_id: str) -> Turn:
    rest = {name: q for name, q in turn.requests.items() if name != request_id}
    return replace(turn, requests=rest)


def request_resolved(turn: Turn, e: r.RequestResolved) -> Turn:
    request = turn.requests[e.request_id]
    turn = close_request(turn, e.request_id)
    if e.how != "answered":
        is_own = request.name and not request.origin
        return remember(turn, request.call_id, request.name, WITHDRAWN) if is_own else turn
    if request.origin:
        return keep_answer(turn, request, e)
    if request.name:
        # With the words that the human saw: code that has changed its question learns what was
        # answered.
        said = {"option": e.option, "text": e.text, "prompt": request.asked}
        return remember(turn, request.call_id, request.name, msgspec.json.encode(said).decode())
    if e.option in ("approve", "rerun"):
        return approve(turn, request.call_id, e)
    return turn


def keep_answer(turn: Turn, request: OpenRequest, e: r.RequestResolved) -> Turn:
    """Keep an answer for a remote child until it is sent. One of this app has a delivery of it."""
    if not (remote := remote_of(turn, request)):
        return turn
    answer = UnsentAnswer(e.request_id, request.origin, e.option, e.text, e.args)
    answers = (*remote.answers, answer)
    return turn.with_remote(request.subagent, answers=answers, next_at=0, contacts=0)


def settle(turn: Turn, request: OpenRequest) -> Turn:
    """Remember that what a remote child asks is over here, whatever its server says."""
    if not (remote := remote_of(turn, request)):
        return turn
    return turn.with_remote(request.subagent, settled=(*remote.settled, request.origin))


def remote_of(turn: Turn, request: OpenRequest) -> RemoteChild | None:
    """Return the remote child that asks something, or whose news something is for."""
    child = turn.requests.get(request.subagent) if request.subagent else None
    return child.remote if child else None


def approve(turn: Turn, call_id: str, e: r.RequestResolved) -> Turn:
    turn = turn.with_call(call_id, status="approved", approved_by=e.principal, request=e.request_id)
    if not e.args:
        return turn
    # The approval is bound to the arguments that the human gave, and no longer to the model's.
    digest = args_digest(turn.calls[call_id].tool, e.args)
    return turn.with_call(call_id, args=e.args, digest=digest, dedupe=e.dedupe)


def request_expired(turn: Turn, e: r.RequestExpired) -> Turn:
    request = turn.requests[e.request_id]
    turn = close_request(turn, e.request_id)
    if request.name and not request.origin:
        expired = msgspec.json.encode({"expired": True, "prompt": request.asked}).decode()
        return remember(turn, request.call_id, request.name, expired)
    return settle(turn, request)


def callback_opened(turn: Turn, e: r.CallbackOpened) -> Turn:
    request = OpenRequest(
        e.request_id, "callback", e.call_id, e.name, e.expires_at, subagent=e.subagent
    )
    return replace(turn, requests={**turn.requests, e.request_id: request})


def callback_closed(turn: Turn, e: r.CallbackClosed) -> Turn:
    request = turn.requests[e.request_id]
    name = request.name
    turn = close_request(turn, e.request_id)
    if request.subagent:
        remote = remote_of(turn, request)
        return (
            # An address is used once: news came to it, so that server is asked, and told a new one.
            turn.with_remote(request.subagent, rounds=remote.rounds + 1, next_at=0)
            if remote
            else turn
        )
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
        subagent=e.subagent,
    )
    turn = count_shown(turn, e.subagent)
    return replace(turn, requests={**turn.requests, e.request_id: request})


def authorization_ended(turn: Turn, e: r.AuthorizationCompleted | r.AuthorizationFailed) -> Turn:
    """Remember how a sign-in went, never what came of it: that is in the vault."""
    request = turn.requests[e.request_id]
    turn = close_request(turn, e.request_id)
    if isinstance(e, r.AuthorizationCompleted):
        came = {"completed": e.request_id}
    else:
        came = {} if e.how in ("cancelled", "superseded") else {e.how: e.reason}
    # Nothing that the tool could do with it: it was given up, or is a child's own.
    if request.origin or not came:
        return settle(turn, request)
    return remember(turn, e.call_id, request.name, msgspec.json.encode(came).decode())


def subagent_called(turn: Turn, e: r.SubagentCalled) -> Turn:
    request = OpenRequest(
        e.request_id,
        "child",
        e.call_id,
        e.name,
        child=e.child,
        remote=RemoteChild(e.agent, e.url, e.message) if e.url else None,
        asked=e.excerpt,
    )
    return replace(turn, requests={**turn.requests, e.request_id: request})


def subagent_started(turn: Turn, e: r.SubagentStarted) -> Turn:
    turn = turn.with_remote(e.request_id, told=e.told, message="")
    # Known only now: the other server has named its session.
    request = replace(turn.requests[e.request_id], child=e.child)
    return replace(turn, requests={**turn.requests, e.request_id: request})


def subagent_contacted(turn: Turn, e: r.SubagentContacted) -> Turn:
    remote = turn.requests[e.request_id].remote
    assert remote is not None
    return turn.with_remote(
        e.request_id,
        next_at=e.next_at,
        contacts=e.contacts,
        # What was sent is not sent again; what came meanwhile stays.
        answers=tuple(each for each in remote.answers if each.request_id not in e.answered),
        settled=e.settled,
    )


def subagent_ended(turn: Turn, e: r.SubagentCompleted | r.SubagentFailed) -> Turn:
    request = turn.requests[e.request_id]
    turn = replace(close_request(turn, e.request_id), below=turn.below + e.usage)
    # It was given up here, and may be asked again; a failure of its own is its answer.
    if isinstance(e, r.SubagentFailed) and e.error.code == GIVEN_UP:
        return remember(turn, e.call_id, request.name, WITHDRAWN)
    came = {"value": e.value} if isinstance(e, r.SubagentCompleted) else {"error": e.error}
    told = msgspec.json.encode({**came, "asked": request.asked}).decode()
    return remember(turn, e.call_id, request.name, told)


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
    r.SubagentContacted: subagent_contacted,
    r.SubagentCompleted: subagent_ended,
    r.SubagentFailed: subagent_ended,
    r.TimerSet: timer_set,
    r.TimerFired: timer_fired,
}
