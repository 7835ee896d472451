"""Decides what comes next for a lane, given everything that has happened to it.

Owns every decision about a turn. Refuses to know clocks, databases and models: the time is an
argument. Recovery is not a mode: after a crash the same questions are asked of the same log. The
actions are in `action.py`; the table in docs/explanation/recovery.md is drawn from tests of this.
"""

from functools import partial
from itertools import takewhile
from typing import Literal

from msgspec.structs import replace

from outlast.core.action import (
    AnyAction,
    AskHuman,
    CallModel,
    CancelTurn,
    ChangeState,
    CheckCompletion,
    CompleteSession,
    CompleteTurn,
    ExpireRequest,
    FailSession,
    FailTurn,
    GiveFeedback,
    MissTools,
    Park,
    RunTools,
    SettleDeliveries,
    Sleep,
    Start,
    TakeEvent,
    TakeRelay,
    TakeReply,
)
from outlast.core.code_wait import next_look, open_reply, without_tool
from outlast.core.compaction import between_turns as change_view
from outlast.core.compaction import compacts, is_due, put_view_first
from outlast.core.lane import (
    CODE,
    CUT,
    PROVIDER,
    RUNNING,
    UNKEPT,
    ArrivedCancel,
    DeliveryOutcome,
    Lane,
    ModelCall,
    OpenCall,
    Outage,
    QueuedDelivery,
    StoppingTurn,
    Turn,
    TurnEnd,
)
from outlast.core.milestone import restarts_retry, restarts_turn
from outlast.core.name import model_call_name, turn_name
from outlast.core.policy import HOUR, SECOND, Policy, ToolPolicy
from outlast.core.record import DeliveryResult, Failure
from outlast.core.rule import completion_refused, due_feedback
from outlast.core.state_change import put_change_first
from outlast.core.undo import undo_turn
from outlast.core.workflow import after_body, call_workflow

KEY_POLL, LONGEST_KEY_POLL = SECOND // 2, 10 * SECOND


def decide(lane: Lane, policy: Policy, now: int) -> AnyAction:
    """Return the one thing to do next; the same log always gives the same answer."""
    # First of all: a message's sender may wait for what became of it, and no later decision changes
    # that.
    if lane.unsettled:
        return SettleDeliveries(outcomes=lane.unsettled)
    # Before the end of the session and before cancels: its requests are closed already, so nothing
    # else may become of it. A crash in between comes back to here.
    if lane.turn and lane.turn.stopping:
        return go_on_stopping(lane.turn.id, lane.turn.stopping)
    # Before cancels: what undoes a run is not to be cut off by the wish to stop it.
    if lane.turn and lane.turn.undo:
        return undo_turn(lane, lane.turn, now, partial(settle_all, policy, now))
    if lane.over:
        return close(lane, now)
    if lane.is_run and lane.turn is None and lane.last and lane.last.how == "failed":
        return between_turns(lane, policy, now)  # it has failed, whoever wanted to cancel it
    if lane.cancels:
        return stop(lane, lane.cancels[0])
    # After cancels: a blocked turn can still be given up, and is cancelled then.
    if lane.blocked and lane.turn:
        return FailTurn(turn=lane.turn.id, error=lane.blocked)
    # Replies pass every message in the queue: the turn that holds these up may wait for this
    # answer.
    if lane.replies and (reply := open_reply(lane, policy)):
        return TakeReply(reply=reply)
    # Before anything of the turn's own: a child's request may have been closed there, and must not
    # be answered here any more.
    if lane.relays:
        return TakeRelay(relay=lane.relays[0])
    if lane.sent and lane.turn:
        return TakeEvent(event=lane.sent[0])
    if lane.turn is None:
        # Between turns at once; within one at the next action that begins something, see
        # `put_change_first`.
        if lane.changes:
            return ChangeState(change=lane.changes[0])
        # A summary that goes on beyond the session's deadline would keep it from ending.
        if lane.views and not is_late(lane, now):
            return change_view(lane, in_time(lane, now + policy.turn_timeout), policy)
        return between_turns(lane, policy, now)
    action = within_turn(lane, lane.turn, policy, now)
    if lane.views:
        action = put_view_first(lane, action, policy)
    return put_change_first(lane, action) if lane.changes else action


