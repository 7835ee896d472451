"""Opens, answers, relays, expires and closes requests: all as records.

A request is a wait that is ended from outside: by a human, a call from outside, a sign-in, a child.
Refuses to know who may answer: the agent's code does (`agents/runtime`). `fold_wait.py` folds
the records.
"""

from collections.abc import Collection, Iterator

import msgspec
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.action import AskForBudget, AskHuman, RefuseReply
from outlast.core.budget import in_words, more_in_words
from outlast.core.budget_charge import share_settled
from outlast.core.index import GIVEN_UP
from outlast.core.lane import ArrivedReply, Lane, OpenCall, OpenRequest, RelayedRequest, Turn
from outlast.core.name import args_digest, request_name
from outlast.core.record import NO_USAGE, AnyRecord, Failure, IdempotencyKey, Option, UsageSum
from outlast.core.result import Asked, ChildEnd
from outlast.core.slice import grant
from outlast.core.usage import payer

MORE = (Option("extend", "Allow more"), Option("stop", "End the turn"))
APPROVAL = (Option("approve", "Approve"), Option("deny", "Deny"))
BUDGET_REFUSED = Failure("BUDGET_EXHAUSTED", "a human did not allow more of the budget")
NOBODY_ANSWERED = Failure("REQUEST_EXPIRED", "nobody answered in time")
AFTER_INTERRUPTION = (
    Option("done", "It was done: my text is its result"),
    Option("rerun", "Run it again"),
    Option("give_up", "Leave it: tell the model that the outcome is unknown"),
)


# Asking


def ask(lane: Lane, action: AskHuman, now: int) -> AnyRecord:
    """Ask whether a call may run, or deny it in a session that cannot ask."""
    assert lane.turn is not None
    call = lane.turn.calls[action.call_id]
    # The session's start has said that nobody is there: a wait for an answer would never end.
    if not lane.can_ask:
        return r.ToolDenied(
            call_id=call.call_id, reason="it needs approval and nobody can be asked here"
        )
    # One that was approved already is asked about anew: its question has a name of its own.
    is_again = call.status == "approved"
    about = call.request if is_again else call.call_id
    name = "again" if is_again else f"{action.kind}#{call.attempt}"
    request_id = request_name(lane.session, about, name)
    return question(lane, call, action, request_id, now + action.timeout if action.timeout else 0)


def question(
    lane: Lane, call: OpenCall, action: AskHuman, request_id: str, expires_at: int
) -> r.RequestOpened:
    return r.RequestOpened(
        request_id=request_id,
        kind=action.kind,
        prompt=f"{prompt(call, action.kind)} {action.misfit}".rstrip(),
        options=APPROVAL if action.kind == "approval" else AFTER_INTERRUPTION,
        allow_freeform=action.kind == "interrupted",
        call_id=call.call_id,
        tool=call.tool,
        args=call.args,
        digest=call.digest,
        expires_at=expires_at,
        on_expiry=action.on_expiry,
        restricted=action.restricted,
        requesters=requesters(lane) if action.restricted else (),
        expires_above=bool(lane.parent and expires_at),
    )


def requesters(lane: Lane) -> tuple[str, ...]:
    """Return whom the open turn acts for: the session's principal, and who sent its messages."""
    above = lane.parent.requesters if lane.parent else ()
    senders = lane.turn.senders if lane.turn else ()
    return tuple(dict.fromkeys(name for name in (lane.principal, *above, *senders) if name))


def prompt(call: OpenCall, kind: str) -> str:
    if kind == "interrupted":
        if call.why:
            return f"{call.why}. What it does may have happened. What now?"
        return f"{call.tool} was interrupted and may or may not have happened. What now?"
    if call.repeats:
        return f"{call.tool} may have happened already, as {call.repeats}. Run it again?"
    return f"May {call.tool} run?"


def ask_for_budget(lane: Lane, action: AskForBudget) -> r.RequestOpened:
    """Ask for more of a budget. A turn may do so several times: the questions are counted."""
    number = lane.turn.budget_asks + 1 if lane.turn else 1
    return r.RequestOpened(
        request_id=request_name(lane.session, action.turn, f"budget#{number}"),
        kind="budget",
        prompt=f"{in_words(action.ended)}. Allow {more_in_words(action.by)} more?",
        options=MORE,
        budget=action.ended.budget,
        extends_by=action.by,
    )


def budget_answered(lane: Lane, request: OpenRequest, reply: ArrivedReply) -> Iterator[AnyRecord]:
    """Allow more, or let the turn fail."""
    assert lane.turn is not None
    assert request.budget is not None
    yield r.RequestResolved(
        request_id=reply.request_id,
        option=reply.option,
        text=reply.text,
        principal=reply.principal,
    )
    if reply.option == "extend":
        by, principal = request.extends_by, reply.principal
        yield r.BudgetExtended(budget=request.budget, by=by, principal=principal)
    else:
        yield r.LaneBlocked(error=BUDGET_REFUSED)
    yield r.DeliverySettled(delivery_id=reply.delivery_id, outcome="answered", turn=lane.turn.id)


