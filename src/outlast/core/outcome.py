"""How to write down what is about to be done, and what came of it.

`opening` returns the records that must be durable before an action is performed; `outcome` those
that say what a performed action came to. Owns the order of records in a commit; requests have
their own module, `request.py`. Refuses to know how anything is performed.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.action import (
    AnyAction,
    AskForBudget,
    AskHuman,
    CallModel,
    CallWorkflow,
    CancelTurn,
    CompactContext,
    CompleteSession,
    CompleteTurn,
    ExpireRequest,
    FailSession,
    FailTurn,
    HandBack,
    MissTools,
    Park,
    RefuseReply,
    RunTools,
    SettleDeliveries,
    TakeEvent,
    TakeRelay,
    TakeReply,
)
from outlast.core.amount import Amounts
from outlast.core.budget import active_time
from outlast.core.budget_charge import all_settled, reserves, settled
from outlast.core.compaction import (
    MOST_OVERFLOWS,
    TOO_LONG,
    compacted,
    overflowed,
    summary_lost,
    summary_opens,
)
from outlast.core.fold import fold
from outlast.core.lane import NO_EVENTS, PROVIDER, Lane, ModelCall, OpenCall, Turn
from outlast.core.message import Reasoning, text_of
from outlast.core.milestone import reach
from outlast.core.name import request_name
from outlast.core.policy import Policy
from outlast.core.prompt import prompt_rendered
from outlast.core.record import NO_USAGE, AnyRecord, Failure
from outlast.core.remote_child import contacted
from outlast.core.request import (
    ask,
    ask_for_budget,
    close_opened,
    close_requests,
    expire,
    given_up,
    pass_on,
    refuse,
    take,
)
from outlast.core.result import (
    Answered,
    ChildContact,
    Compacted,
    CompletionChecked,
    FeedbackCollected,
    Interrupted,
    Mismatched,
    ModelFailed,
    NewAuthorization,
    NewWait,
    Raised,
    Restarted,
    Result,
    Returned,
    SliceUpdate,
    SummaryLost,
    ToolEnd,
    ToolWaits,
    TurnStopped,
    Undone,
)
from outlast.core.rule import completion_checked, feedback_collected
from outlast.core.slice import EMPTY, Slices, is_granted
from outlast.core.undo import has_to_undo, undo_starts
from outlast.core.unstable_wait import UNSTABLE_WAIT, count_unstable, excerpt
from outlast.core.usage import payer, used_by
from outlast.core.workflow import event_taken_in, mismatched, restarted, undone, workflow_opens

FINAL = ("RETRY", UNSTABLE_WAIT)
"""Codes of failures after which a call is not tried again by itself, as it is."""
NO_CALLS_LEFT = "not run: the budget allows no more calls"
NOT_RUN = Failure("NOT_RUN", "not run: the turn was stopped before this call began")


# Before


def opening(lane: Lane, action: AnyAction, now: int) -> list[AnyRecord]:
    """Return what has to be in the log before the action is performed."""
    records = [*_opening(lane, action, now)]
    wakes = lane.waiting and lane.turn and not isinstance(action, Park) and records
    # While the provider is away, asking it once more is no resumption: readers would be told
    # of every attempt.
    asks_again = lane.outage and lane.waiting == (PROVIDER,) and isinstance(action, CallModel)
    return [r.SessionResumed(since=now), *records] if wakes and not asks_again else records


def _opening(lane: Lane, action: AnyAction, now: int) -> Iterable[AnyRecord]:
    match action:
        case CallModel():
            return model_call_opens(lane, action, now)
        case CallWorkflow():
            return workflow_opens(lane, action, turn_starts(lane, action, now))
        case RunTools():
            return tools_open(lane, turn_of(lane), action)
        case AskForBudget() | HandBack():
            return budget_ends(lane, action, now)
        case AskHuman():
            return [ask(lane, action, now)]
        case TakeReply():
            return take(lane, action.reply, action.dedupe)
        case RefuseReply():
            return refuse(lane, action)
        case MissTools():
            return tools_missed(turn_of(lane), action, now)
        case TakeRelay():
            return pass_on(lane, action.relay)
        case TakeEvent():
            return event_taken_in(lane, action.event)
        case ExpireRequest():
            return expire(lane, action.request_id)
        case SettleDeliveries():
            return deliveries_settled(lane, action)
        case CompleteTurn():
            return turn_completes(turn_of(lane), action)
        case FailTurn() if action.delivery:
            return [turn_starts(lane, action, now), *blocked(lane, action)]
        case CancelTurn() | FailTurn():
            return stop_opens(lane, turn_of(lane), action)
        case CompleteSession():
            return [*all_settled(lane), *session_completes(action)]
        case FailSession():
            return [*all_settled(lane), r.SessionFailed(error=action.error)]
        case Park():
            return park(lane, action, now)
        case CompactContext():
            return summary_opens(lane, action, now)
    return []


def turn_of(lane: Lane) -> Turn:
    """Return the open turn of a lane that has one, as its action says."""
    assert lane.turn is not None
    return lane.turn


def model_call_opens(lane: Lane, action: CallModel, now: int) -> Iterator[AnyRecord]:
    if action.running:
        return
    if action.delivery:
        yield turn_starts(lane, action, now)
    if action.attempt == 1:
        # A step is over only when the next one begins, or the turn ends: until then more may be
        # recorded in it.
        if action.step > 1:
            yield r.StepCompleted(turn=action.turn, step=action.step - 1)
        # Behind the results of the step before, and before the model is asked: in this order the
        # view has them.
        for delivery_id in action.joins:
            yield r.DeliveryJoined(delivery_id=delivery_id, turn=action.turn)
        yield r.StepStarted(turn=action.turn, step=action.step)
    for attempt in action.drops:
        yield r.MessageAborted(call_id=action.call_id, attempt=attempt)
    if action.aborts:
        yield r.MessageAborted(call_id=action.call_id, attempt=action.aborts, kept=action.keeps)
    if action.restarted:
        yield action.restarted
    yield r.ModelStarted(call_id=action.call_id, attempt=action.attempt, model=action.model)
    if action.hold:
        yield from action.warns
        yield reserves(lane, action.call_id, action.hold, now)


def budget_ends(lane: Lane, action: AskForBudget | HandBack, now: int) -> Iterator[AnyRecord]:
    """Ask for more, or make a step the last; the turn begins with that, if it has not."""
    if action.delivery:
        yield turn_starts(lane, action, now)
    step = action.step if isinstance(action, HandBack) else 0
    yield replace(action.ended, turn=action.turn, step=step)
    if isinstance(action, AskForBudget):
        yield ask_for_budget(lane, action)
        return
    for call_id in action.denies:
        yield r.ToolDenied(call_id=call_id, reason=NO_CALLS_LEFT, principal="budget")


def turn_starts(
    lane: Lane, action: CallModel | CallWorkflow | FailTurn | AskForBudget | HandBack, now: int
) -> AnyRecord:
    queued = (each for each in lane.queue if each.delivery_id == action.delivery)
    return r.TurnStarted(
        turn=action.turn,
        delivery_id=action.delivery,
        since=now,
        retries=action.retries,
        traceparent=next((each.traceparent for each in queued), ""),
    )


def tools_open(lane: Lane, turn: Turn, action: RunTools) -> Iterator[AnyRecord]:
    for call_id in action.report:
        call = turn.calls[call_id]
        yield given_up(call)
        yield from close_opened(lane, call_id)
    for call_id in action.gone:
        call = turn.calls[call_id]
        yield r.ToolFailed(call_id=call_id, attempt=call.attempt, error=tool_gone(call.tool))
        yield from close_opened(lane, call_id)
    for start in action.start:
        for name in start.fired:
            yield r.TimerFired(call_id=start.call_id, name=name)
        if start.fired:
            # All that are due have fired; the tool is told of the first.
            yield r.ToolWoken(call_id=start.call_id, name=start.fired[0])
        yield r.ToolStarted(call_id=start.call_id, attempt=start.attempt)
    if action.spends:
        yield r.BudgetCharged(
            call_id="", budgets=action.budgets, spent=Amounts(tool_calls=action.spends)
        )


def tools_missed(turn: Turn, action: MissTools, now: int) -> Iterator[AnyRecord]:
    for call_id in action.calls:
        yield r.ToolVanished(call_id=call_id, tool=turn.calls[call_id].tool, since=now)


def tool_gone(tool: str) -> Failure:
    return Failure(
        "UNKNOWN_TOOL",
        f"{tool} is no longer there: it was not run",
        "go on without it, or with another tool",
    )


def turn_completes(turn: Turn, action: CompleteTurn) -> Iterator[AnyRecord]:
    yield r.StepCompleted(turn=action.turn, step=action.step)
    yield r.TurnCompleted(
        turn=action.turn,
        call_id=action.call_id,
        output=action.output,
        usage=turn.usage,
        below=turn.below,
        exhausted=turn.exhausted,
    )


def stop_opens(lane: Lane, turn: Turn, action: CancelTurn | FailTurn) -> list[AnyRecord]:
    """Close what the turn waits for, and first record that it ends: it can no longer go on."""
    is_superseded = isinstance(action, CancelTurn) and action.superseded
    closed = [*close_requests(lane, "superseded" if is_superseded else "cancelled")]
    if isinstance(action, FailTurn) and not turn.step:
        closed += blocked(lane, action)
    # First the record that the turn ends, in the same commit: after a crash behind it, a turn
    # without its requests would go on as if they had never been.
    if closed and not turn.stopping:
        return [turn_stops(action), *closed]
    return closed


def blocked(lane: Lane, action: FailTurn) -> list[AnyRecord]:
    """Say why a turn can only fail that has no step which could."""
    return [] if lane.blocked else [r.LaneBlocked(error=action.error)]


def turn_stops(action: CancelTurn | FailTurn) -> AnyRecord:
    if isinstance(action, FailTurn):
        return r.TurnStopping(turn=action.turn, error=action.error, structural=action.structural)
    return r.TurnStopping(
        turn=action.turn,
        reason=action.reason,
        superseded=action.superseded,
        delivery_id=action.delivery_id,
    )


def deliveries_settled(lane: Lane, action: SettleDeliveries) -> Iterator[AnyRecord]:
    # Another lane has ended the session, which settles what that one had reserved itself.
    if lane.over and lane.turn is None:
        yield from all_settled(lane)
    for end in action.outcomes:
        yield r.DeliverySettled(delivery_id=end.delivery_id, outcome=end.outcome, turn=end.turn)


def session_completes(action: CompleteSession) -> Iterator[AnyRecord]:
    if action.turn:
        yield r.SessionCompleted(turn=action.turn)
    else:
        yield r.SessionEnded(reason=action.reason)
        if action.delivery_id:
            yield r.DeliverySettled(delivery_id=action.delivery_id, outcome="completed")


def park(lane: Lane, action: Park, now: int) -> Iterator[AnyRecord]:
    """Say what the session waits for, unless that has been said."""
    if action.ended and action.wait != lane.waiting:
        yield replace(action.ended, turn=lane.turn.id if lane.turn else "")
    if action.wait and action.wait != lane.waiting:
        yield r.SessionWaiting(
            wait=action.wait,
            since=now,
            requests=action.requests,
            spent=active_time(lane, now),
        )


# After


def outcome(
    lane: Lane,
    action: AnyAction,
    result: Result,
    policy: Policy,
    now: int,
    slices: Slices = EMPTY,
) -> list[AnyRecord]:
    """Return what the action came to, as records."""
    return [*_outcome(lane, action, result, policy, now, slices)]


def _outcome(
    lane: Lane, action: AnyAction, result: Result, policy: Policy, now: int, slices: Slices
) -> Iterable[AnyRecord]:
    # First those of every step: a case that does not match takes as long as some lines of code.
    match result:
        case Returned():
            return tool_ended(lane, turn_of(lane).calls[result.call_id], result, policy, now)
        case Answered():
            return answered(lane, turn_of(lane), result, policy, now, slices)
        case ChildContact():
            return contacted(lane, result, now)
        case Compacted():
            assert isinstance(action, CompactContext)
            return compacted(lane, action, result)
        case SummaryLost():
            assert isinstance(action, CompactContext)
            return summary_lost(lane, action, result)
        case ModelFailed():
            return model_failed(lane, turn_of(lane), result, policy, now)
        case TurnStopped():
            return stopped(lane, turn_of(lane), action, result, policy, now)
        case FeedbackCollected() | CompletionChecked() if is_stale(turn_of(lane), result):
            return ()
        case FeedbackCollected():
            return feedback_collected(turn_of(lane), result, now)
        case CompletionChecked():
            return [completion_checked(turn_of(lane), result)]
        case _:
            return tool_ended(lane, turn_of(lane).calls[result.call_id], result, policy, now)


def is_stale(turn: Turn, result: FeedbackCollected | CompletionChecked) -> bool:
    """Say whether rules looked at a step that is over.

    Which rules are due is a matter of time, too: where the clock is set back while they look, the
    model may be asked without them.
    """
    return (result.turn, result.step) != (turn.id, turn.step)


def answered(
    lane: Lane, turn: Turn, result: Answered, policy: Policy, now: int, slices: Slices
) -> Iterator[AnyRecord]:
    assert turn.model is not None
    model = turn.model
    if lane.outage:
        yield from provider_answers(lane, turn, now)
    if result.prompt:
        yield from prompt_rendered(lane, model, result.prompt)
    # The last of them, in the answer's own commit: see `DeltaStream`.
    yield from result.deltas
    for number, part in enumerate(result.parts) if result.streamed else ():
        if isinstance(part, Reasoning) and number in result.streamed:
            yield r.ReasoningCompleted(call_id=model.call_id, attempt=model.attempt, part=number)
    yield r.MessageCompleted(
        call_id=model.call_id,
        attempt=model.attempt,
        parts=result.parts,
        model=result.model,
        finish=result.finish,
        deltas_from=result.deltas_from,
        streamed=result.streamed,
        misfit=result.misfit,
    )
    # With the answer or not at all: an answer that is lost is asked for again, and counted then.
    yield (used := usage(lane, model, result))
    if lane.holds:
        yield from settled(lane, model.call_id, used_by(used), now, step=True)
    for wanted in result.wanted:
        repeats = lane.unknown.get(wanted.digest, "")
        for digest in wanted.formerly:
            repeats = repeats or lane.unknown.get(digest, "")
        if policy.tool(wanted.tool).readonly:
            repeats = ""  # whatever became of it, it did nothing
        granted = wanted.asks == "once" and is_granted(slices, wanted.digest)
        yield r.ToolRequested(
            call_id=wanted.call_id,
            tool=wanted.tool,
            digest=wanted.digest,
            asks="" if granted and not repeats else wanted.asks or ("repeat" if repeats else ""),
            repeats=repeats,
            output=wanted.output,
            dedupe=wanted.dedupe,
            decision=wanted.decision,
            decided_by=wanted.decided_by,
            changed=wanted.changed,
        )
        if wanted.denied:
            by = f"policy:{wanted.policy}" if wanted.policy else f"hook:{wanted.decided_by}"
            yield r.ToolDenied(call_id=wanted.call_id, reason=wanted.denied, principal=by)
        elif wanted.refusal:
            yield r.ToolFailed(call_id=wanted.call_id, attempt=0, error=wanted.refusal)
        elif wanted.output:
            yield r.ToolCompleted(call_id=wanted.call_id, attempt=0, value='"accepted"')


def usage(lane: Lane, model: ModelCall, result: Answered) -> r.UsageRecorded:
    used, price = result.usage, result.price
    return r.UsageRecorded(
        call_id=model.call_id,
        attempt=model.attempt,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
        details=dict(used.details),
        model=model.asked or result.model,
        principal=payer(lane),
        nano_usd=price.nano_usd if price else 0,
        prices=price.prices if price else "",
        unpriced_calls=0 if price else 1,
    )


def model_failed(
    lane: Lane, turn: Turn, result: ModelFailed, policy: Policy, now: int
) -> Iterator[AnyRecord]:
    """Try again where that may help, soon or after a while; else give the step up."""
    assert turn.model is not None
    model = turn.model
    if result.prompt:
        yield from prompt_rendered(lane, model, result.prompt)
    yield from result.deltas
    yield from attempt_ended(lane, model, result.cut_off, now)
    if result.kind in ("transient", "blocked"):
        yield tried_again(lane, model, result, policy, now)
        return
    yield from provider_answers(lane, turn, now)
    if result.error.code == TOO_LONG and lane.context.overflows < MOST_OVERFLOWS:
        yield from overflowed(turn, model, result)
        return
    if model.partial or result.deltas:
        yield r.MessageAborted(call_id=model.call_id, attempt=model.attempt)
    yield r.StepFailed(
        turn=turn.id,
        step=turn.step,
        error=result.error,
        structural=result.kind == "structural",
    )


def attempt_ended(
    lane: Lane, model: ModelCall, cut_off: r.UsageRecorded | None, now: int
) -> Iterator[AnyRecord]:
    """Settle an attempt that has no answer: by an estimate where some of one was heard."""
    if cut_off:
        yield cut_off
    if lane.holds:
        used = used_by(cut_off) if cut_off else NO_USAGE
        yield from settled(lane, model.call_id, used, now)


def tried_again(
    lane: Lane, model: ModelCall, result: ModelFailed, policy: Policy, now: int
) -> AnyRecord:
    """Say who is asked again, and when.

    The same model a few times in this worker; then the agent's other models, each as often; then
    the lane parks, and they are asked in turn.
    """
    blocked = result.kind == "blocked"
    # Patience counts from the first failure of all, through all pauses and models.
    since = model.failing_since or now
    # Only before it parks: in an outage one question in each pause is enough.
    if not lane.outage and is_tried_soon(model, result, policy):
        return r.ModelRetrying(
            call_id=model.call_id,
            attempt=model.attempt,
            error=result.error,
            not_before=now + (result.retry_after or result.backoff),
            since=since,
        )
    asked = policy.model(model.asked)
    # Another model first: parking is for when none of them can be had.
    if further := untried_model(model, asked, policy):
        return r.ModelSwitched(
            call_id=model.call_id,
            attempt=model.attempt,
            left=asked,
            model=further,
            error=result.error,
            since=since,
            blocked=blocked,
            asked=result.is_asked,
            retry_at=retry_at(result, now),
        )
    next_model, not_before = next_try(model, asked, result, policy, now)
    if lane.outage:
        return r.ProviderStillUnavailable(
            call_id=model.call_id,
            attempt=model.attempt,
            error=result.error,
            not_before=not_before,
            blocked=blocked,
            asked=result.is_asked,
            in_line=result.is_away,
            model=asked,
            next_model=next_model,
            retry_at=retry_at(result, now),
        )
    return r.ProviderUnavailable(
        call_id=model.call_id,
        attempt=model.attempt,
        error=result.error,
        not_before=not_before,
        since=since,
        blocked=blocked,
        asked=result.is_asked,
        in_line=result.is_away,
        model=asked,
        next_model=next_model,
        retry_at=retry_at(result, now),
    )


def is_tried_soon(model: ModelCall, failed: ModelFailed, policy: Policy) -> bool:
    """Say whether a call that failed is made again in this worker, before its lane parks."""
    if failed.kind == "blocked" or failed.is_away or failed.retry_after > policy.longest_sleep:
        return False
    return model.failed + 1 < policy.max_attempts


def untried_model(model: ModelCall, asked: str, policy: Policy) -> str:
    """Return the next of the agent's models that this call has not given up, if there is one."""
    tried = {each.name for each in model.unavailable}
    return next((name for name in policy.models_after(asked) if name not in tried), "")


