"""Folds records into state: one small function per record, from one state to the next.

Owns the two tables of facts: `LANE_FACTS` change a lane, `TURN_FACTS` only its open turn (those
about waits are in `fold_wait.py`). Arrivals (deliveries, cancels, the session's start) only add to
the inbox; folding one before or after any record of the lane's owner gives the same lane. Refuses
to judge: a record that cannot be is `log/verify`'s affair. The state itself is in `lane.py`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.budget_fold import LANE_BUDGETS
from outlast.core.compaction import LANE_CONTEXT
from outlast.core.fold_wait import WAITS
from outlast.core.lane import (
    CONTENDED,
    CUT,
    PROVIDER,
    RUNNING,
    ArrivedCancel,
    ArrivedReply,
    ContextSize,
    DeliveryOutcome,
    Lane,
    ModelCall,
    OpenCall,
    Outage,
    QueuedDelivery,
    RecordedPrompt,
    RelayedRequest,
    SessionEnd,
    StoppingTurn,
    Turn,
    TurnEnd,
    UnavailableModel,
)
from outlast.core.message import ToolCall
from outlast.core.milestone import LANE_MILESTONES
from outlast.core.name import CUT_STEP
from outlast.core.record import AnyRecord, Entry
from outlast.core.rule import LANE_RULES, TURN_RULES
from outlast.core.usage import used_by
from outlast.core.workflow import LANE_WORKFLOW, TURN_WORKFLOW, WORKFLOW_ARRIVALS

Step = Callable[[Lane, Any], Lane]


def fold(lane: Lane, record: AnyRecord, offset: int = 0) -> Lane:
    """Return the lane after one more record. Only arrivals need to know their offset."""
    kind = type(record)
    # The tables share no record. Most records change nothing but the open turn.
    if within_turn := TURN_FACTS.get(kind):
        assert lane.turn is not None
        return replace(lane, turn=within_turn(lane.turn, record))
    if step := LANE_FACTS.get(kind):
        return step(lane, record)
    arrival = ARRIVALS.get(kind)
    return arrival(lane, record, offset) if arrival else lane


def fold_all(lane: Lane, entries: Iterable[Entry]) -> Lane:
    """Return the lane after all entries that are its own."""
    for entry in entries:
        # Only what concerns every lane comes from others: so a lane's fold does not depend on how
        # their records lie between its own.
        if entry.lane == lane.name or type(entry.record) in SESSION_WIDE:
            lane = fold(lane, entry.record, entry.offset)
    return lane


# Arrivals


def session_started(lane: Lane, e: r.SessionStarted, _: int) -> Lane:
    return replace(
        lane,
        agent=e.agent,
        mode=e.mode,
        can_ask=e.can_ask,
        tenant=e.tenant,
        principal=e.principal,
        parent=e.parent,
        above=e.depth,
        deadline=e.deadline_at,
        tells=told_at(e.outbox),
        tags=e.tags,
        starts_at=e.starts_at,
        seed=e.seed,
        place=e.place,
        budget=e.budget,
    )


def session_rekeyed(lane: Lane, e: r.SessionRekeyed) -> Lane:
    return replace(lane, tells=lane.tells | told_at(e.outbox)) if e.outbox else lane


def told_at(outbox: Iterable[r.NewOutboxCursor]) -> frozenset[str]:
    """Return the types of records at which there is something to tell.

    Arrivals are not written by a lane's commit, so subscribers learn of one when the lane takes it.
    """
    kinds = frozenset(kind for cursor in outbox for kind in cursor.events)
    return kinds | TAKES_UP if kinds & ARRIVE else kinds


ARRIVE = frozenset({"session.started", "delivery.queued", "cancel.requested"})
TAKES_UP = frozenset({"turn.started", "delivery.joined", "delivery.settled"})


def delivery_queued(lane: Lane, e: r.DeliveryQueued, offset: int) -> Lane:
    if e.kind == "reply":
        reply = ArrivedReply(e.delivery_id, e.request_id, e.option, e.text, e.args, e.principal)
        return replace(lane, replies=(*lane.replies, reply))
    is_retry, trace = e.kind == "retry", e.traceparent
    queued = QueuedDelivery(
        e.delivery_id, offset, is_retry, e.deadline_at, e.principal, trace, input=e.args
    )
    return replace(lane, queue=(*lane.queue, queued))


def cancel_requested(lane: Lane, e: r.CancelRequested, offset: int) -> Lane:
    cancel = ArrivedCancel(e.delivery_id, offset, e.reason, e.turn, e.ends, e.message)
    return replace(lane, cancels=(*lane.cancels, cancel))


def request_relayed(lane: Lane, e: r.RequestRelayed, _: int) -> Lane:
    relay = RelayedRequest(e.delivery_id, e.request_id, e.child, e.asked, e.how)
    return replace(lane, relays=(*lane.relays, relay))


def state_change_requested(lane: Lane, e: r.StateChangeRequested, _: int) -> Lane:
    return replace(lane, changes=(*lane.changes, e))


def context_change_requested(lane: Lane, e: r.ContextChangeRequested, _: int) -> Lane:
    return replace(lane, views=(*lane.views, e))


ARRIVALS: dict[type, Callable[[Lane, Any, int], Lane]] = {
    r.SessionStarted: session_started,
    r.DeliveryQueued: delivery_queued,
    r.CancelRequested: cancel_requested,
    r.RequestRelayed: request_relayed,
    r.StateChangeRequested: state_change_requested,
    r.ContextChangeRequested: context_change_requested,
    **WORKFLOW_ARRIVALS,
}


# Sessions, turns, steps


def session_waiting(lane: Lane, e: r.SessionWaiting) -> Lane:
    lane = replace(lane, waiting=e.wait)
    # The clock of the active time stops here, and goes on with `session.resumed`.
    if lane.turn:
        return lane.with_turn(since=e.since, spent=e.spent)
    # An outage that was given up, with nothing queued behind it, is over: what comes next finds
    # the provider as it is then.
    return replace(lane, outage=None)


def session_resumed(lane: Lane, e: r.SessionResumed) -> Lane:
    lane = replace(lane, waiting=())
    return lane.with_turn(since=e.since) if lane.turn else lane


def session_over(how: SessionEnd) -> Step:
    return lambda lane, _: replace(lane, over=how)


def turn_started(lane: Lane, e: r.TurnStarted) -> Lane:
    taken = queued_as(lane, e.delivery_id)
    # A retry acts for those who sent what it retries: it has no message of its own.
    before = lane.last.senders if lane.last and e.retries else ()
    return replace(
        lane,
        queue=tuple(q for q in lane.queue if q.delivery_id != e.delivery_id),
        turns=lane.turns + 1,
        turn=Turn(
            e.turn,
            (e.delivery_id,),
            e.since,
            taken.offset,
            deadline=taken.deadline,
            senders=with_sender(before, taken),
            began=e.since,
            input=taken.input,
        ),
        waiting=(),
        last=None,
    )


def queued_as(lane: Lane, delivery_id: str) -> QueuedDelivery:
    return next(
        (q for q in lane.queue if q.delivery_id == delivery_id), QueuedDelivery(delivery_id)
    )


def with_sender(senders: tuple[str, ...], queued: QueuedDelivery) -> tuple[str, ...]:
    return senders if queued.principal in ("", *senders) else (*senders, queued.principal)


def turn_completed(lane: Lane, e: r.TurnCompleted) -> Lane:
    return end_turn(lane, TurnEnd(e.turn, "completed"))


def turn_failed(lane: Lane, e: r.TurnFailed) -> Lane:
    return end_turn(lane, TurnEnd(e.turn, "failed", e.error, e.structural))


def turn_cancelled(lane: Lane, e: r.TurnCancelled) -> Lane:
    return end_turn(lane, TurnEnd(e.turn, "cancelled"))


def end_turn(lane: Lane, last: TurnEnd) -> Lane:
    assert lane.turn is not None
    told = tuple(DeliveryOutcome(d, last.how, last.turn) for d in lane.turn.deliveries)
    last = replace(last, senders=lane.turn.senders)
    return replace(
        lane,
        turn=None,
        unsettled=(*lane.unsettled, *told),
        last=last,
        blocked=None,
        summary=None,
        ended=lane.ended + lane.turn.ended,
        below=lane.below + lane.turn.below,
    )


def turn_stopping(turn: Turn, e: r.TurnStopping) -> Turn:
    return replace(
        turn,
        stopping=StoppingTurn(
            reason=e.reason,
            superseded=e.superseded,
            delivery_id=e.delivery_id,
            error=e.error,
            structural=e.structural,
        ),
    )


def step_started(turn: Turn, e: r.StepStarted) -> Turn:
    # Rules are asked anew in another step: who is due, and whether the turn may end.
    return replace(
        turn,
        step=e.step,
        model=None,
        answer="",
        calls={},
        misfit=False,
        heard=(),
        completion="",
    )


def step_failed(turn: Turn, e: r.StepFailed) -> Turn:
    return replace(turn, failure=e.error, structural=e.structural)


def delivery_joined(lane: Lane, e: r.DeliveryJoined) -> Lane:
    assert lane.turn is not None
    lane = lane.with_turn(
        deliveries=(*lane.turn.deliveries, e.delivery_id),
        senders=with_sender(lane.turn.senders, queued_as(lane, e.delivery_id)),
    )
    return replace(lane, queue=tuple(q for q in lane.queue if q.delivery_id != e.delivery_id))


def delivery_settled(lane: Lane, e: r.DeliverySettled) -> Lane:
    def others(inbox: tuple[Any, ...]) -> tuple[Any, ...]:
        # Mostly the oldest is settled: a backlog of thousands is not looked through for each.
        if inbox and inbox[0].delivery_id == e.delivery_id:
            return inbox[1:]
        return tuple(d for d in inbox if d.delivery_id != e.delivery_id)

    return replace(
        lane,
        queue=others(lane.queue),
        replies=others(lane.replies),
        relays=others(lane.relays),
        changes=others(lane.changes),
        views=others(lane.views),
        sent=others(lane.sent),
        cancels=others(lane.cancels),
        unsettled=others(lane.unsettled),
    )


# Model calls


def model_started(turn: Turn, e: r.ModelStarted) -> Turn:
    # A further attempt keeps what the call knows of earlier ones; a new step has none.
    before = turn.model or ModelCall(e.call_id, 0)
    started = replace(
        before, attempt=e.attempt, status=RUNNING, partial="", parked=False, asked=e.model, heard=0
    )
    return replace(turn, model=started, restarts=False)


def with_model(turn: Turn, **changes: object) -> Turn:
    assert turn.model is not None
    return replace(turn, model=replace(turn.model, **changes))


def model_retrying(turn: Turn, e: r.ModelRetrying) -> Turn:
    assert turn.model is not None
    return with_model(
        turn,
        status="retry",
        # An outcome, if a bad one: the worker has lived through the call.
        lost=0,
        failed=turn.model.failed + 1,
        failing_since=e.since,
        not_before=e.not_before,
    )


def model_switched(turn: Turn, e: r.ModelSwitched) -> Turn:
    assert turn.model is not None
    left = UnavailableModel(e.left, e.error, e.blocked, e.retry_at)
    switched = with_model(
        turn,
        status="retry",
        lost=0,
        failed=0,
        failing_since=e.since,
        not_before=0,
        unavailable=with_unavailable(turn.model, left),
    )
    return replace(switched, fallback=e.model)


def with_unavailable(model: ModelCall, last: UnavailableModel) -> tuple[UnavailableModel, ...]:
    others = (each for each in model.unavailable if each.name != last.name)
    return (*others, last)


def provider_unavailable(lane: Lane, e: r.ProviderUnavailable) -> Lane:
    outage = Outage(e.since, e.error, attempts=int(e.asked), blocked=is_blocked(lane, e))
    return parked(replace(lane, outage=outage), e)


def provider_still_unavailable(lane: Lane, e: r.ProviderStillUnavailable) -> Lane:
    assert lane.outage is not None
    before = lane.outage
    attempts = before.attempts + e.asked
    outage = replace(before, error=e.error, attempts=attempts, blocked=is_blocked(lane, e))
    return parked(replace(lane, outage=outage), e)


Unavailable = r.ProviderUnavailable | r.ProviderStillUnavailable


def is_blocked(lane: Lane, e: Unavailable) -> bool:
    """Say whether none of the agent's models will be had again by itself."""
    assert lane.turn is not None
    assert lane.turn.model is not None
    return e.blocked and not lane.turn.model.may_pass


