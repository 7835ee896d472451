"""Rules that a record must keep to follow on a lane, one small function per record; and `Finding`.

Each is given the lane as it was before, and yields what is wrong with the record. Pure, like the
fold, and stricter: the fold believes what the owner wrote.
"""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from outlast.core import record as r
from outlast.core.lane import RUNNING, Lane, OpenCall, Turn
from outlast.core.name import REQUEST, model_call_name, turn_and_step, turn_name
from outlast.core.outcome import NOT_RUN
from outlast.core.result import Asked
from outlast.log.verify.context_rule import CONTEXT_RULES
from outlast.log.verify.turn_rule import TURN_RULES
from outlast.log.verify.workflow_rule import WORKFLOW_RULES

Wrong = tuple[str, str]
"""A code and a sentence, before it is known where."""
Rule = Callable[[Lane, Any], Iterator[Wrong]]


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong with a session, or without one with a budget that sessions share.

    `offset` is 0 where an index is wrong by itself.
    """

    session_id: str
    code: str
    message: str
    offset: int = 0
    lane: str = ""


def broken_rules(lane: Lane, record: r.AnyRecord) -> Iterator[Wrong]:
    """Yield what is wrong with a record that follows on a lane."""
    if rule := RULES.get(type(record)):
        yield from rule(lane, record)


# Turns and steps


def turn_starts(lane: Lane, e: r.TurnStarted) -> Iterator[Wrong]:
    if lane.turn:
        yield "TURN_LEFT_OPEN", f"turn {e.turn} starts, and {lane.turn.id} has not ended"
    if e.turn != (due := turn_name(lane.name, lane.turns + 1)):
        yield "UNKNOWN_TURN", f"turn {e.turn} starts where {due} is due"
    if e.retries and (lane.last is None or e.retries != lane.last.turn):
        yield "UNKNOWN_TURN", f"turn {e.turn} retries {e.retries}, which was not the last one"
    yield from is_queued(lane, e.delivery_id)


def turn_ends(lane: Lane, e: r.TurnCompleted | r.TurnFailed | r.TurnCancelled) -> Iterator[Wrong]:
    yield from names_turn(lane, e.turn)
    yield from calls_are_done(lane, e.turn)
    if lane.turn and lane.turn.requests:
        left = ", ".join(lane.turn.requests)
        yield "REQUEST_LEFT_OPEN", f"{e.turn} ends with open requests: {left}"
    if lane.turn and e.usage not in (lane.turn.usage, r.NO_USAGE):
        yield "WRONG_USAGE", f"{e.turn} says another cost than its model calls"
    if lane.turn and e.below not in (lane.turn.below, r.NO_USAGE):
        yield "WRONG_USAGE", f"{e.turn} says another cost of its children than these"


def turn_completes(lane: Lane, e: r.TurnCompleted) -> Iterator[Wrong]:
    yield from turn_ends(lane, e)
    if lane.turn and e.call_id != lane.turn.answer:
        yield "UNKNOWN_CALL", f"{e.turn} ends with the answer {e.call_id}, which is not its last"


def turn_fails(lane: Lane, e: r.TurnFailed) -> Iterator[Wrong]:
    yield from turn_ends(lane, e)
    # A turn that was blocked before its first step has none that could have failed.
    reason = lane.turn.failure if lane.turn and lane.turn.step else lane.blocked
    if lane.turn and reason != e.error:
        yield "UNKNOWN_STEP", f"{e.turn} fails, and none of its steps failed like that"


def step_starts(lane: Lane, e: r.StepStarted) -> Iterator[Wrong]:
    yield from names_turn(lane, e.turn)
    yield from calls_are_done(lane, e.turn)
    if lane.turn and e.step != lane.turn.step + 1:
        yield "UNKNOWN_STEP", f"step {e.step} of {e.turn} follows on step {lane.turn.step}"


def step_ends(lane: Lane, e: r.StepCompleted | r.StepFailed) -> Iterator[Wrong]:
    yield from names_turn(lane, e.turn)
    if lane.turn and e.step != lane.turn.step:
        yield "UNKNOWN_STEP", f"step {e.step} of {e.turn} ends in step {lane.turn.step}"


def step_fails(lane: Lane, e: r.StepFailed) -> Iterator[Wrong]:
    yield from step_ends(lane, e)
    if lane.turn and not lane.turn.model and not lane.turn.answer:
        yield "UNKNOWN_CALL", f"step {e.step} of {e.turn} fails, and its model was never called"


def names_turn(lane: Lane, turn: str) -> Iterator[Wrong]:
    if lane.turn is None:
        yield "UNKNOWN_TURN", f"no turn is open, and this belongs to {turn}"
    elif turn != lane.turn.id:
        yield "UNKNOWN_TURN", f"{lane.turn.id} is open, and this belongs to {turn}"


def calls_are_done(lane: Lane, turn: str) -> Iterator[Wrong]:
    left = [c.call_id for c in lane.turn.calls.values() if not c.is_done] if lane.turn else []
    if left:
        yield "CALL_LEFT_OPEN", f"{turn} goes on without an outcome of {', '.join(left)}"


# Deliveries and rest


def is_queued(lane: Lane, delivery_id: str) -> Iterator[Wrong]:
    if all(queued.delivery_id != delivery_id for queued in lane.queue):
        yield "UNKNOWN_DELIVERY", f"{delivery_id} is taken up, and is not in the queue"


def delivery_joins(lane: Lane, e: r.DeliveryJoined) -> Iterator[Wrong]:
    yield from names_turn(lane, e.turn)
    yield from is_queued(lane, e.delivery_id)


def lane_rests(lane: Lane, e: r.SessionWaiting) -> Iterator[Wrong]:
    """Nothing that a lane could go on with may be left when it rests."""
    if left := left_to_do(lane, e.wait):
        yield "LEFT_UNSETTLED", f"the lane rests, and {', '.join(left)} is not settled"
    for request_id in set(e.requests) - set(lane.turn.requests if lane.turn else ()):
        yield "UNKNOWN_REQUEST", f"the lane waits for {request_id}, which is not open"
    if held := [call_id for call_id in lane.holds if not call_id.startswith(REQUEST)]:
        yield "LEFT_RESERVED", f"the lane rests, and {', '.join(held)} has a reservation"


BEFORE_A_TURN = frozenset({"budget", "limit", "queue", "timer"})
"""The waits for which a lane may rest with a message that it has not taken."""


def left_to_do(lane: Lane, wait: tuple[str, ...]) -> list[str]:
    """Name the deliveries that a lane could go on with at once, resting for what it says."""
    unsettled = [delivery.delivery_id for delivery in lane.unsettled]
    is_undoing = lane.turn is not None and lane.turn.undo is not None
    cancels = [] if is_undoing else [cancel.delivery_id for cancel in lane.cancels]
    sent = [event.delivery_id for event in lane.sent] if lane.turn else []
    # Where the code of a tool is not there, nobody can say who may answer for it.
    replies = [] if "code" in wait else [reply.delivery_id for reply in lane.replies]
    changes = [change.delivery_id for change in lane.changes]
    if lane.turn or not BEFORE_A_TURN.isdisjoint(wait):
        return [*unsettled, *cancels, *replies, *changes, *sent]
    views = [change.delivery_id for change in lane.views]
    queue = [queued.delivery_id for queued in lane.queue]
    return [*unsettled, *cancels, *replies, *changes, *sent, *views, *queue]


# Model calls


def model_starts(lane: Lane, e: r.ModelStarted) -> Iterator[Wrong]:
    yield from names_step(lane, e.call_id)
    before = lane.turn.model.attempt if lane.turn and lane.turn.model else 0
    if e.attempt != before + 1:
        yield "ATTEMPT_OUT_OF_ORDER", f"attempt {e.attempt} at {e.call_id} follows on {before}"
    if lane.turn and lane.turn.answer:
        yield "SECOND_OUTCOME", f"{e.call_id} is called again, and has been answered"


def in_outage(lane: Lane, e: Any) -> Iterator[Wrong]:
    yield from names_model_call(lane, e)
    if lane.outage is None:
        yield "NO_OUTAGE", f"the provider of {e.call_id} was not said to be unavailable"


def message_aborts(lane: Lane, e: r.MessageAborted) -> Iterator[Wrong]:
    model = lane.turn.model if lane.turn else None
    if model and e.call_id == model.call_id and e.attempt in model.kept and not e.kept:
        return  # it was kept until now
    yield from names_model_call(lane, e)


def names_model_call(lane: Lane, e: Any) -> Iterator[Wrong]:
    model = lane.turn.model if lane.turn else None
    if model is None or e.call_id != model.call_id:
        known = model.call_id if model else "none"
        yield "UNKNOWN_CALL", f"the open model call is {known}, and this belongs to {e.call_id}"
    elif e.attempt != model.attempt:
        yield (
            "ATTEMPT_OUT_OF_ORDER",
            f"attempt {model.attempt} at {e.call_id} is open, and this belongs to {e.attempt}",
        )


def names_step(lane: Lane, call_id: str) -> Iterator[Wrong]:
    turn = lane.turn
    if turn is None or turn_and_step(call_id) != (turn.id, turn.step):
        known = model_call_name(turn.id, turn.step) if turn else "none"
        yield "UNKNOWN_CALL", f"the open step is {known}, and this belongs to {call_id}"


def usage_is_recorded(lane: Lane, e: r.UsageRecorded) -> Iterator[Wrong]:
    if e.remote:
        yield from names_call(lane, e)
    elif lane.summary is None or e.call_id != lane.summary.call_id:
        yield from names_step(lane, e.call_id)


def budget_is_charged(lane: Lane, e: r.BudgetCharged) -> Iterator[Wrong]:
    """Only what was reserved is given back, all of it and once."""
    hold = lane.holds.get(e.call_id)
    if e.hold and (hold or e.reserved != e.hold.amounts):
        yield "RESERVED_TWICE", f"{e.call_id} reserves something, and has a reservation"
    elif not e.hold and e.reserved and (hold is None or e.reserved + hold.amounts):
        yield "NOT_RESERVED", f"{e.call_id} gives back what it has not reserved"
    elif hold and not e.hold and e.budgets != hold.budgets:
        yield "NOT_RESERVED", f"{e.call_id} gives back to other budgets than it has reserved of"


def nothing_is_reserved(lane: Lane, e: Any) -> Iterator[Wrong]:
    if lane.holds:
        yield "LEFT_RESERVED", f"the session ends, and {', '.join(lane.holds)} has a reservation"


# Tool calls


def call_of(turn: Turn | None, call_id: str) -> OpenCall | None:
    return turn.calls.get(call_id) if turn else None


def names_call(lane: Lane, e: Any) -> Iterator[Wrong]:
    call = call_of(lane.turn, e.call_id)
    if call is None:
        yield "UNKNOWN_CALL", f"no open step asked for {e.call_id}"
    elif not call.digest:
        yield "UNKNOWN_CALL", f"{e.call_id} was never requested"


def tool_is_requested(lane: Lane, e: r.ToolRequested) -> Iterator[Wrong]:
    call = call_of(lane.turn, e.call_id)
    if call is None or call.tool != e.tool:
        yield "UNKNOWN_CALL", f"the answer has no call {e.call_id} of {e.tool}"
    elif call.digest:
        yield "REQUESTED_TWICE", f"{e.call_id} is requested again"


def tool_starts(lane: Lane, e: r.ToolStarted) -> Iterator[Wrong]:
    yield from names_call(lane, e)
    call = call_of(lane.turn, e.call_id)
    if call is None:
        return
    if e.attempt != call.attempt + 1:
        yield (
            "ATTEMPT_OUT_OF_ORDER",
            f"attempt {e.attempt} at {e.call_id} follows on {call.attempt}",
        )
    if call.is_done:
        yield "SECOND_OUTCOME", f"{e.call_id} starts again, and has its outcome"
    elif call.status == RUNNING:
        yield "STARTED_TWICE", f"{e.call_id} starts again while it runs"
    elif call.status == "waiting":
        awaited = ", ".join(call.waits_for)
        yield "NOT_WOKEN", f"{e.call_id} starts again, and still waits for {awaited}"
    elif call.status == "asked" or (call.status == "requested" and call.asks):
        yield "NOT_APPROVED", f"{e.call_id} starts without the approval that it needs"


def names_attempt(lane: Lane, e: Any) -> Iterator[Wrong]:
    yield from names_call(lane, e)
    call = call_of(lane.turn, e.call_id)
    if call and e.attempt != call.attempt:
        yield (
            "ATTEMPT_OUT_OF_ORDER",
            f"{e.call_id} is at attempt {call.attempt}, and this belongs to {e.attempt}",
        )


def tool_ends(lane: Lane, e: r.ToolCompleted | r.ToolFailed | r.ToolInterrupted) -> Iterator[Wrong]:
    yield from names_attempt(lane, e)
    call = call_of(lane.turn, e.call_id)
    if call is None:
        return
    yield from has_no_outcome(call)
    if call.attempt and isinstance(e, r.ToolFailed) and e.error == NOT_RUN:
        yield "WAS_BEGUN", f"{e.call_id} is said not to have run, and it began"
    # Without a start: the typed answer itself, a duplicate's shared outcome, a call not run.
    is_start_needed = not (call.output or call.dedupe or isinstance(e, r.ToolFailed))
    if call.attempt == 0 and is_start_needed:
        yield "NOT_STARTED", f"{e.call_id} has an outcome, and never started"


def tool_is_denied(lane: Lane, e: r.ToolDenied) -> Iterator[Wrong]:
    yield from names_call(lane, e)
    if call := call_of(lane.turn, e.call_id):
        yield from has_no_outcome(call)
        if call.attempt:
            yield "WAS_BEGUN", f"{e.call_id} is denied, and it began"


def has_no_outcome(call: OpenCall) -> Iterator[Wrong]:
    if call.is_done:
        yield "SECOND_OUTCOME", f"{call.call_id} has an outcome already"


# Waiting


def request_opens(lane: Lane, e: r.RequestOpened) -> Iterator[Wrong]:
    if e.kind != "budget" or e.origin:
        yield from names_call(lane, e)
    yield from is_of_remote(lane, e)
    if lane.turn and e.request_id in lane.turn.requests:
        yield "REQUESTED_TWICE", f"{e.request_id} is open already"
    if e.name:
        yield from call_waits(lane, e)


def call_waits(
    lane: Lane,
    e: r.RequestOpened | r.TimerSet | r.ToolWoken | r.AuthorizationRequired | r.SubagentCalled,
) -> Iterator[Wrong]:
    yield from names_call(lane, e)
    call = call_of(lane.turn, e.call_id)
    # Another wait than the one it stopped at may wake it. Older logs name the first of several.
    is_any = isinstance(e, r.ToolWoken | r.SubagentCalled)
    is_awaited = call and (is_any or e.name in call.waits_for)
    if call and not (call.status == "waiting" and is_awaited):
        yield "NOT_WAITING", f"{e.call_id} does not wait for {e.name}"


def is_of_remote(lane: Lane, e: Asked | r.CallbackOpened) -> Iterator[Wrong]:
    """A record of a remote child must name one that is waited for."""
    child = lane.turn.requests.get(e.subagent) if lane.turn and e.subagent else None
    if e.subagent and not (child and child.remote):
        yield "UNKNOWN_REQUEST", f"{e.request_id} is of {e.subagent}, which is no remote child"


def callback_opens(lane: Lane, e: r.CallbackOpened) -> Iterator[Wrong]:
    yield from names_call(lane, e)
    yield from is_of_remote(lane, e)
    if lane.turn and e.request_id in lane.turn.requests:
        yield "REQUESTED_TWICE", f"{e.request_id} is open already"


def authorization_is_required(lane: Lane, e: r.AuthorizationRequired) -> Iterator[Wrong]:
    yield from names_call(lane, e) if e.path else call_waits(lane, e)
    yield from is_of_remote(lane, e)
    if lane.turn and e.request_id in lane.turn.requests:
        yield "REQUESTED_TWICE", f"{e.request_id} is open already"


def subagent_is_called(lane: Lane, e: r.SubagentCalled) -> Iterator[Wrong]:
    yield from call_waits(lane, e)
    if lane.turn and e.request_id in lane.turn.requests:
        yield "REQUESTED_TWICE", f"{e.request_id} is open already"


def subagent_starts(lane: Lane, e: r.SubagentStarted) -> Iterator[Wrong]:
    yield from names_call(lane, e)
    request = lane.turn.requests.get(e.request_id) if lane.turn else None
    if request is None or not request.remote:
        yield "UNKNOWN_REQUEST", f"{e.child} was started, and no remote agent was called"
    elif request.child:
        yield "STARTED_TWICE", f"{e.child} was started for {e.call_id}, which had {request.child}"


def subagent_is_contacted(lane: Lane, e: r.SubagentContacted) -> Iterator[Wrong]:
    yield from names_call(lane, e)
    request = lane.turn.requests.get(e.request_id) if lane.turn else None
    if request is None or not request.remote:
        yield "UNKNOWN_REQUEST", f"{e.request_id} was contacted, and is no remote child"
        return
    if missing := set(e.answered) - {each.request_id for each in request.remote.answers}:
        names = ", ".join(sorted(missing))
        yield "UNKNOWN_REQUEST", f"{names} was answered to {request.child}, and had no answer"


def request_closes(
    lane: Lane,
    e: r.RequestResolved
    | r.RequestExpired
    | r.CallbackClosed
    | r.AuthorizationCompleted
    | r.AuthorizationFailed
    | r.SubagentCompleted
    | r.SubagentFailed,
) -> Iterator[Wrong]:
    if lane.turn is None or e.request_id not in lane.turn.requests:
        yield "UNKNOWN_REQUEST", f"{e.request_id} is closed, and is not open"


RULES: dict[type, Rule] = {
    r.SessionWaiting: lane_rests,
    r.SessionCompleted: nothing_is_reserved,
    r.SessionFailed: nothing_is_reserved,
    r.TurnStarted: turn_starts,
    r.TurnCompleted: turn_completes,
    r.TurnFailed: turn_fails,
    r.TurnCancelled: turn_ends,
    r.StepStarted: step_starts,
    r.StepCompleted: step_ends,
    r.StepFailed: step_fails,
    r.DeliveryJoined: delivery_joins,
    r.ModelStarted: model_starts,
    r.ModelRetrying: names_model_call,
    r.ModelSwitched: names_model_call,
    r.ProviderUnavailable: names_model_call,
    r.ProviderStillUnavailable: in_outage,
    r.ProviderAvailable: in_outage,
    r.MessageDelta: names_model_call,
    r.ReasoningDelta: names_model_call,
    r.ReasoningCompleted: names_model_call,
    r.MessageAborted: message_aborts,
    r.MessageCompleted: names_model_call,
    r.UsageRecorded: usage_is_recorded,
    r.ToolRequested: tool_is_requested,
    r.ToolStarted: tool_starts,
    r.ToolVanished: names_call,
    r.ToolProgress: names_attempt,
    **WORKFLOW_RULES,
    r.ToolWaiting: names_attempt,
    r.ToolWoken: call_waits,
    r.ToolCompleted: tool_ends,
    r.ToolFailed: tool_ends,
    r.ToolInterrupted: tool_ends,
    r.ToolDenied: tool_is_denied,
    r.BudgetCharged: budget_is_charged,
    r.RequestOpened: request_opens,
    r.CallbackOpened: callback_opens,
    r.AuthorizationRequired: authorization_is_required,
    r.AuthorizationCompleted: request_closes,
    r.AuthorizationFailed: request_closes,
    r.SubagentCalled: subagent_is_called,
    r.SubagentStarted: subagent_starts,
    r.SubagentContacted: subagent_is_contacted,
    r.SubagentCompleted: request_closes,
    r.SubagentFailed: request_closes,
    r.CallbackClosed: request_closes,
    r.RequestResolved: request_closes,
    r.RequestExpired: request_closes,
    r.TimerSet: call_waits,
    r.TimerFired: names_call,
    **TURN_RULES,
    **CONTEXT_RULES,
}