def next_try(
    model: ModelCall, asked: str, result: ModelFailed, policy: Policy, now: int
) -> tuple[str, int]:
    """Return which model a lane that parks asks next, if there are several, and when.

    They take turns; one that is to be left alone for longer is passed over.
    """
    if not (others := policy.models_after(asked)):
        return "", now + (result.retry_after or result.backoff)
    # In a provider's line its own pause holds, and says nothing of the others.
    soonest = now if result.is_away else now + result.backoff
    due = {each.name: each.retry_at for each in model.unavailable}
    due[asked] = retry_at(result, now)
    due = {name: max(soonest, due.get(name, 0)) for name in (*others, asked)}
    following = min(due, key=due.__getitem__)  # the first of those that are due at the same time
    return following, due[following]


def retry_at(failed: ModelFailed, now: int) -> int:
    """Return when a provider may be asked again, as it says itself or as its breaker does."""
    pause = failed.retry_after or (failed.backoff if failed.is_away else 0)
    return now + pause if pause else 0


def moves_on(lane: Lane, policy: Policy, model: str, now: int) -> AnyRecord:
    """Have a parked lane ask another model than the one whose provider it waits for."""
    assert lane.turn is not None
    assert lane.turn.model is not None
    assert lane.outage is not None
    call, awaited = lane.turn.model, policy.model(lane.turn.fallback)
    away = next((each for each in call.unavailable if each.name == awaited), None)
    return r.ProviderStillUnavailable(
        call_id=call.call_id,
        attempt=call.attempt,
        error=away.error if away else lane.outage.error,
        not_before=now,
        blocked=away.blocked if away else lane.outage.blocked,
        asked=False,
        in_line=True,
        model=awaited,
        next_model=model,
        retry_at=away.retry_at if away else 0,
    )


