"""Explains what an open turn waits for: its model, its requests, its calls.

Goes by the fold of the lane and by the records that opened what is waited for. Why a call that
could begin does not (limits, budgets, keys) is in `obstacle.py`; lanes without an open turn are
explained by `lane.py`.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import cast

import msgspec

from outlast.core import record as r
from outlast.core.breaker import is_line
from outlast.core.code_wait import CODE_PATIENCE, is_wanted
from outlast.core.instant import date_of, date_or_none
from outlast.core.lane import ModelCall, OpenCall, OpenRequest, Outage, Turn
from outlast.core.unstable_wait import past_wait
from outlast.log.explain.evidence import ExplainEvidence
from outlast.log.explain.link import Cause, CauseKind, sentence
from outlast.log.explain.obstacle import the_key
from outlast.store import LaneInfo, PermitInfo


def within_turn(info: LaneInfo, turn: Turn, evidence: ExplainEvidence) -> Iterator[Cause]:
    if turn.failure:
        yield Cause(kind="failure", text=f"the turn fails: {sentence(turn.failure)}", turn=turn.id)
    elif not turn.answer:
        yield from the_model(info, turn, evidence)
    yield from the_completion(info, turn, evidence)
    yield from the_context(info, turn, evidence)
    answered = {reply.request_id for reply in evidence.states[info.lane].replies}
    for request_id, request in turn.requests.items():
        if request_id not in answered:
            yield the_request(info, turn, request, evidence)
    for call in turn.calls.values():
        yield from the_call(info, turn, call, evidence)


def the_completion(info: LaneInfo, turn: Turn, evidence: ExplainEvidence) -> Iterator[Cause]:
    """Say what became of answers that were checked, and that the last one is being looked at."""
    found = evidence.find(info.lane, r.CompletionRefused, turn=turn.id)
    if found and isinstance(found.record, r.CompletionRefused):
        why = "; ".join(f"{name}: {reason}" for name, reason in found.record.reasons.items())
        yield Cause(
            kind="completion",
            text=f"{found.record.number} answers in this turn were refused, the last for {why}",
            since=date_of(found.at),
            turn=turn.id,
            step=found.record.step,
        )
    if turn.failure or not turn.answer or turn.completion:
        return
    if all(call.is_done for call in turn.calls.values()):
        yield Cause(
            kind="completion",
            text="the model has answered: rules look at that, or the turn is about to end",
            turn=turn.id,
            step=turn.step,
        )


def the_context(info: LaneInfo, turn: Turn, evidence: ExplainEvidence) -> Iterator[Cause]:
    """Name the milestone that the turn reached last, and say whether the model was told anew."""
    reached = evidence.find(info.lane, r.MilestoneReached)
    if reached and isinstance(reached.record, r.MilestoneReached):
        about = f": {reached.record.title}" if reached.record.title else ""
        yield Cause(
            kind="milestone",
            text=f"it has reached a milestone{about}",
            since=date_of(reached.at),
            turn=turn.id,
            call=reached.record.call_id,
        )
    restarted = evidence.find(info.lane, r.ContextRestarted, turn=turn.id)
    if restarted and isinstance(restarted.record, r.ContextRestarted):
        yield Cause(
            kind="milestone",
            text="the model is told its task anew, and what came since the milestone at"
            f" {restarted.record.milestone}",
            since=date_of(restarted.at),
            turn=turn.id,
        )


def asked_again(info: LaneInfo, evidence: ExplainEvidence) -> str:
    """Say whose turn it is to ask the provider."""
    place = provider_place(info, evidence)
    if place is None:
        return "is asked again from time to time"
    if place.held:
        return "this session is the next to ask it"
    return f"{place.ahead + 1} before this one in line have to be answered first"


def next_try(info: LaneInfo, model: ModelCall, evidence: ExplainEvidence) -> datetime | None:
    """Return when the provider is asked next, by this lane or by the first in line before it."""
    place = provider_place(info, evidence)
    if place is None:
        return date_or_none(model.not_before)
    known = next((each for each in evidence.breakers if each.provider.name == place.name), None)
    return date_of(known.next_at) if known else None


def provider_place(info: LaneInfo, evidence: ExplainEvidence) -> PermitInfo | None:
    """Return the lane's place in the line of its provider, if it stands in one."""
    ours = (permit for permit in evidence.permits if permit.lane == info.lane)
    return next((permit for permit in ours if is_line(permit.name)), None)


