"""Runs of workflows: when the body is called, what its end means for the run, how that is recorded.

A run is a session whose one turn has one call, that of the workflow's body, and no model call. All
else is what every call has: steps, waits, parking, recovery. Refuses to know what a body does
(`outlast.workflows`).
"""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.action import AnyAction, CallWorkflow, CompleteTurn, FailTurn
from outlast.core.lane import Lane, OpenCall, QueuedDelivery, SpoiltStep, Turn
from outlast.core.name import args_digest, model_call_name, tool_call_name
from outlast.core.record import AnyRecord, Failure

STEP = 1

# What comes next


def call_workflow(turn: str, head: QueuedDelivery) -> CallWorkflow:
    """Begin the turn of a run with the call of its body."""
    call_id = tool_call_name(model_call_name(turn, STEP), 1)
    return CallWorkflow(turn=turn, call_id=call_id, delivery=head.delivery_id)


def after_body(turn: Turn, interrupted: Callable[[OpenCall], Failure]) -> AnyAction:
    """End the turn of a run as its body has ended."""
    [call] = turn.calls.values()
    if call.succeeded:
        return CompleteTurn(turn=turn.id, step=turn.step, call_id=call.call_id, output=call.call_id)
    return FailTurn(turn=turn.id, error=interrupted(call))


# The fold


def workflow_called(turn: Turn, e: r.WorkflowCalled) -> Turn:
    body = OpenCall(
        e.call_id, e.workflow, turn.input, args_digest(e.workflow, turn.input), is_body=True
    )
    return replace(turn, input="", answer=e.call_id, calls={e.call_id: body})


def step_started(turn: Turn, e: r.ToolStepStarted) -> Turn:
    return turn.with_call(e.call_id, begun={**turn.calls[e.call_id].begun, e.name: e.attempt})


def step_recorded(turn: Turn, e: r.ToolStepRecorded) -> Turn:
    call = turn.calls[e.call_id]
    changes: dict[str, Any] = {"memo": {**call.memo, e.name: e.value}}
    if call.lost:
        changes["lost"] = 0  # a call that comes to something is not one that never gets on
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


def without(steps: Any, name: str) -> dict[str, Any]:
    return {each: of for each, of in steps.items() if each != name}


TURN_WORKFLOW: dict[type, Callable[[Turn, Any], Turn]] = {
    r.WorkflowCalled: workflow_called,
    r.ToolStepStarted: step_started,
    r.ToolStepRecorded: step_recorded,
    r.ToolStepFailed: step_failed,
}


# How it is written down


def workflow_opens(lane: Lane, action: CallWorkflow, started: AnyRecord) -> Iterator[AnyRecord]:
    """Begin the turn and call the body; it is `started` in the same commit."""
    yield started
    yield r.StepStarted(turn=action.turn, step=STEP)
    yield r.WorkflowCalled(call_id=action.call_id, workflow=lane.agent)