def provider_answers(lane: Lane, turn: Turn, now: int) -> Iterator[AnyRecord]:
    """Say that the provider is back, if it had been away."""
    if lane.outage and turn.model:
        yield r.ProviderAvailable(
            call_id=turn.model.call_id,
            attempt=turn.model.attempt,
            since=lane.outage.since,
            attempts=lane.outage.attempts,
            model=turn.model.asked,
        )
        if lane.waiting:
            yield r.SessionResumed(since=now)


def tool_ended(
    lane: Lane,
    call: OpenCall,
    end: ToolEnd,
    policy: Policy,
    now: int,
) -> Iterator[AnyRecord]:
    match end:
        case Returned():
            for change in end.leftovers.changes:
                if not isinstance(change, SliceUpdate):
                    yield change
            # Changes, events and the outcome are one commit: readers never see an event of a call
            # that left nothing.
            yield from end.leftovers.emitted
            yield r.ToolCompleted(
                call_id=call.call_id,
                attempt=call.attempt,
                value=end.value,
                message=end.message,
                same_as=end.same_as,
            )
            # Behind the outcome that it is about, so that a view which ends at the milestone has
            # that too.
            yield from reach(lane, call, end, now)
            yield from close_opened(lane, call.call_id)
        case Raised():
            again = (
                end.error.code not in FINAL
                and call.failed + 1 < policy.tool(call.tool).max_attempts
            )
            yield r.ToolFailed(
                call_id=call.call_id,
                attempt=call.attempt,
                error=end.error,
                again_at=now + end.backoff if again else 0,
            )
            if not again:
                yield from close_opened(lane, call.call_id)
        case Interrupted():
            # Others are decided upon when their turn comes, by what the tool's code says by then.
            final = end.final or policy.tool(call.tool).on_interrupt == "report"
            yield r.ToolInterrupted(
                call_id=call.call_id,
                attempt=call.attempt,
                reason=end.reason,
                final=final,
                why=end.why,
            )
            if final:
                yield from close_opened(lane, call.call_id)
        case ToolWaits():
            yield from tool_waits(lane, call, end)
        case Mismatched():
            yield mismatched(call, end, now)
        case Restarted():
            yield from close_opened(lane, call.call_id)
            yield restarted(call, end)
        case Undone():
            yield undone(end)
            yield from close_opened(lane, call.call_id)