def the_model(info: LaneInfo, turn: Turn, evidence: ExplainEvidence) -> Iterator[Cause]:
    model = turn.model
    if model is None:
        return
    if outage := evidence.states[info.lane].outage:
        yield the_outage(info, turn, model, outage, evidence)
        if model.parked:
            return
    else:
        yield from the_fallback(info, turn, evidence)
    if model.status == "retry" and date_of(model.not_before) > evidence.now:
        retrying = evidence.find(info.lane, r.ModelRetrying, call_id=model.call_id)
        why = f": {sentence(retrying.record.error)}" if retrying else ""  # type: ignore[union-attr, arg-type]
        yield Cause(
            kind="provider",
            text=f"{named(model)} failed in attempt {model.attempt}, and is asked again{why}",
            since=date_of(retrying.at) if retrying else None,
            until=date_of(model.not_before),
            turn=turn.id,
            step=turn.step,
            call=model.call_id,
            attempt=model.attempt,
        )
        return
    is_running = model.status == "running"
    started = {"call_id": model.call_id, "attempt": model.attempt}
    yield Cause(
        kind="model",
        text=f"the model call {model.call_id}"
        + (f" to {model.asked}" if is_running and model.asked else "")
        + (f" is under way in attempt {model.attempt}" if is_running else " is to be made again"),
        since=evidence.when(info.lane, r.ModelStarted, **started) if is_running else None,
        turn=turn.id,
        step=turn.step,
        call=model.call_id,
        attempt=model.attempt,
    )


def the_outage(
    info: LaneInfo, turn: Turn, model: ModelCall, outage: Outage, evidence: ExplainEvidence
) -> Cause:
    """Say what cannot be had, what mends it, and when it is asked next, or that it is just now."""
    again = asked_again(info, evidence) if model.parked else "is being asked again"
    return Cause(
        kind="provider",
        text=what_is_away(turn, model, outage, again)
        + ("; that does not pass by itself: somebody has to mend it" if outage.blocked else "")
        + (f"; to mend it: {outage.error.hint}" if outage.error.hint else ""),
        since=date_of(outage.since),
        until=next_try(info, model, evidence) if model.parked else None,
        turn=turn.id,
        step=turn.step,
        call=model.call_id,
        attempt=model.attempt,
    )


def what_is_away(turn: Turn, model: ModelCall, outage: Outage, again: str) -> str:
    """Say of each of the agent's models why it cannot be had, and which is asked when `again`."""
    if not model.unavailable:
        return f"{named(model)} cannot be had, and {again}: {sentence(outage.error)}"
    each = "; ".join(f"{away.name}: {sentence(away.error)}" for away in model.unavailable)
    return f"none of its models can be had; {turn.fallback} is next, and {again}: {each}"


def named(model: ModelCall) -> str:
    return f"the model {model.asked}" if model.asked else "the model"


Left = r.ModelSwitched | r.ProviderUnavailable | r.ProviderStillUnavailable


def the_fallback(info: LaneInfo, turn: Turn, evidence: ExplainEvidence) -> Iterator[Cause]:
    """Say which model the turn has moved on to, and why."""
    if not (turn.fallback and turn.model):
        return
    found = evidence.find(info.lane, Left)
    why = ""
    match found.record if found else None:
        case (
            r.ModelSwitched(left=left, error=error)
            | r.ProviderUnavailable(model=left, error=error)
            | r.ProviderStillUnavailable(model=left, error=error)
        ):
            why = f", since {left} could not be had: {sentence(error)}"
    yield Cause(
        kind="provider",
        text=f"the turn asks the model {turn.fallback}{why}",
        since=date_of(found.at) if found else None,
        turn=turn.id,
        step=turn.step,
        call=turn.model.call_id,
    )


def the_request(
    info: LaneInfo, turn: Turn, request: OpenRequest, evidence: ExplainEvidence
) -> Cause:
    record, text = what_for(request, evidence)
    if is_unasked(turn, request):
        text += ", which is still open, but the tool no longer asks for it: it is closed when the"
        text += " call ends"
    return Cause(
        kind="request" if request.is_question else cast(CauseKind, request.kind),
        text=f"it waits for {text}",
        since=evidence.when(info.lane, record, request_id=request.request_id),
        until=date_or_none(request.remote.next_at if request.remote else request.expires_at),
        turn=turn.id,
        step=turn.step,
        call=request.call_id,
        request=request.request_id,
    )


