"""Undo: what a run does between its failure, or its cancel, and its end.

The functions that undo a body's steps are code, so they cannot be stored: the body is run again and
registers them, as far as it had come; then they are called in reverse, each as a step. Nothing
bounds that but the crashes of its workers: neither the deadline, nor another cancel.
"""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.action import (
    AnyAction,
    CancelTurn,
    ExpireRequest,
    FailTurn,
    TakeEvent,
    TakeRelay,
    TakeReply,
)
from outlast.core.lane import Lane, OpenCall, Turn
from outlast.core.name import quoted, wait_name

UNDO_FAILED = "UNDO_FAILED"
UNDO_SCOPE = "=undo/"
"""The scope of what undoes a body's steps; no name that is given can begin so."""


def undo_turn(
    lane: Lane, turn: Turn, now: int, settle: Callable[[Lane, Turn], AnyAction]
) -> AnyAction:
    """Return what comes next while a body's work is undone; `settle` carries its call on."""
    assert turn.undo is not None
    # A run has one call, that of its body.
    [call] = turn.calls.values()
    if lane.blocked:
        return end_after(turn, undo_failed(call, lane.blocked))
    # What undoes a step may ask a human as well, and its answer must not wait for the undo's end.
    if lane.replies:
        return TakeReply(reply=lane.replies[0])
    if lane.relays:
        return TakeRelay(relay=lane.relays[0])
    if lane.sent:
        return TakeEvent(event=lane.sent[0])
    if call.is_done:
        return end_after(turn, turn.undo.error)
    for request in turn.requests.values():
        if 0 < request.due_at <= now:
            return ExpireRequest(request_id=request.request_id)
    # What has to be undone has to be undone after the deadline, too.
    unbounded = replace(turn, deadline=0)
    action = settle(replace(lane, deadline=0, turn=unbounded), unbounded)
    if isinstance(action, FailTurn):
        return end_after(turn, undo_failed(call, action.error))
    return action


def end_after(turn: Turn, error: r.Failure | None) -> AnyAction:
    """End a turn as it would have ended without an undo, or as the undo did."""
    assert turn.undo is not None
    if error:
        return FailTurn(turn=turn.id, error=error)
    return CancelTurn(
        turn=turn.id,
        reason=turn.undo.reason,
        superseded=turn.undo.superseded,
        delivery_id=turn.undo.delivery_id,
    )


def undo_failed(call: OpenCall, why: r.Failure) -> r.Failure:
    """Return why a run is not undone."""
    left = [title for name, title in call.undos.items() if undo_key(name) not in call.memo]
    return r.Failure(
        UNDO_FAILED,
        f"{why.code}: {why.message}; not undone: {', '.join(reversed(left)) or 'nothing'}",
        "mend what stands against it and retry the run: its undo goes on",
    )


def undo_key(name: str) -> str:
    """Return the name of the step by which something is undone."""
    return wait_name(UNDO_SCOPE, "step", quoted(name), 1)


def has_to_undo(turn: Turn) -> bool:
    """Say whether a turn that is to end without success has something to undo first."""
    return turn.undo is None and any(call.undos for call in turn.calls.values())


def undo_starts(turn: Turn, action: CancelTurn | FailTurn) -> Iterator[r.AnyRecord]:
    """Begin to undo; how the turn ends is decided already."""
    [call] = turn.calls.values()
    if isinstance(action, FailTurn):
        yield r.UndoStarted(call_id=call.call_id, error=action.error)
        return
    yield r.UndoStarted(
        call_id=call.call_id,
        reason=action.reason,
        superseded=action.superseded,
        delivery_id=action.delivery_id,
    )