def tool_waits(lane: Lane, call: OpenCall, end: ToolWaits) -> Iterator[AnyRecord]:
    name, *also = (wait.name for wait in end.waits)
    yield r.ToolWaiting(
        call_id=call.call_id,
        attempt=call.attempt,
        name=name,
        also=tuple(also),
        reconciles=end.reconciles,
        unused=end.unused,
        unstable=count_unstable(call, end),
        events={wait.name: wait.event for wait in end.waits if wait.event},
    )
    # After `tool.waiting`, which names them: the fold drops timers that a call does not wait for
    # any more.
    for wait in end.waits:
        yield from wait_begins(lane, call, wait)
    # It may have come in while the tool was on its way to wait for it.
    kept = lane.turn.events if lane.turn else NO_EVENTS
    here = {wait.name for wait in end.waits if wait.event and kept.get(wait.event)}
    if over := next((each for each in (name, *also) if each in call.memo or each in here), ""):
        yield r.ToolWoken(call_id=call.call_id, name=over)


def wait_begins(lane: Lane, call: OpenCall, wait: NewWait) -> Iterator[AnyRecord]:
    if wait.child:
        yield r.SubagentCalled(
            request_id=request_name(lane.session, call.call_id, wait.name),
            call_id=call.call_id,
            attempt=call.attempt,
            name=wait.name,
            child=wait.child.session_id,
            agent=wait.child.agent,
            url=wait.child.url,
            message=text_of(wait.child.content) if wait.child.url else "",
            excerpt=excerpt(wait),
        )
    if wait.authorization:
        yield authorization_required(call, wait.name, wait.authorization)
    if wait.due_at and wait.due_at != call.timers.get(wait.name):
        yield r.TimerSet(call_id=call.call_id, name=wait.name, due_at=wait.due_at)
    if wait.question:
        yield r.RequestOpened(
            request_id=request_name(lane.session, call.call_id, wait.name),
            kind="question",
            prompt=wait.question.prompt,
            options=wait.question.options,
            allow_freeform=wait.question.allow_freeform,
            call_id=call.call_id,
            tool=call.tool,
            name=wait.name,
            expires_at=wait.question.expires_at,
            on_expiry=wait.question.on_expiry,
            expires_above=bool(lane.parent and wait.question.expires_at),
        )