def parked(lane: Lane, e: Unavailable) -> Lane:
    """Have the open model call wait for a provider, for a time or for its turn in line.

    It is the provider of the next model, where the agent has several.
    """
    assert lane.turn is not None
    not_before = 0 if e.in_line else e.not_before
    turn = with_model(lane.turn, status="retry", lost=0, not_before=not_before, parked=True)
    if e.next_model:
        assert turn.model is not None
        failed = UnavailableModel(e.model, e.error, e.blocked, e.retry_at)
        turn = with_model(turn, unavailable=with_unavailable(turn.model, failed))
        turn = replace(turn, fallback=e.next_model)
    return replace(lane, turn=turn)


def provider_available(lane: Lane, e: r.ProviderAvailable) -> Lane:
    return replace(lane, outage=None)


def message_delta(turn: Turn, e: r.MessageDelta) -> Turn:
    assert turn.model is not None
    # Half-written arguments of a tool cannot be continued, whatever text comes after them.
    broken = e.tool or turn.model.partial == "broken"
    heard = turn.model.heard + len(e.text)
    return with_model(turn, partial="broken" if broken else "text", heard=heard)


def reasoning_delta(turn: Turn, e: r.ReasoningDelta) -> Turn:
    assert turn.model is not None
    heard = turn.model.heard + len(e.text)
    return with_model(turn, partial=turn.model.partial or "reasoning", heard=heard)