def go_on_stopping(turn: str, how: StoppingTurn) -> AnyAction:
    """End a turn as it was decided when its requests were closed."""
    if how.error:
        return FailTurn(turn=turn, error=how.error, structural=how.structural)
    return CancelTurn(
        turn=turn, reason=how.reason, superseded=how.superseded, delivery_id=how.delivery_id
    )


def close(lane: Lane, now: int) -> AnyAction:
    """Stop what another lane's end of the session left open, and refuse what is still queued."""
    # Another lane has ended the session, for the same deadline: this turn's failure says so, too.
    if lane.turn and is_late(lane, now):
        error = lane.turn.failure or DEADLINE_EXCEEDED
        return FailTurn(turn=lane.turn.id, error=error, structural=lane.turn.structural)
    if lane.turn:
        return CancelTurn(turn=lane.turn.id, reason=f"the session is {lane.over}")
    left = [
        *(DeliveryOutcome(cancel.delivery_id, "ignored") for cancel in lane.cancels),
        *(DeliveryOutcome(reply.delivery_id, "ignored") for reply in lane.replies),
        *(DeliveryOutcome(relay.delivery_id, "ignored") for relay in lane.relays),
        *(DeliveryOutcome(change.delivery_id, "refused") for change in lane.changes),
        *(DeliveryOutcome(change.delivery_id, "refused") for change in lane.views),
        *(DeliveryOutcome(queued.delivery_id, "refused") for queued in lane.queue),
        *(DeliveryOutcome(event.delivery_id, "refused") for event in lane.sent),
    ]
    # Shares of children that it gave up may still be reserved: that is settled along with these.
    return SettleDeliveries(outcomes=tuple(left)) if left or lane.holds else Park(wait=())


def stop(lane: Lane, cancel: ArrivedCancel) -> AnyAction:
    """Stop the open turn, or the message that would be next; then the session, if asked to."""
    turn = lane.turn
    if turn and (cancel.ends or cancel.turn == turn.id or means(cancel, *taken_by(turn))):
        # One that ends the session is not done with the turn: it is settled by what ends the
        # session.
        taken = "" if cancel.ends else cancel.delivery_id
        return CancelTurn(turn=turn.id, reason=cancel.reason, delivery_id=taken)
    # There is no turn any more: `stop` is asked again after each step on the way.
    if cancel.ends:
        return CompleteSession(reason=cancel.reason, delivery_id=cancel.delivery_id)
    head = lane.queue[0] if lane.queue and not turn else None
    if head and means(cancel, head.delivery_id, head.offset):
        stopped = DeliveryOutcome(head.delivery_id, "cancelled")
        return SettleDeliveries(
            outcomes=(stopped, DeliveryOutcome(cancel.delivery_id, "completed"))
        )
    return settle(cancel.delivery_id, "ignored")


def settle(delivery_id: str, outcome: DeliveryResult) -> SettleDeliveries:
    """Tell one delivery what became of it outside of any turn."""
    return SettleDeliveries(outcomes=(DeliveryOutcome(delivery_id, outcome),))


def taken_by(turn: Turn) -> tuple[str, int]:
    """Return the message that a turn began with, and its offset."""
    return turn.deliveries[0], turn.taken


def means(cancel: ArrivedCancel, delivery_id: str, offset: int) -> bool:
    """Say whether a cancel that met no turn means a message, taken up or not."""
    if cancel.message:
        return cancel.message == delivery_id
    return not cancel.turn and offset < cancel.offset