def authorization_required(call: OpenCall, name: str, new: NewAuthorization) -> AnyRecord:
    return r.AuthorizationRequired(
        request_id=new.request_id,
        call_id=call.call_id,
        attempt=call.attempt,
        name=name,
        connection=new.connection,
        url=new.url,
        expires_at=new.expires_at,
        principal=new.principal,
    )


def stopped(
    lane: Lane, turn: Turn, action: AnyAction, result: TurnStopped, policy: Policy, now: int
) -> Iterator[AnyRecord]:
    """Give every call of the turn an outcome, then end the turn."""
    ended = {end.call_id: end for end in result.ends}
    # The turn does not end yet: its requests are closed, and then what it did is undone in reverse.
    if has_to_undo(turn):
        assert isinstance(action, CancelTurn | FailTurn)
        for call in turn.calls.values():
            yield from close_opened(lane, call.call_id)
        yield from undo_starts(turn, action)
        return
    if turn.model:
        yield from attempt_ended(lane, turn.model, result.cut_off, now)
        yield from answer_stops(turn.model, kept=isinstance(action, CancelTurn))
    for call in turn.calls.values():
        end = ended.get(call.call_id)
        # What ended by itself within the grace is recorded as it was: it happened.
        if isinstance(end, Returned) or (isinstance(end, Raised) and not call.is_done):
            for record in tool_ended(lane, call, end, NO_RETRIES, now):
                yield record
                lane = fold(lane, record)  # a milestone counts from the one before it
        # Each call has an outcome, so that no reader of the log waits for one, and no view lacks a
        # result.
        elif not call.is_done:
            yield call_stopped(call, end if isinstance(end, Interrupted) else None)
            # It may have gone on for a while after the turn's requests were closed.
            yield from close_opened(lane, call.call_id)
    # Not folded yet, and the record of the turn's end says all of its usage.
    if result.cut_off:
        turn = replace(turn, usage=turn.usage + used_by(result.cut_off))
    yield from turn_ends(turn, action)