# Closing


def close_requests(lane: Lane, how: str) -> Iterator[AnyRecord]:
    if lane.turn:
        for request in lane.turn.requests.values():
            yield close_request(request, how)


def close_request(request: OpenRequest, how: str) -> AnyRecord:
    """Close a request that has not been answered, and will not be."""
    match request.kind:
        case "callback":
            return r.CallbackClosed(request_id=request.request_id, call_id=request.call_id, how=how)
        case "authorization":
            return authorization_failed(request, how)
        case "child":
            return r.SubagentFailed(
                request_id=request.request_id,
                call_id=request.call_id,
                child=request.child,
                error=Failure(GIVEN_UP, "nobody waits for it any more"),
                agent=request.remote.agent if request.remote else "",
                url=request.remote.url if request.remote else "",
            )
    return r.RequestResolved(request_id=request.request_id, how=how)


def authorization_failed(request: OpenRequest, how: str, reason: str = "") -> r.AuthorizationFailed:
    return r.AuthorizationFailed(
        request_id=request.request_id,
        call_id=request.call_id,
        connection=request.connection,
        how=how,
        reason=reason,
    )


def close_opened(lane: Lane, call_id: str) -> Iterator[AnyRecord]:
    """Close the callbacks, requests and children of a call that has ended."""
    if lane.turn is None or not lane.turn.requests:
        return
    mine = [q for q in lane.turn.requests.values() if q.call_id == call_id]
    for request in sorted(mine, key=lambda q: q.kind == "child"):  # after what they ask
        if request.name or request.origin or request.subagent:
            yield close_request(request, "cancelled")


def close_scopes(lane: Lane, call_id: str, scopes: tuple[str, ...]) -> Iterator[AnyRecord]:
    """Close what branches of a call have open that lost, with what their children ask."""
    mine = [q for q in lane.turn.requests.values() if q.call_id == call_id] if lane.turn else []
    lost = [q for q in mine if q.name and not q.origin and q.name.startswith(scopes)]
    children = [q for q in lost if q.kind == "child"]
    ids = {q.request_id for q in children}
    sessions = {q.child for q in children if q.child}
    # What the children ask goes first: a closed child takes its requests with it.
    for request in mine:
        is_theirs = request.origin and request.child in sessions
        if request.subagent in ids if request.subagent else is_theirs:
            yield close_request(request, "cancelled")
    for request in sorted(lost, key=lambda q: q.kind == "child"):
        yield close_request(request, "cancelled")


def callbacks_of(lane: Lane, call_id: str, name: str) -> Iterator[OpenRequest]:
    for request in lane.turn.requests.values() if lane.turn else ():
        if (request.kind, request.call_id, request.name) == ("callback", call_id, name):
            yield request


def expire(lane: Lane, request_id: str) -> Iterator[AnyRecord]:
    assert lane.turn is not None
    request = lane.turn.requests[request_id]
    call = lane.turn.calls[request.call_id]
    # Nobody's decision is missing here: the tool is told that nothing came, whatever `on_expiry`
    # says.
    if request.kind in ("callback", "authorization"):
        yield close_request(request, "expired")
        if not request.origin:
            yield from wake(call, request)
        return
    yield r.RequestExpired(request_id=request_id)
    # The child closes it there, and goes on by its own rules.
    if request.origin:
        return
    if request.on_expiry == "fail":
        turn = lane.turn
        yield r.StepFailed(turn=turn.id, step=turn.step, error=NOBODY_ANSWERED)
    elif request.name:
        yield from wake(call, request)
    elif call.attempt:  # the question was what became of it, so that stays unknown
        yield given_up(call)
        yield from close_opened(lane, call.call_id)
    else:
        yield r.ToolDenied(call_id=call.call_id, reason="nobody answered in time")


# Answers


def take(
    lane: Lane, reply: ArrivedReply, dedupe: IdempotencyKey | None = None
) -> Iterator[AnyRecord]:
    """Take an answer to an open request; ignore one to a request that is closed."""
    request = lane.turn.requests.get(reply.request_id) if lane.turn else None
    # Two may answer at the same time, and the store takes only one; but the request may have been
    # closed by the turn meanwhile.
    if request is None or lane.turn is None:
        yield r.DeliverySettled(delivery_id=reply.delivery_id, outcome="ignored")
        return
    if request.kind == "budget" and not request.origin:
        yield from budget_answered(lane, request, reply)
        return
    call = lane.turn.calls[request.call_id]
    if request.kind == "callback":
        yield from callback_answered(lane, request, reply)
        yield from wake(call, request)
    elif request.kind == "authorization":
        yield authorization_ends(request, reply.option, reply.text)
        yield from wake(call, request)
    elif request.kind == "child":
        came = msgspec.json.decode(reply.args, type=ChildEnd)
        yield from child_ended(lane, request, came)
    else:
        yield from request_answered(lane, call, request, reply, dedupe)
    yield r.DeliverySettled(delivery_id=reply.delivery_id, outcome="answered", turn=lane.turn.id)