def between_turns(lane: Lane, policy: Policy, now: int) -> AnyAction:
    last = lane.last
    # What code or data make impossible ends a conversation as well: the next message would fail in
    # the same way.
    if last and (lane.mode != "conversation" or last.structural) and not can_be_retried(lane, last):
        if last.how == "completed":
            return CompleteSession(turn=last.turn)
        return FailSession(error=last.failure or Failure("CANCELLED", "the task was cancelled"))
    # After the turn's own end: a task that completed at the last moment has completed.
    if is_late(lane, now):
        return after_deadline(lane)
    if not lane.queue:
        awaited = "message" if lane.mode == "conversation" else "retry"
        return Park(wait=(awaited,), until=lane.deadline)
    head = lane.queue[0]
    if has_come_too_late(head, now):
        return settle(head.delivery_id, "failed")
    failed = lane.last.turn if lane.last and lane.last.how == "failed" else ""
    # Somebody was quicker: what was to be retried has been retried, or has not failed at all.
    if head.retry and not failed:
        return settle(head.delivery_id, "ignored")
    if lane.starts_at > now:
        return Park(wait=("timer",), until=in_time(lane, lane.starts_at))
    turn = turn_name(lane.name, lane.turns + 1)
    retries = failed if head.retry else ""
    if lane.blocked:
        return FailTurn(turn=turn, error=lane.blocked, delivery=head.delivery_id, retries=retries)
    if lane.is_run:
        return call_workflow(turn, head)
    context = lane.context
    if (context.tokens >= policy.most_tokens or context.overflows) and is_due(lane, policy):
        return compacts(lane, policy, "", in_time(lane, now + policy.turn_timeout))
    return CallModel(
        call_id=model_call_name(turn, 1),
        attempt=1,
        turn=turn,
        step=1,
        until=earliest(now + policy.turn_timeout, lane.deadline, head.deadline),
        delivery=head.delivery_id,
        retries=retries,
        model=policy.model(""),
        restarts=restarts_retry(lane, head, policy),
    )


def can_be_retried(lane: Lane, last: TurnEnd) -> bool:
    """Say whether a session goes on after a turn that failed, if somebody asks for it.

    A child does not, of a parent here or behind another server: its failure is the answer that its
    parent waits for. Nor does a run: another one is made that tries again.
    """
    return last.how == "failed" and not last.structural and lane.depth == 0 and not lane.is_run


def has_come_too_late(queued: QueuedDelivery, now: int) -> bool:
    return 0 < queued.deadline <= now


def is_late(lane: Lane, now: int) -> bool:
    return 0 < in_time(lane, 0) <= now


def in_time(lane: Lane, at: int) -> int:
    """Return an instant, or the deadline of the session or its open turn if that comes first."""
    due = lane.turn.deadline if lane.turn else 0
    return earliest(at, lane.deadline, due) if due or lane.deadline else at


def earliest(*instants: int) -> int:
    """Return the first of some instants; 0 is none."""
    return min((at for at in instants if at), default=0)


def after_deadline(lane: Lane) -> AnyAction:
    """End a session whose time is up: a task that was not even begun has failed."""
    if lane.mode != "conversation":
        return FailSession(error=DEADLINE_EXCEEDED)
    return CompleteSession(reason="its deadline has passed")


def within_turn(lane: Lane, turn: Turn, policy: Policy, now: int) -> AnyAction:
    # Recorded by an earlier commit; a crash between that and the turn's end comes back to here.
    if turn.failure:
        return FailTurn(turn=turn.id, error=turn.failure, structural=turn.structural)
    for request in turn.requests.values():
        if 0 < request.due_at <= now:
            # One at a time: what becomes of its call may close others.
            return ExpireRequest(request_id=request.request_id)
    if is_late(lane, now):
        return FailTurn(turn=turn.id, error=DEADLINE_EXCEEDED)
    if policy.on_busy == "interrupt" and (newer := [q for q in lane.queue if not q.retry]):
        if has_come_too_late(newer[0], now):
            return settle(newer[0].delivery_id, "failed")
        return CancelTurn(turn=turn.id, reason="a newer message came", superseded=True)
    # A parked turn spends no active time, so it cannot run out of it.
    if not lane.waiting and deadline(turn, policy) <= now:
        return FailTurn(turn=turn.id, error=TURN_TIMEOUT)
    if not turn.answer:
        if turn.model is None:  # it could not begin for want of a budget
            return next_step(lane, turn, policy, now)
        return call_model(lane, turn, policy, now)
    return settle_calls(lane, turn, policy, now)