def answer_stops(model: ModelCall, kept: bool) -> Iterator[AnyRecord]:
    """Keep what was said of an answer, or drop all of it, as a failed turn does.

    A retry of the turn begins the answer anew, perhaps with another model.
    """
    for attempt in () if kept else model.kept:
        yield r.MessageAborted(call_id=model.call_id, attempt=attempt)
    if model.partial:
        yield r.MessageAborted(call_id=model.call_id, attempt=model.attempt, kept=kept)


NO_RETRIES = Policy()


def call_stopped(call: OpenCall, end: Interrupted | None = None) -> AnyRecord:
    """Give an outcome to a call of a stopped turn; one that has begun may have had an effect.

    `end` is that of a run of it which came to its end meanwhile.
    """
    error = call.failure if call.attempt else NOT_RUN
    if error:
        return r.ToolFailed(call_id=call.call_id, attempt=call.attempt, error=error)
    reason, why = (end.reason, end.why) if end else (call.reason or "cancelled", call.why)
    return r.ToolInterrupted(call_id=call.call_id, attempt=call.attempt, reason=reason, why=why)


def turn_ends(turn: Turn, action: AnyAction) -> Iterator[AnyRecord]:
    if isinstance(action, CancelTurn):
        yield r.TurnCancelled(
            turn=turn.id,
            reason=action.reason,
            superseded=action.superseded,
            usage=turn.usage,
            below=turn.below,
        )
        if action.delivery_id:
            yield r.DeliverySettled(delivery_id=action.delivery_id, outcome="completed")
        return
    assert isinstance(action, FailTurn)
    # A turn that never came to a step, or whose step has failed by a record of its own, has none to
    # fail.
    if turn.step and not turn.failure:
        yield r.StepFailed(
            turn=turn.id, step=turn.step, error=action.error, structural=action.structural
        )
    yield r.TurnFailed(
        turn=turn.id,
        error=action.error,
        structural=action.structural,
        usage=turn.usage,
        below=turn.below,
    )
