"""Rules of a sound log about steps of calls, and about runs of workflows: their events, their undo.

See `rule.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from outlast.core import record as r
from outlast.core.lane import Lane, OpenCall

Wrong = tuple[str, str]
StepRecord = r.ToolStepStarted | r.ToolStepRecorded | r.ToolStepFailed


def call_of(lane: Lane, call_id: str) -> OpenCall | None:
    return lane.turn.calls.get(call_id) if lane.turn else None


def names_call(lane: Lane, e: Any) -> Iterator[Wrong]:
    if call_of(lane, e.call_id) is None:
        yield "UNKNOWN_CALL", f"no open step asked for {e.call_id}"


def step_is_new(lane: Lane, e: StepRecord) -> Iterator[Wrong]:
    """A step whose result is recorded is neither recorded nor begun again."""
    yield from names_call(lane, e)
    call = call_of(lane, e.call_id)
    if call and (e.name in call.memo or e.name in call.spoilt):
        yield "STEP_REPEATED", f"the step {e.name} of {e.call_id} is known, and is done again"


def step_starts(lane: Lane, e: r.ToolStepStarted) -> Iterator[Wrong]:
    yield from step_is_new(lane, e)
    call = call_of(lane, e.call_id)
    before = max(call.tried.get(e.name, 0), call.begun.get(e.name, 0)) if call else 0
    if before and e.attempt != before + 1:
        yield "ATTEMPT_OUT_OF_ORDER", f"attempt {e.attempt} at {e.name} follows on {before}"


def emitted_once(lane: Lane, e: r.ToolEmitted) -> Iterator[Wrong]:
    yield from names_call(lane, e)
    call = call_of(lane, e.call_id)
    if e.key and call and e.key in call.memo:
        yield "STEP_REPEATED", f"{e.call_id} adds the event {e.key} again"


def workflow_is_called(lane: Lane, e: r.WorkflowCalled) -> Iterator[Wrong]:
    if lane.turn is None or not lane.is_run:
        yield "UNKNOWN_TURN", f"no turn of a run is open, and {e.workflow} is called"
    elif lane.turn.calls:
        yield "SECOND_CALL", f"the body of {e.workflow} is called again as {e.call_id}"


def event_is_received(lane: Lane, e: r.EventReceived) -> Iterator[Wrong]:
    if lane.turn is None:
        yield "UNKNOWN_TURN", f"no turn is open, and the event {e.name} is received"
    if all(sent.delivery_id != e.delivery_id or sent.name != e.name for sent in lane.sent):
        yield "UNKNOWN_DELIVERY", f"{e.delivery_id} is received, and was never sent as {e.name}"


def event_is_taken(lane: Lane, e: r.EventTaken) -> Iterator[Wrong]:
    yield from names_call(lane, e)
    if not (lane.turn and lane.turn.events.get(e.event)):
        yield "UNKNOWN_EVENT", f"{e.call_id} takes an event {e.event}, and there is none"
    if (call := call_of(lane, e.call_id)) and e.name in call.memo:
        yield "SECOND_OUTCOME", f"{e.name} of {e.call_id} has an event already"


def undo_is_registered(lane: Lane, e: r.UndoRegistered) -> Iterator[Wrong]:
    yield from names_call(lane, e)
    call = call_of(lane, e.call_id)
    if call and e.name in call.undos:
        yield "STEP_REPEATED", f"{e.call_id} registers {e.title} again"
    if lane.turn and lane.turn.undo:
        yield "UNDOING", f"{e.call_id} registers {e.title} while it is undone"


def undo_starts(lane: Lane, e: r.UndoStarted) -> Iterator[Wrong]:
    yield from names_call(lane, e)
    call = call_of(lane, e.call_id)
    if call and not call.undos:
        yield "NOTHING_TO_UNDO", f"{e.call_id} is undone, and has registered nothing"
    if lane.turn and lane.turn.undo:
        yield "UNDOING", f"{e.call_id} begins to be undone again"


def undo_ends(lane: Lane, e: r.UndoEnded) -> Iterator[Wrong]:
    yield from names_call(lane, e)
    if lane.turn and not lane.turn.undo:
        yield "UNDOING", f"{e.call_id} is undone, and that has not begun"


WORKFLOW_RULES: dict[type, Callable[[Lane, Any], Iterator[Wrong]]] = {
    r.ToolStepStarted: step_starts,
    r.ToolStepRecorded: step_is_new,
    r.ToolStepFailed: step_is_new,
    r.ToolEmitted: emitted_once,
    r.ToolMismatched: names_call,
    r.WorkflowCalled: workflow_is_called,
    r.RunRestarted: names_call,
    r.EventReceived: event_is_received,
    r.EventTaken: event_is_taken,
    r.UndoRegistered: undo_is_registered,
    r.UndoStarted: undo_starts,
    r.UndoEnded: undo_ends,
}