def is_unasked(turn: Turn, request: OpenRequest) -> bool:
    """Say whether a tool has stopped without asking for a wait of its own that is open."""
    call = turn.calls.get(request.call_id)
    if not (call and call.status == "waiting" and request.name) or request.origin:
        return False
    return not request.subagent and request.name not in call.waits_for


def what_for(request: OpenRequest, evidence: ExplainEvidence) -> tuple[type, str]:
    """Return the kind of record that an open request began with, and what it waits for."""
    match request.kind:
        case "callback":
            whom = (
                "news of its remote child"
                if request.subagent
                else f"a call from outside to its {request.name}"
            )
            return r.CallbackOpened, whom
        case "authorization":
            return r.AuthorizationRequired, f"somebody to sign in to {request.connection}"
        case "child":
            return r.SubagentCalled, the_child(request)
    listed = next((q for q in evidence.requests if q.request_id == request.request_id), None)
    asked = msgspec.json.decode(listed.data, type=r.RequestOpened) if listed else None
    prompt = f": {asked.prompt}" if asked else ""
    call = f" {asked.tool}({asked.args})" if asked and asked.tool and asked.args else ""
    return r.RequestOpened, f"the {request.kind} {request.request_id}{prompt}{call}"


def the_child(request: OpenRequest) -> str:
    remote = request.remote
    if remote is None:
        return f"its child {request.child}"
    at = f"{remote.agent} at {remote.url}"
    if not request.child:
        return f"{at}, where its child is not started yet"
    unsent = f"; {len(remote.answers)} answers are to be sent there" if remote.answers else ""
    return f"its child {request.child} of {at}, which is looked at again{unsent}"


def the_call(
    info: LaneInfo, turn: Turn, call: OpenCall, evidence: ExplainEvidence
) -> Iterator[Cause]:
    def link(
        kind: CauseKind, text: str, since: datetime | None = None, until: datetime | None = None
    ) -> Cause:
        return Cause(
            kind=kind,
            text=f"the tool {call.tool} {text}",
            since=since,
            until=until,
            turn=turn.id,
            step=turn.step,
            call=call.call_id,
            attempt=call.attempt,
        )

    if call.status == "mismatched" and call.mismatch:
        yield link(
            "code",
            f"waits for code that fits what it has done: {sentence(call.mismatch)}",
            date_of(call.mismatched_since),
            date_or_none(call.due_at),
        )
    elif call.awaits_code:
        yield link(
            "code",
            f"was not in the code of the worker that looked last: start one whose code has it, or"
            f' give its successor @tool(aliases=["{call.tool}"])',
            date_of(call.vanished),
            None if is_wanted(call) else date_of(call.vanished + CODE_PATIENCE),
        )
    match call.status:
        case "running":
            started = {"call_id": call.call_id, "attempt": call.attempt}
            since = evidence.when(info.lane, r.ToolStarted, **started)
            yield link("tool", f"runs in attempt {call.attempt}", since)
        case "waiting" if call.wakes_at:
            since = evidence.when(info.lane, r.TimerSet, call_id=call.call_id)
            yield link("timer", "sleeps", since, date_of(call.wakes_at))
        case "again":
            failed = evidence.find(info.lane, r.ToolFailed, call_id=call.call_id)
            why = f": {sentence(failed.record.error)}" if failed else ""  # type: ignore[union-attr, arg-type]
            text = f"failed in attempt {call.attempt}, and is tried again{why}"
            since = date_of(failed.at) if failed else None
            yield link("retry", text, since, date_or_none(call.due_at))
        case "waiting" if call.events:
            names = ", ".join(dict.fromkeys(call.events.values()))
            yield link("event", f"waits for an event: {names}")
        case "cut":
            yield link("tool", f"was interrupted in attempt {call.attempt}")
    if call.status == "waiting" and call.unused:
        yield link("answer", f"has not asked for answers that have come: {unused(call)}")
    yield from the_key(info, turn, call, evidence)


def unused(call: OpenCall) -> str:
    """Name the waits whose answers have come and were not asked for, by their words if known."""
    return ", ".join(past_wait(call, name).words or name for name in call.unused)
