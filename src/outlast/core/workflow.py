"""Runs of workflows: when the body is called, what its end means for the run, how that is recorded.

A run is a session whose one turn has one call, that of the workflow's body, and no model call. All
else is what every call has: steps, waits, parking, recovery. A body that fails, or whose run is
stopped, is run once more to collect what undoes it (`undo.py`). Refuses to know what a body does
(`outlast.workflows`).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.action import AnyAction, CallWorkflow, CompleteTurn, FailTurn
from outlast.core.lane import Lane, OpenCall, QueuedDelivery, SpoiltStep, StoppingTurn, Turn
from outlast.core.memo import memo_of
from outlast.core.name import args_digest, model_call_name, tool_call_name
from outlast.core.policy import MINUTE, SECOND
from outlast.core.record import AnyRecord, Failure
from outlast.core.result import Mismatched, Restarted, Undone

STEP = 1
FIRST_LOOK, LONGEST_LOOK = 2 * SECOND, MINUTE
"""How soon code is tried again that did not fit, and the longest pause between two tries."""

# What comes next


def call_workflow(turn: str, head: QueuedDelivery) -> CallWorkflow:
    """Begin the turn of a run with the call of its body."""
    call_id = tool_call_name(model_call_name(turn, STEP), 1)
    return CallWorkflow(turn=turn, call_id=call_id, delivery=head.delivery_id)


def after_body(turn: Turn, interrupted: Callable[[OpenCall], Failure]) -> AnyAction:
    """End the turn of a run as its body has ended."""
    # A run has one call, that of its body.
    [call] = turn.calls.values()
    if call.succeeded:
        return CompleteTurn(turn=turn.id, step=turn.step, call_id=call.call_id, output=call.call_id)
    return FailTurn(turn=turn.id, error=interrupted(call))


# The fold


def workflow_called(lane: Lane, e: r.WorkflowCalled) -> Lane:
    turn, before = lane.turn, lane.inherited
    assert turn is not None
    text = before.input if before and before.input else turn.input
    body = OpenCall(e.call_id, e.workflow, text, args_digest(e.workflow, text), is_body=True)
    if before:
        body = replace(
            body,
            memo=memo_of(before.steps),
            # Of a step that was cut off in the run before, nothing more is known in this one.
            spoilt={name: SpoiltStep(error, True) for name, error in before.spoilt.items()},
            begun=before.begun,
            undos=before.undos,
        )
    undo = StoppingTurn(error=before.undoing) if before and before.undoing else None
    turn = replace(turn, input="", answer=e.call_id, calls={e.call_id: body}, undo=undo)
    return replace(lane, turn=turn, inherited=None)


def journal_inherited(lane: Lane, e: r.JournalInherited, _: int) -> Lane:
    return replace(lane, inherited=e)


def run_restarted(turn: Turn, e: r.RunRestarted) -> Turn:
    call = turn.calls[e.call_id]
    body = OpenCall(
        e.call_id,
        call.tool,
        e.input,
        args_digest(call.tool, e.input),
        status="woken",
        attempt=call.attempt,
        is_body=True,
        restarts=call.restarts + 1,
    )
    return replace(turn, calls={e.call_id: body})


def step_started(turn: Turn, e: r.ToolStepStarted) -> Turn:
    return turn.with_call(e.call_id, begun={**turn.calls[e.call_id].begun, e.name: e.attempt})


def step_recorded(turn: Turn, e: r.ToolStepRecorded) -> Turn:
    call = turn.calls[e.call_id]
    changes: dict[str, Any] = {"memo": call.memo.having(e.name, e.value)}
    if call.lost:
        changes["lost"] = 0  # a call that comes to something is not one that never gets on
    # Most steps are readonly or rerun, and leave no start.
    if call.begun or call.tried:
        changes |= {"begun": without(call.begun, e.name), "tried": without(call.tried, e.name)}
    return turn.with_call(e.call_id, **changes)


def step_failed(turn: Turn, e: r.ToolStepFailed) -> Turn:
    call = turn.calls[e.call_id]
    begun, tried = without(call.begun, e.name), without(call.tried, e.name)
    if e.again:
        return turn.with_call(e.call_id, begun=begun, tried={**tried, e.name: e.attempt}, lost=0)
    spoilt = {**call.spoilt, e.name: SpoiltStep(e.error, e.interrupted)}
    return turn.with_call(e.call_id, begun=begun, tried=tried, spoilt=spoilt, lost=0)


def without(steps: Mapping[str, int], name: str) -> dict[str, int]:
    return {each: of for each, of in steps.items() if each != name}


def tool_emitted(lane: Lane, e: r.ToolEmitted) -> Lane:
    if not e.key or lane.turn is None:
        return lane
    memo = lane.turn.calls[e.call_id].memo.having(e.key, "true")
    return lane.with_call(e.call_id, memo=memo)


def tool_progress(lane: Lane, e: r.ToolProgress) -> Lane:
    if not e.done or lane.turn is None:
        return lane
    progress = {**lane.turn.calls[e.call_id].progress, e.name: e.done}
    return lane.with_call(e.call_id, progress=progress)


def tool_mismatched(turn: Turn, e: r.ToolMismatched) -> Turn:
    return turn.with_call(
        e.call_id,
        status="mismatched",
        mismatch=e.error,
        mismatched_since=e.since,
        due_at=e.again_at,
        lost=0,
    )


# Events


def event_sent(lane: Lane, e: r.EventSent, _: int) -> Lane:
    return replace(lane, sent=(*lane.sent, e))


def event_received(lane: Lane, e: r.EventReceived) -> Lane:
    assert lane.turn is not None
    # By its id: the payload stands in the arrival, and is not written twice.
    sent = next(each for each in lane.sent if each.delivery_id == e.delivery_id)
    kept = lane.turn.events.get(e.name) or ()
    return lane.with_turn(events=lane.turn.events.having(e.name, (*kept, sent.payload)))


def event_taken(turn: Turn, e: r.EventTaken) -> Turn:
    first, *rest = turn.events.get(e.event) or ()
    events = turn.events.having(e.event, tuple(rest))
    memo = turn.calls[e.call_id].memo.having(e.name, as_event(first))
    return replace(turn.with_call(e.call_id, memo=memo), events=events)


def as_event(payload: str) -> str:
    """Return an event's payload as a wait for it comes to it; `payload_of` undoes it."""
    # Wrapped: a payload may be anything, also what stands for a wait that was given up or whose
    # time ran out.
    return f'{{"event":{payload}}}'