def message_aborted(turn: Turn, e: r.MessageAborted) -> Turn:
    assert turn.model is not None
    model = turn.model
    if e.attempt != model.attempt:  # it was kept, until another model was asked
        return with_model(turn, kept=tuple(each for each in model.kept if each != e.attempt))
    return with_model(turn, partial="", kept=(*model.kept, e.attempt) if e.kept else model.kept)


def message_completed(turn: Turn, e: r.MessageCompleted) -> Turn:
    calls = {
        part.call_id: OpenCall(part.call_id, part.tool, part.args, "")
        for part in e.parts
        if isinstance(part, ToolCall)
    }
    turn = replace(turn, model=None, answer=e.call_id, calls=calls)
    return corrected(turn, misfit=True) if e.misfit else turn


def corrected(turn: Turn, **changes: object) -> Turn:
    """Count once more that the model is asked to correct something."""
    return replace(turn, corrections=turn.corrections + 1, **changes)


def usage_recorded(lane: Lane, e: r.UsageRecorded) -> Lane:
    used = used_by(e)
    # Shown, but not this session's own: another server has counted and priced it.
    if e.remote:
        assert lane.turn is not None
        return lane.with_turn(below=lane.turn.below + used)
    context = lane.context
    # What a summary used says nothing of the view's size, and an estimate is no word of the
    # provider's.
    if lane.summary and e.call_id == lane.summary.call_id:
        lane = replace(lane, summary=replace(lane.summary, is_told=True))
    elif not e.estimated:
        tokens = e.input_tokens + e.output_tokens or context.tokens
        # Compaction only estimates how large the view is then.
        context = ContextSize(tokens, floor=tokens if context.is_fresh else context.floor)
    lane = replace(lane, usage=lane.usage + used, context=context)
    # A summary between turns is the session's alone.
    return lane.with_turn(usage=lane.turn.usage + used) if lane.turn else lane