def deadline(turn: Turn, policy: Policy) -> int:
    return turn.since + policy.turn_timeout - turn.spent


def ask_again_at(lane: Lane, turn: Turn, policy: Policy, now: int) -> int:
    """Return when the open turn's time is up; the active time of a parked one starts now."""
    active = now + policy.turn_timeout - turn.spent if lane.waiting else deadline(turn, policy)
    return in_time(lane, active)


# The model


def call_model(lane: Lane, turn: Turn, policy: Policy, now: int) -> AnyAction:
    """Go on with the open model call, or make another attempt at it."""
    model = turn.model
    assert model is not None
    if turn.requests and turn.asks_for_budget and model.status != RUNNING:
        return rest_for(lane, (), now)
    # Counted for this call alone, and anew after any outcome: a long turn may live through many
    # crashes.
    if model.lost >= policy.max_crashes:
        return FailTurn(turn=turn.id, error=workers_lost(model.lost))
    if model.parked and lane.outage:
        over = lane.outage.since + policy.provider_patience
        # `now` may be before the first failure: a database's clock is known within bounds only.
        if not policy.provider_patience or over <= now:
            return FailTurn(turn=turn.id, error=out_of_patience(lane.outage, now))
        if model.not_before > now:
            return Park(wait=(PROVIDER,), until=in_time(lane, min(over, model.not_before)))
    # A short pause is spent in this worker: to park for it would cost a commit and a claim.
    if model.status == "retry" and model.not_before > now:
        return Sleep(until=in_time(lane, model.not_before))
    # The lane's owner looks again whenever something arrives, also while its call runs.
    running = model.status == RUNNING
    if lane.context.overflows and not running and is_due(lane, policy):
        return compacts(lane, policy, turn.id, ask_again_at(lane, turn, policy, now))
    asks = policy.model(turn.fallback)
    restarts = not running and restarts_turn(lane, turn, policy)
    # No model continues another's answer, also where it is the code that names another now; and
    # what was said in a context that begins anew is not gone on with.
    is_same = model.asked in ("", asks) and not restarts
    return CallModel(
        call_id=model.call_id,
        attempt=model.attempt if running else model.attempt + 1,
        turn=turn.id,
        step=turn.step,
        until=ask_again_at(lane, turn, policy, now),
        aborts=0 if running or not model.partial else model.attempt,
        keeps=is_same and can_go_on(model, policy),
        drops=() if is_same else model.kept,
        model=asks,
        running=running,
        restarts=restarts,
    )


def can_go_on(model: ModelCall, policy: Policy) -> bool:
    """Say whether the model can carry on after what it had said when it was cut off."""
    return model.partial == "text" and policy.on_partial == "continue" and not policy.typed


def next_step(lane: Lane, turn: Turn, policy: Policy, now: int) -> AnyAction:
    if turn.requests and turn.asks_for_budget:
        return rest_for(lane, (), now)
    # The budget has made this step the last, and the model's answer asked for more calls instead.
    if 0 < turn.last_step <= turn.step:
        return FailTurn(turn=turn.id, error=nothing_handed_back(turn.exhausted))
    if turn.corrections > policy.max_corrections:
        return FailTurn(turn=turn.id, error=TOO_MANY_CORRECTIONS)
    if turn.step >= policy.max_steps:
        return FailTurn(turn=turn.id, error=max_steps(policy.max_steps))
    if policy.feedback and turn.step and (due := due_feedback(lane, turn, policy, now)):
        until = ask_again_at(lane, turn, policy, now)
        return GiveFeedback(turn=turn.id, step=turn.step, due=due, until=until)
    context = lane.context
    # The usage reported with the last answer, and what has come since: counting would cost a pass
    # over the history in each step.
    if (
        context.tokens + context.added // 4 >= policy.most_tokens
        or context.largest > policy.longest_result
    ) and is_due(lane, policy):
        return compacts(lane, policy, turn.id, ask_again_at(lane, turn, policy, now))
    waiting = [q for q in lane.queue if not q.retry] if policy.on_busy == "join" else []
    # One at a time and from the head, so that messages are settled in the order in which they came.
    if waiting and has_come_too_late(waiting[0], now):
        return settle(waiting[0].delivery_id, "failed")
    joins = [*takewhile(lambda queued: not has_come_too_late(queued, now), waiting)]
    return CallModel(
        call_id=model_call_name(turn.id, turn.step + 1),
        attempt=1,
        turn=turn.id,
        step=turn.step + 1,
        until=ask_again_at(lane, turn, policy, now),
        joins=tuple([q.delivery_id for q in joins]) if joins else (),
        model=policy.model(turn.fallback),
        restarts=restarts_turn(lane, turn, policy),
    )