def refuse(lane: Lane, action: RefuseReply) -> Iterator[AnyRecord]:
    """Ask anew: the answer has closed its request for others, and it must not be taken."""
    assert lane.turn is not None
    reply = action.reply
    request = lane.turn.requests[reply.request_id]
    again = AskHuman(
        call_id=request.call_id,
        kind=request.kind,  # type: ignore[arg-type]
        on_expiry=request.on_expiry,
        restricted=action.restricted,
        misfit=action.misfit,
    )
    name = request_name(lane.session, request.request_id, "again")
    yield r.RequestResolved(
        request_id=request.request_id, how="superseded", principal=reply.principal
    )
    call = lane.turn.calls[request.call_id]
    yield question(lane, call, again, name, request.expires_at)
    yield r.DeliverySettled(delivery_id=reply.delivery_id, outcome="refused")


def allowed_call(lane: Lane, reply: ArrivedReply) -> OpenCall | None:
    """Return a call that an answer lets run, with the arguments that it would run with."""
    request = lane.turn.requests.get(reply.request_id) if lane.turn else None
    if lane.turn is None or request is None or not request.is_question:
        return None
    # An answer to a tool's own question lets nothing run: the tool does with it what it likes.
    if request.origin or request.name or reply.option not in ("approve", "rerun"):
        return None
    call = lane.turn.calls[request.call_id]
    return replace(call, args=reply.args) if reply.args else call


def changed_call(lane: Lane, reply: ArrivedReply) -> OpenCall | None:
    """Return a call with the arguments that an answer gives it, where it gives some."""
    request = lane.turn.requests.get(reply.request_id) if lane.turn and reply.args else None
    if lane.turn is None or request is None or request.kind != "approval":
        return None
    if request.origin or request.name:  # it is about a call elsewhere
        return None
    return replace(lane.turn.calls[request.call_id], args=reply.args)


def request_answered(
    lane: Lane,
    call: OpenCall,
    request: OpenRequest,
    reply: ArrivedReply,
    dedupe: IdempotencyKey | None,
) -> Iterator[AnyRecord]:
    digest = approved_digest(call, request, reply)
    yield r.RequestResolved(
        request_id=reply.request_id,
        option=reply.option,
        text=reply.text,
        args=reply.args,
        principal=reply.principal,
        digest=digest,
        dedupe=dedupe,
    )
    if request.origin:
        return  # the child that asked is told
    # Not for one that runs again after an interruption: there the human has looked at this one
    # case.
    if digest and call.asks == "once" and reply.option == "approve":
        yield grant(digest)
    if request.name:
        yield from wake(call, request)
    else:
        yield from after_answer(call, reply)
        if reply.option in ("done", "give_up"):
            yield from close_opened(lane, call.call_id)


def approved_digest(call: OpenCall, request: OpenRequest, reply: ArrivedReply) -> str:
    """Return the digest of the exact arguments that were approved, here or behind another server.

    A child of this app has it in its own log.
    """
    if reply.option not in ("approve", "rerun"):
        return ""
    tool, digest = (request.tool, request.digest) if request.origin else (call.tool, call.digest)
    return args_digest(tool, reply.args) if digest and reply.args else digest


def after_answer(call: OpenCall, reply: ArrivedReply) -> Iterator[AnyRecord]:
    """Give the call an outcome where the answer is one."""
    match reply.option:
        case "deny":
            reason = reply.text or "a human said no"
            yield r.ToolDenied(call_id=call.call_id, reason=reason, principal=reply.principal)
        case "done":
            yield r.ToolCompleted(
                call_id=call.call_id, attempt=call.attempt, value="null", message=reply.text
            )
        case "give_up":
            yield given_up(call)


def given_up(call: OpenCall) -> AnyRecord:
    """Leave it at that: the outcome of a call that was cut off stays unknown."""
    return r.ToolInterrupted(
        call_id=call.call_id, attempt=call.attempt, reason=call.reason, why=call.why
    )


def callback_answered(lane: Lane, request: OpenRequest, reply: ArrivedReply) -> Iterator[AnyRecord]:
    """Keep what came in for a tool.

    Each attempt at a call has an address of its own for the same wait: one answer is enough.
    """
    call_id, name = request.call_id, request.name
    yield r.CallbackClosed(request_id=request.request_id, call_id=call_id, value=reply.args)
    for other in callbacks_of(lane, call_id, name) if name else ():
        if other is not request:
            yield close_request(other, "superseded")