def prompt_rendered(lane: Lane, e: r.PromptRendered) -> Lane:
    texts = tuple(section.digest for section in e.sections)
    return replace(lane, prompt=RecordedPrompt(e.digest, texts))


# Tool calls


def tool_requested(turn: Turn, e: r.ToolRequested) -> Turn:
    return turn.with_call(
        e.call_id,
        digest=e.digest,
        asks=e.asks,
        repeats=e.repeats,
        output=e.output,
        dedupe=e.dedupe,
        **({"args": e.changed} if e.changed else {}),
    )


def tool_started(turn: Turn, e: r.ToolStarted) -> Turn:
    return turn.with_call(
        e.call_id,
        status=RUNNING,
        attempt=e.attempt,
        reason="",
        due_at=0,
        reconciles=0,
        failure=None,
        vanished=0,
    )


def tool_vanished(turn: Turn, e: r.ToolVanished) -> Turn:
    return turn.with_call(e.call_id, vanished=e.since)


def tool_waiting(turn: Turn, e: r.ToolWaiting) -> Turn:
    """Stop a call. A time that it does not wait for any more is forgotten."""
    waits_for = (e.name, *e.also)
    timers = turn.calls[e.call_id].timers
    timers = {name: due_at for name, due_at in timers.items() if name in waits_for}
    return turn.with_call(
        e.call_id,
        status="waiting",
        waits_for=waits_for,
        woken_by="",
        unused=e.unused,
        unstable=e.unstable,
        timers=timers,
        reconciles=e.reconciles,
        reason="unreconciled" if e.reconciles else "",
        lost=0,
        begun=still_begun(turn.calls[e.call_id], waits_for),
        events=e.events,
        mismatched_since=0,
    )