def payload_of(known: str) -> str:
    return known[len('{"event":') : -1]


# Undo


def undo_registered(turn: Turn, e: r.UndoRegistered) -> Turn:
    return turn.with_call(e.call_id, undos={**turn.calls[e.call_id].undos, e.name: e.title})


def undo_started(turn: Turn, e: r.UndoStarted) -> Turn:
    how = StoppingTurn(
        reason=e.reason, superseded=e.superseded, delivery_id=e.delivery_id, error=e.error
    )
    turn = turn.with_call(
        e.call_id, status="woken", waits_for=(), events={}, timers={}, begun={}, lost=0
    )
    return replace(turn, undo=how, stopping=None, failure=None)


def undo_ended(turn: Turn, e: r.UndoEnded) -> Turn:
    turn = turn.with_call(e.call_id, status="done")
    assert turn.undo is not None
    return replace(turn, undo=StoppingTurn(error=e.error)) if e.error else turn


LANE_WORKFLOW: dict[type, Callable[[Lane, Any], Lane]] = {
    r.WorkflowCalled: workflow_called,
    r.EventReceived: event_received,
    r.ToolEmitted: tool_emitted,
    r.ToolProgress: tool_progress,
}
TURN_WORKFLOW: dict[type, Callable[[Turn, Any], Turn]] = {
    r.RunRestarted: run_restarted,
    r.ToolStepStarted: step_started,
    r.ToolStepRecorded: step_recorded,
    r.ToolStepFailed: step_failed,
    r.ToolMismatched: tool_mismatched,
    r.EventTaken: event_taken,
    r.UndoRegistered: undo_registered,
    r.UndoStarted: undo_started,
    r.UndoEnded: undo_ended,
}
WORKFLOW_ARRIVALS: dict[type, Callable[[Lane, Any, int], Lane]] = {
    r.EventSent: event_sent,
    r.JournalInherited: journal_inherited,
}


# How it is written down


def workflow_opens(lane: Lane, action: CallWorkflow, started: AnyRecord) -> Iterator[AnyRecord]:
    """Begin the turn and call the body; it is `started` in the same commit."""
    yield started
    yield r.StepStarted(turn=action.turn, step=STEP)
    yield r.WorkflowCalled(call_id=action.call_id, workflow=lane.agent)


def event_taken_in(lane: Lane, event: r.EventSent) -> Iterator[AnyRecord]:
    """Keep an event, and wake what waits for one of its name."""
    assert lane.turn is not None
    yield r.EventReceived(delivery_id=event.delivery_id, name=event.name)
    for call in lane.turn.calls.values():
        waits = (wait for wait in call.waits_for if call.events.get(wait) == event.name)
        if call.status == "waiting" and (first := next(waits, "")):
            yield r.ToolWoken(call_id=call.call_id, name=first)
    yield r.DeliverySettled(delivery_id=event.delivery_id, outcome="answered", turn=lane.turn.id)


def mismatched(call: OpenCall, end: Mismatched, now: int) -> AnyRecord:
    """Have a call wait for code that fits; it is tried again after as long as it has waited."""
    since = call.mismatched_since or now
    pause = min(max(now - since, FIRST_LOOK), LONGEST_LOOK)
    return r.ToolMismatched(
        call_id=call.call_id,
        attempt=call.attempt,
        error=end.error,
        since=since,
        again_at=now + pause,
    )


def restarted(call: OpenCall, end: Restarted) -> AnyRecord:
    return r.RunRestarted(call_id=call.call_id, attempt=call.attempt, input=end.input)


def undone(end: Undone) -> AnyRecord:
    return r.UndoEnded(call_id=end.call_id, error=end.error, left=end.left)