# The tools


def settle_calls(lane: Lane, turn: Turn, policy: Policy, now: int) -> AnyAction:
    """Carry each call of the step towards its outcome, by itself; then go on."""
    start: list[Start] = []
    report: list[str] = []
    running: list[str] = []
    vanished: list[str] = []
    gone: list[str] = []
    are_done = True
    for call in turn.calls.values():
        if call.is_done:
            continue
        are_done = False
        if call.status == RUNNING:
            running.append(call.call_id)
            continue
        # Before `on_interrupt` is asked: a tool that is rerun may be what takes its workers down.
        if call.lost >= policy.max_crashes:
            return FailTurn(turn=turn.id, error=no_progress(call.call_id, call.lost))
        needs: Disposition = disposition(call, lane, policy, now)
        if policy.lacks(call.tool):
            needs = without_tool(call, lane, now, can_go_on=needs != "wait")
        match needs:
            case "vanished":
                vanished.append(call.call_id)
            case "gone":
                gone.append(call.call_id)
            case "approval" | "interrupted" as kind:
                return ask_human(call, kind, policy)
            case "fail":
                return FailTurn(turn=turn.id, error=interrupted(call))
            case "report":
                report.append(call.call_id)
            case "start":
                start.append(begin(call, turn, policy.tool(call.tool), now))
    if are_done:
        return after_calls(lane, turn, policy, now)
    # Recorded before the others go on: how long a call waits for its tool counts from that record.
    if vanished:
        return MissTools(calls=tuple(vanished))
    contact = due_contacts(turn, now) if turn.requests else ()
    if start or report or running or contact or gone:
        return RunTools(
            start=tuple(start),
            report=tuple(report),
            gone=tuple(gone),
            running=tuple(running),
            contact=contact,
            until=wake_at(turn, now, ask_again_at(lane, turn, policy, now)),
        )
    until = in_time(lane, wake_at(turn, now))
    return Park(wait=waits(turn), requests=questions(turn), until=until)


def settle_all(policy: Policy, now: int, lane: Lane, turn: Turn) -> AnyAction:
    return settle_calls(lane, turn, policy, now)


def ask_human(
    call: OpenCall, kind: Literal["approval", "interrupted"], policy: Policy, misfit: str = ""
) -> AskHuman:
    tool = policy.tool(call.tool)
    return AskHuman(
        call_id=call.call_id,
        kind=kind,
        timeout=tool.answer_timeout,
        on_expiry=tool.on_expiry,
        restricted=tool.restricted,
        misfit=misfit,
    )


Disposition = Literal[
    "approval", "interrupted", "fail", "report", "start", "wait", "vanished", "gone"
]


def disposition(call: OpenCall, lane: Lane, policy: Policy, now: int) -> Disposition:
    """Say what a call needs that neither runs nor is done."""
    match call.status:
        case "requested":
            return "approval" if call.asks else "start"
        case "approved":
            return "start"
        case "woken":
            return after_wait(call, lane, policy)
        case "again" | "waiting" | "mismatched":
            return after_wait(call, lane, policy) if 0 < call.wakes_at <= now else "wait"
        case "cut":
            return after_interruption(call, lane, policy)
    return "wait"