def still_begun(call: OpenCall, waits_for: tuple[str, ...]) -> Mapping[str, int]:
    """Return the steps of a call that may be under way, though it has stopped.

    One that has stopped at a wait of its own is not, unless that asks what became of it.
    """
    if not call.begun:
        return {}
    own = [wait for wait in waits_for if CUT_STEP not in wait]
    return {
        step: attempt
        for step, attempt in call.begun.items()
        if not any(wait.startswith(f"{step}/") for wait in own)
    }


def tool_woken(turn: Turn, e: r.ToolWoken) -> Turn:
    return turn.with_call(e.call_id, status="woken", woken_by=e.name)


def with_outcome(turn: Turn, call_id: str, **changes: object) -> Turn:
    """Return the turn with one more tool call that is done; a typed answer is none."""
    turn = turn.with_call(call_id, status="done", **changes)
    return turn if turn.calls[call_id].output else replace(turn, ended=turn.ended + 1)


def tool_completed(lane: Lane, e: r.ToolCompleted) -> Lane:
    assert lane.turn is not None
    digest, before = lane.turn.calls[e.call_id].digest, lane.context
    size = len(e.value if e.message is None else e.message)
    context = ContextSize(
        before.tokens,
        before.added + size,
        max(before.largest, size),
        before.floor,
        before.overflows,
    )
    turn = with_outcome(lane.turn, e.call_id, succeeded=True)
    lane = replace(lane, turn=turn, context=context)
    # The usual case shares the mapping with the lane before.
    if digest not in lane.unknown:
        return lane
    # The same arguments have succeeded: the question whether to repeat them is answered.
    return replace(lane, unknown={d: call for d, call in lane.unknown.items() if d != digest})


def tool_failed(turn: Turn, e: r.ToolFailed) -> Turn:
    if e.again_at:
        return turn.with_call(
            e.call_id,
            status="again",
            due_at=e.again_at,
            failed=turn.calls[e.call_id].failed + 1,
            failure=e.error,
            lost=0,
            spoilt={},  # another attempt at the call does anew what has failed in this one
        )
    turn = with_outcome(turn, e.call_id)
    if turn.calls[e.call_id].is_body:
        return replace(turn, failure=e.error)
    return corrected(turn) if e.error.code == "RETRY" else turn


def tool_interrupted(lane: Lane, e: r.ToolInterrupted) -> Lane:
    assert lane.turn is not None
    if not e.final:
        # Undone because another lane was quicker: nothing is wrong with the call.
        lost = lane.turn.calls[e.call_id].lost + (e.reason != CONTENDED)
        return lane.with_call(e.call_id, status=CUT, reason=e.reason, why=e.why, lost=lost)
    call = lane.turn.calls[e.call_id]
    turn = with_outcome(lane.turn, e.call_id)
    # Kept beyond the turn: a model that makes the same call later is asked about it first.
    return replace(lane, turn=turn, unknown={**lane.unknown, call.digest: call.call_id})


