"""Feedback and completion: when a rule is due, and how it is folded and written down.

Owns the core's part of an agent's rules that look at a turn. The rules themselves are users' code
(`agents/rule.py`), which workers run; here are only their names, their triggers and what they
said. Policies about tool calls leave nothing but a `tool.denied`, and need nothing here.
"""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.lane import FeedbackMark, Lane, Turn
from outlast.core.policy import FeedbackTrigger, Policy
from outlast.core.result import CompletionChecked, FeedbackCollected

# Which rules are due


def due_feedback(lane: Lane, turn: Turn, policy: Policy, now: int) -> tuple[str, ...]:
    """Return the feedback providers that are due, each once in a step."""
    return tuple(
        trigger.name
        for trigger in policy.feedback
        if trigger.name not in turn.heard and is_due(trigger, lane, turn, now)
    )


def is_due(trigger: FeedbackTrigger, lane: Lane, turn: Turn, now: int) -> bool:
    """Say whether so many calls or so much time have passed since a provider's last say.

    Time counts within a turn, from its beginning: the days between two messages say nothing about
    the work.
    """
    mark = lane.feedback.get(trigger.name, FeedbackMark())
    if trigger.calls and lane.ended + turn.ended - mark.calls >= trigger.calls:
        return True
    # Strictly positive: 0 is a trigger that goes by calls alone.
    return 0 < trigger.span <= now - max(mark.since, turn.began)


def completion_refused(turn: Turn) -> r.Failure:
    names = ", ".join(turn.objectors)
    return r.Failure(
        "COMPLETION_REFUSED",
        f"{turn.refusals} answers in this turn were refused by its completion checkers, the last by"
        f" {names}; each completion.refused says why",
        "retry the turn when the cause is mended, or allow more with Limits(max_refusals=…)",
    )


# The fold


def feedback_heard(lane: Lane, e: r.FeedbackGiven | r.FeedbackSkipped) -> Lane:
    assert lane.turn is not None
    turn = lane.turn
    # Marked also where it failed or had nothing to say: otherwise it would be asked again before
    # every step.
    mark = FeedbackMark(lane.ended + turn.ended, e.since)
    lane = replace(lane, feedback={**lane.feedback, e.name: mark})
    return lane.with_turn(heard=(*turn.heard, e.name))


def is_accepted(turn: Turn, e: r.CompletionAccepted) -> Turn:
    return replace(turn, completion="accepted")


def is_refused(turn: Turn, e: r.CompletionRefused) -> Turn:
    return replace(turn, completion="refused", refusals=e.number, objectors=tuple(e.reasons))


LANE_RULES: dict[type, Callable[[Lane, Any], Lane]] = {
    r.FeedbackGiven: feedback_heard,
    r.FeedbackSkipped: feedback_heard,
}
TURN_RULES: dict[type, Callable[[Turn, Any], Turn]] = {
    r.CompletionAccepted: is_accepted,
    r.CompletionRefused: is_refused,
}


# How it is written down


def feedback_collected(turn: Turn, result: FeedbackCollected, now: int) -> Iterator[r.AnyRecord]:
    for said in result.said:
        if said.text:
            yield r.FeedbackGiven(
                turn=turn.id, step=turn.step, name=said.name, text=said.text, since=now
            )
        else:
            yield r.FeedbackSkipped(
                turn=turn.id, step=turn.step, name=said.name, since=now, error=said.error
            )


def completion_checked(turn: Turn, result: CompletionChecked) -> r.AnyRecord:
    if result.reasons:
        return r.CompletionRefused(
            turn=turn.id, step=turn.step, reasons=result.reasons, number=turn.refusals + 1
        )
    return r.CompletionAccepted(turn=turn.id, step=turn.step, checkers=result.checkers)