def after_wait(call: OpenCall, lane: Lane, policy: Policy) -> Disposition:
    """Go on with a call. One that was finding out about itself goes by what the tool says today."""
    return after_interruption(call, lane, policy) if call.reconciles else "start"


def after_interruption(call: OpenCall, lane: Lane, policy: Policy) -> Disposition:
    match policy.tool(call.tool).on_interrupt:
        case "rerun" if call.reason in UNKEPT:  # it was run, and would come to the same again
            return "report"
        case "rerun" | "reconcile":
            return "start"
        case "ask":
            return "interrupted" if lane.can_ask else "report"
        case "fail":
            return "fail"
        case "report":
            return "report"


def begin(call: OpenCall, turn: Turn, tool: ToolPolicy, now: int) -> Start:
    if not call.attempt:
        # Saves a commit. If the worker crashes before the commit, the answer that asked for the
        # call is lost and the model is called again. A tool that crashes its worker would lose
        # the answer every time, so in a turn that was taken over nothing runs ahead.
        reads = tool.readonly and tool.on_interrupt == "rerun"
        return Start(call.call_id, 1, call.dedupe, may_run_ahead=reads and not turn.is_recovering)
    is_unclear = call.status == CUT and tool.on_interrupt == "reconcile"
    reconciles = call.attempt if is_unclear else call.reconciles
    # Recorded with the start: in a rerun the same waits are over, whatever the time is by then.
    due = (name for name, due_at in call.timers.items() if due_at <= now)
    fired = tuple(due) if call.status == "waiting" else ()
    return Start(call.call_id, call.attempt + 1, call.dedupe, fired, reconciles)


def after_calls(lane: Lane, turn: Turn, policy: Policy, now: int) -> AnyAction:
    """Complete the turn if the model has answered, else ask it again with the results."""
    if lane.is_run:
        return after_body(turn, interrupted)
    # A typed answer is a call of a tool that no code stands behind; any other call wants another
    # step.
    output = next((c for c in turn.calls.values() if c.output and c.succeeded), None)
    if turn.misfit or (turn.calls and not output):
        return next_step(lane, turn, policy, now)
    if policy.checkers and turn.completion != "accepted":
        return check_completion(lane, turn, policy, now, output.call_id if output else "")
    return CompleteTurn(
        turn=turn.id,
        step=turn.step,
        call_id=turn.answer,
        output=output.call_id if output else "",
    )


def check_completion(lane: Lane, turn: Turn, policy: Policy, now: int, output: str) -> AnyAction:
    """Ask whether the turn may end; if not, go on as often as the agent's limit allows."""
    if turn.completion == "refused":
        if turn.refusals > policy.max_refusals:
            return FailTurn(turn=turn.id, error=completion_refused(turn))
        return next_step(lane, turn, policy, now)
    return CheckCompletion(
        turn=turn.id,
        step=turn.step,
        call_id=turn.answer,
        until=ask_again_at(lane, turn, policy, now),
        output=output,
    )


def rest_for(lane: Lane, others: tuple[str, ...], now: int, again_at: int = 0) -> Park:
    """Rest because others stand in the way of all that could begin, until a time at the latest.

    `others`: a `limit` or a `queue` without a place, or a `key` that another call has. There is no
    hint that a key is free: it is looked at again after half a second, and then when as long has
    passed again.
    """
    in_line = "limit" in others or "queue" in others
    if lane.turn is None:
        return Park(wait=others, until=in_time(lane, again_at), keeps_permits=in_line)
    # Rarer and rarer: a call that holds the key may take hours, and a lane that waits should cost
    # next to nothing.
    if "key" in others:
        waited = now - lane.turn.since if lane.waiting else 0
        again_at = earliest(again_at, now + min(max(waited, KEY_POLL), LONGEST_KEY_POLL))
    return Park(
        wait=(*others, *waits(lane.turn)),
        requests=questions(lane.turn),
        until=in_time(lane, wake_at(lane.turn, now, again_at)),
        keeps_permits=in_line,
    )