def authorization_ends(
    request: OpenRequest, how: str, reason: str = ""
) -> r.AuthorizationCompleted | r.AuthorizationFailed:
    """Say how a sign-in went: `completed`, or what else."""
    if how != "completed":
        return authorization_failed(request, how, reason)
    return r.AuthorizationCompleted(
        request_id=request.request_id, call_id=request.call_id, connection=request.connection
    )


def child_ended(
    lane: Lane, request: OpenRequest, came: ChildEnd, closed: Collection[str] = ()
) -> Iterator[AnyRecord]:
    """Keep what a child came to, and wake the tool that waits for it.

    Requests of the child are closed, unless they are among the `closed` already.
    """
    assert lane.turn is not None
    turn, remote = lane.turn, request.remote
    where = {
        "request_id": request.request_id,
        "call_id": request.call_id,
        "child": request.child,
    }
    for other in turn.requests.values():
        is_asked = other.origin and other.child == request.child
        is_mine = other.subagent == request.request_id if other.subagent else is_asked
        if is_mine and other.request_id not in closed:
            yield close_request(other, "cancelled")
    # A child of this app has its usage in a log of its own.
    if remote and came.usage != NO_USAGE:
        yield remote_usage(lane, request.call_id, remote.agent, came.usage)
    used = NO_USAGE if remote else came.usage
    if came.error:
        at = {"agent": remote.agent, "url": remote.url} if remote else {}
        yield r.SubagentFailed(**where, error=came.error, usage=used, **at)
    else:
        yield r.SubagentCompleted(**where, value=came.value, usage=used)
    yield from wake(turn.calls[request.call_id], request)


def remote_usage(lane: Lane, call_id: str, agent: str, used: UsageSum) -> AnyRecord:
    """Record the usage of a session behind another server, of which this log has nothing else."""
    return r.UsageRecorded(
        call_id=call_id,
        attempt=0,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
        principal=payer(lane),
        nano_usd=used.nano_usd,
        remote=agent,
        model_calls=used.model_calls,
        unpriced_calls=used.unpriced_calls,
    )


def wake(call: OpenCall, request: OpenRequest) -> Iterator[AnyRecord]:
    """Wake a tool that waits for this request."""
    # While it runs it finds the result in its memo when it comes to ask for it.
    if call.status == "waiting" and request.name in call.waits_for:
        yield r.ToolWoken(call_id=call.call_id, name=request.name)


# What children ask


def pass_on(lane: Lane, relay: RelayedRequest) -> Iterator[AnyRecord]:
    """Show a child's request here, or close it; or expire a request by the parent's word.

    A child that has ended returns its share of a budget, also where nobody waits for it any more.
    """
    if relay.how == "settled":
        yield from share_settled(lane, relay)
        yield r.DeliverySettled(delivery_id=relay.delivery_id, outcome="answered")
        return
    shown = list(relayed(lane, lane.turn, relay) if lane.turn else ())
    yield from shown
    yield r.DeliverySettled(
        delivery_id=relay.delivery_id,
        outcome="answered" if shown else "ignored",
        turn=lane.turn.id if shown and lane.turn else "",
    )


def relayed(lane: Lane, turn: Turn, relay: RelayedRequest) -> Iterator[AnyRecord]:
    if relay.how == "expired" and relay.request_id in turn.requests:
        yield from expire(lane, relay.request_id)  # by the parent's word
        return
    if relay.how:
        shown = (q for q in turn.requests.values() if q.origin == relay.request_id)
        for request in shown:
            if request.kind == "authorization":
                yield authorization_ends(request, relay.how)
            elif relay.how == "expired":
                yield r.RequestExpired(request_id=request.request_id)
            else:
                yield close_request(request, relay.how)
        return
    children = (q for q in turn.requests.values() if q.kind == "child" and not q.remote)
    for request in (q for q in children if q.child == relay.child):
        asked = msgspec.json.decode(relay.asked, type=Asked)
        name = request_name(lane.session, relay.request_id, "relay")
        yield shown_as(name, lane, request, asked)


def shown_as(request_id: str, lane: Lane, child: OpenRequest, asked: Asked) -> Asked:
    """Return what a child asks, as it is asked here; `asked` has the child's own request."""
    if isinstance(asked, r.AuthorizationRequired):
        asked = replace(asked, attempt=0)  # that of a call of the child
    else:
        asked = replace(asked, expires_above=bool(lane.parent and asked.expires_at))
    return replace(
        asked,
        request_id=request_id,
        call_id=child.call_id,
        name="",
        path=(child.child, *asked.path),
        origin=asked.request_id,
        subagent=child.request_id if child.remote else "",
    )
