"""Rules of a sound log about prompts, feedback, milestones, and checks before a turn ends.

See `rule.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from outlast.core import record as r
from outlast.core.lane import Lane
from outlast.core.prompt import prompt_digest, section_digest

Feedback = r.FeedbackGiven | r.FeedbackSkipped
Check = r.CompletionAccepted | r.CompletionRefused


def names_answered_step(lane: Lane, e: Feedback | Check) -> Iterator[tuple[str, str]]:
    """Both come when the step has its answer, and all of its calls have their outcome."""
    turn = lane.turn
    if turn is None or (e.turn, e.step) != (turn.id, turn.step):
        known = f"step {turn.step} of {turn.id}" if turn else "none"
        yield "UNKNOWN_STEP", f"the open step is {known}, and this is step {e.step} of {e.turn}"
    elif not turn.answer:
        yield "NOT_ANSWERED", f"rules look at step {e.step} of {e.turn} before the model answered"
    elif left := [call.call_id for call in turn.calls.values() if not call.is_done]:
        yield "CALL_LEFT_OPEN", f"rules look at {e.turn} without an outcome of {', '.join(left)}"


def feedback_is_heard(lane: Lane, e: Feedback) -> Iterator[tuple[str, str]]:
    yield from names_answered_step(lane, e)
    if lane.turn and e.name in lane.turn.heard:
        yield "HEARD_TWICE", f"the feedback {e.name} had its say in step {e.step} already"


def completion_is_checked(lane: Lane, e: Check) -> Iterator[tuple[str, str]]:
    yield from names_answered_step(lane, e)
    if lane.turn is None:
        return
    if lane.turn.completion:
        yield "CHECKED_TWICE", f"the answer of step {e.step} was {lane.turn.completion} already"
    due = lane.turn.refusals + 1
    if isinstance(e, r.CompletionRefused) and e.number != due:
        yield "WRONG_COUNT", f"refusal {e.number} of {e.turn} stands where {due} is due"


def prompt_is_whole(lane: Lane, e: r.PromptRendered) -> Iterator[tuple[str, str]]:
    """Each text is here, or was with the prompt before it."""
    if e.digest != prompt_digest(e.sections):
        yield "WRONG_DIGEST", f"the prompt of {e.call_id} is not the one of its digest"
    for section in e.sections:
        if section.text and section.digest != section_digest(section.text):
            yield "WRONG_DIGEST", f"the text of the section {section.key} is not that of its digest"
        if not section.text and section.digest not in lane.prompt.texts:
            yield "TEXT_MISSING", f"the section {section.key} has no text, and had none before"


def milestone_is_reached(lane: Lane, e: r.MilestoneReached) -> Iterator[tuple[str, str]]:
    """It is of a call that has just had its outcome."""
    call = lane.turn.calls.get(e.call_id) if lane.turn else None
    if call is None or not call.succeeded or call.attempt != e.attempt:
        yield "UNKNOWN_CALL", f"{e.call_id} is a milestone, and has not just succeeded"


def context_restarts(lane: Lane, e: r.ContextRestarted) -> Iterator[tuple[str, str]]:
    turn = lane.turn
    if turn is None or e.turn != turn.id:
        known = turn.id if turn else "none"
        yield "UNKNOWN_TURN", f"the open turn is {known}, and this belongs to {e.turn}"
    if not lane.milestone.reached:
        yield "UNKNOWN_MILESTONE", f"{e.turn} goes on from a milestone, and there was none"


TURN_RULES: dict[type, Callable[[Lane, Any], Iterator[tuple[str, str]]]] = {
    r.FeedbackGiven: feedback_is_heard,
    r.FeedbackSkipped: feedback_is_heard,
    r.CompletionAccepted: completion_is_checked,
    r.CompletionRefused: completion_is_checked,
    r.PromptRendered: prompt_is_whole,
    r.MilestoneReached: milestone_is_reached,
    r.ContextRestarted: context_restarts,
}