def tool_denied(turn: Turn, e: r.ToolDenied) -> Turn:
    return with_outcome(turn, e.call_id)


# Ownership


def lane_taken_over(lane: Lane, e: r.LaneTakenOver) -> Lane:
    # Between turns nothing was under way: a takeover means nothing there.
    turn = lane.turn
    if turn is None:
        return lane
    # A worker that hands its lanes back has not crashed over them: a rolling deploy must not use up
    # `max_crashes`.
    lost, reason = (0, "stopped") if e.graceful else (1, "crash")
    model = turn.model
    if model and model.status == RUNNING:
        model = replace(model, status=CUT, lost=model.lost + lost)
    calls = {
        name: replace(call, status=CUT, reason=reason, why="", lost=call.lost + lost)
        if call.status == RUNNING
        else call
        for name, call in turn.calls.items()
    }
    # The model may be asked while the lane waits for its provider: so it does still, and readers
    # need not be told again.
    waiting = lane.waiting if lane.outage and lane.waiting == (PROVIDER,) else ()
    return replace(lane, waiting=waiting).with_turn(
        model=model,
        calls=calls,
        since=e.since,
        spent=e.spent,
        handed_back=e.graceful and not turn.handed_back,
        is_recovering=turn.is_recovering or not e.graceful,
        # A lane that was handed over goes on in the conversation; only a crash restarts it from a
        # milestone.
        restarts=turn.restarts or not e.graceful,
    )


def lane_blocked(lane: Lane, e: r.LaneBlocked) -> Lane:
    return replace(lane, blocked=e.error)


SESSION_WIDE = (
    r.SessionStarted,
    r.SessionCompleted,
    r.SessionFailed,
    r.SessionEnded,
)

LANE_FACTS: dict[type, Step] = {
    r.SessionWaiting: session_waiting,
    r.SessionResumed: session_resumed,
    r.SessionRekeyed: session_rekeyed,
    r.SessionCompleted: session_over("completed"),
    r.SessionFailed: session_over("failed"),
    r.SessionEnded: session_over("ended"),
    r.TurnStarted: turn_started,
    r.TurnCompleted: turn_completed,
    r.TurnFailed: turn_failed,
    r.TurnCancelled: turn_cancelled,
    r.DeliveryJoined: delivery_joined,
    r.DeliverySettled: delivery_settled,
    r.ProviderUnavailable: provider_unavailable,
    r.ProviderStillUnavailable: provider_still_unavailable,
    r.ProviderAvailable: provider_available,
    r.UsageRecorded: usage_recorded,
    r.PromptRendered: prompt_rendered,
    r.ToolCompleted: tool_completed,
    r.ToolInterrupted: tool_interrupted,
    r.LaneTakenOver: lane_taken_over,
    r.LaneBlocked: lane_blocked,
    **LANE_RULES,
    **LANE_MILESTONES,
    **LANE_CONTEXT,
    **LANE_WORKFLOW,
    **LANE_BUDGETS,
}

TURN_FACTS: dict[type, Callable[[Turn, Any], Turn]] = {
    r.TurnStopping: turn_stopping,
    r.StepStarted: step_started,
    r.StepFailed: step_failed,
    r.ModelStarted: model_started,
    r.ModelRetrying: model_retrying,
    r.ModelSwitched: model_switched,
    r.MessageDelta: message_delta,
    r.ReasoningDelta: reasoning_delta,
    r.MessageAborted: message_aborted,
    r.MessageCompleted: message_completed,
    r.ToolRequested: tool_requested,
    r.ToolStarted: tool_started,
    r.ToolVanished: tool_vanished,
    r.ToolWaiting: tool_waiting,
    r.ToolWoken: tool_woken,
    r.ToolFailed: tool_failed,
    r.ToolDenied: tool_denied,
    **WAITS,
    **TURN_RULES,
    **TURN_WORKFLOW,
}