def rest_for_provider(lane: Lane, policy: Policy, again_at: int = 0) -> Park:
    """Rest in the line of a provider that is away, until a time or the end of patience.

    Without a time it is another lane's turn to ask, and this one is woken.
    """
    assert lane.outage is not None
    over = lane.outage.since + policy.provider_patience
    until = in_time(lane, earliest(over, again_at))
    return Park(wait=(PROVIDER,), until=until, keeps_permits=True)


def waits(turn: Turn) -> tuple[str, ...]:
    """Name what the turn waits for."""
    found = {
        "request": bool(questions(turn)),
        "authorization": any(q.kind == "authorization" for q in turn.requests.values()),
        "children": any(q.kind == "child" for q in turn.requests.values()),
        "callback": any(q.kind == "callback" for q in turn.requests.values()),
        "event": any(call.events and call.status == "waiting" for call in turn.calls.values()),
        "timer": any(c.wakes_at and c.status != "mismatched" for c in turn.calls.values()),
        CODE: any(call.awaits_code for call in turn.calls.values()),
    }
    return tuple(name for name, is_awaited in found.items() if is_awaited)


def questions(turn: Turn) -> tuple[str, ...]:
    """Return the requests that are a human's to answer."""
    return tuple(q.request_id for q in turn.requests.values() if q.is_question)


def due_contacts(turn: Turn, now: int) -> tuple[str, ...]:
    """Return the requests of the remote children whose servers are to be contacted now."""
    remotes = ((q.request_id, q.remote) for q in turn.requests.values() if q.remote)
    return tuple(request_id for request_id, remote in remotes if remote.next_at <= now)


def wake_at(turn: Turn, now: int, latest: int = 0) -> int:
    """Return the next instant at which something is due by itself, or `latest`."""
    due: list[int] = []
    for call in turn.calls.values():
        if call.wakes_at > now:
            due.append(call.wakes_at)
        if call.vanished and call.awaits_code:
            due.append(next_look(call, now))
    for request in turn.requests.values():
        if request.due_at:
            due.append(request.due_at)
        if request.remote and request.remote.next_at > now:
            due.append(request.remote.next_at)
    due += [latest] if latest else []
    return min(due, default=0)


# Failures that are decided here


DEADLINE_EXCEEDED = Failure("DEADLINE_EXCEEDED", "the deadline has passed")
TURN_TIMEOUT = Failure("TURN_TIMEOUT", "the turn has used up its active time")
TOO_MANY_CORRECTIONS = Failure(
    "TOO_MANY_CORRECTIONS", "the model was asked too often to correct what it says"
)


def out_of_patience(outage: Outage, now: int) -> Failure:
    """Return the provider's own last failure, and for how long it was tried."""
    hours = (now - outage.since) / HOUR
    # "Tried for 0.0 hours" would say nothing.
    if hours < 0.05:
        return outage.error
    text = f"{outage.error.message} (tried {outage.attempts} times in {hours:.1f} hours)"
    return replace(outage.error, message=text)


def nothing_handed_back(budget: str) -> Failure:
    return Failure(
        "BUDGET_EXHAUSTED",
        f"{budget} is spent, and the model's last answer was none",
        "allow more, and retry the turn",
    )


def max_steps(limit: int) -> Failure:
    return Failure("MAX_STEPS", f"the turn has made {limit} steps without an answer")


def no_progress(call_id: str, attempts: int) -> Failure:
    return Failure(
        "NO_PROGRESS", f"{call_id} was started {attempts} times and never had an outcome"
    )


def workers_lost(deaths: int) -> Failure:
    return Failure(
        "WORKERS_LOST",
        f"{deaths} workers in a row died while they ran this, and nothing came of it; look at how"
        " they ended: if the session is too large for them, they need more memory",
    )


def session_too_large(size: int, most: int) -> Failure:
    return Failure(
        "SESSION_TOO_LARGE",
        f"the session has {size:,} bytes, and {most:,} is the most; go on in a new session",
    )


def interrupted(call: OpenCall) -> Failure:
    if call.why:
        return Failure("INTERRUPTED", f"{call.why}; what it does may have happened")
    return Failure("INTERRUPTED", f"{call.tool} was interrupted: its outcome is unknown")
