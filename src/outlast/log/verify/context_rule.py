"""Rules of a sound log about what the model sees: restarts, compactions, summaries and rewinds.

Such a record names places of its lane's log and texts. Both have to be there, or two readers of the
same log would show a model two things. See `rule.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from outlast.core import record as r
from outlast.core.compaction import pinned_calls
from outlast.core.lane import CUT, RUNNING, Lane
from outlast.core.message import ToolCall
from outlast.core.slice import Slices
from outlast.core.view import TOLD

Wrong = tuple[str, str]

SPEAKS = (
    r.TurnStarted,
    r.DeliveryJoined,
    r.ModelStarted,
    r.MessageCompleted,
    r.MessageAborted,
    r.FeedbackGiven,
    r.CompletionRefused,
    r.CompactionCompleted,
)
"""The records that may make a message."""
ENDS = (r.StepCompleted, r.TurnFailed, r.TurnCancelled)


class ContextOffsets:
    """The places in a lane's log that a record about what the model sees may name."""

    def __init__(self) -> None:
        self._began: set[int] = set()
        self._answer = 0
        self._open_answer = 0
        self._answers: dict[str, int] = {}
        self._milestone, self._until = 0, 0
        self._kept: set[int] = set()
        self._speaking: set[int] = set()
        self._told: set[str] = set()
        self._ends: dict[str, int] = {}
        self._worded: set[str] = set()
        self._first = 0

    def add(self, e: r.AnyRecord, offset: int, lane: Lane, slices: Slices) -> Iterator[Wrong]:
        """Take in a record of the lane, and yield what is wrong with the places that it names.

        `slices` are those of the session before it.
        """
        match e:
            case r.DeliveryQueued() if e.content:
                self._worded.add(e.delivery_id)
            case r.TurnStarted() | r.DeliveryJoined():
                is_new = not getattr(e, "retries", "") and isinstance(e, r.TurnStarted)
                self._began = {offset} if is_new else {*self._began, offset}
                if e.delivery_id in self._worded:
                    self._first = self._first or offset
            case r.MessageCompleted():
                self._answer = self._answers[e.call_id] = offset
                has_calls = any(isinstance(part, ToolCall) for part in e.parts)
                self._open_answer = offset if has_calls else 0
            case r.MilestoneReached():
                calls = lane.turn.calls.values() if lane.turn else ()
                is_over = all(call.is_done for call in calls)
                self._milestone, self._kept = offset, self._began
                self._until = self._answer if is_over else self._answer - 1
            case r.ContextRestarted():
                yield from self._restarts(e, slices)
            case r.CompactionCompleted():
                yield from self._compacts(e, offset)
            case r.ContextRewound():
                yield from self._rewinds(e)
        if isinstance(e, SPEAKS):
            self._speaking.add(offset)
        if isinstance(e, TOLD):
            self._told.add(e.call_id)
        if isinstance(e, ENDS):
            self._ends[e.turn] = offset
            self._open_answer = 0

    def _restarts(self, e: r.ContextRestarted, slices: Slices) -> Iterator[Wrong]:
        self._first = -1  # what the first message said may be a milestone's by now
        if (e.milestone, e.until) != (self._milestone, self._until):
            yield (
                "WRONG_CONTEXT",
                f"{e.turn} goes on from {e.milestone} with what came after {e.until}, and"
                f" its milestone is {self._milestone}, after {self._until}",
            )
        skills = {self._answers.get(call.rpartition(".c")[0]) for call in pinned_calls(slices)}
        if not set(e.keep) <= self._kept | skills:
            yield (
                "WRONG_CONTEXT",
                f"{e.turn} keeps what neither began its milestone's turn nor is a skill",
            )

    def _compacts(self, e: r.CompactionCompleted, offset: int) -> Iterator[Wrong]:
        named = {*e.keep, *e.shortened, *([e.until] if e.until else [])}
        if strangers := sorted(named - self._speaking):
            yield "WRONG_CONTEXT", f"the lane has no message made at {strangers}, which it names"
        if list(e.keep) != sorted({*e.keep}) or (e.keep and e.keep[-1] >= e.until):
            yield "WRONG_CONTEXT", f"what it keeps does not rise up to {e.until}: {list(e.keep)}"
        if 0 < self._first <= e.until and self._first not in e.keep:
            yield "WRONG_CONTEXT", f"the first message, made at {self._first}, is left out"
        if 0 < self._open_answer <= e.until and self._open_answer not in e.keep:
            yield "WRONG_CONTEXT", f"{self._open_answer} is left out, whose results are told next"
        if strange := sorted(set(e.results) - self._told):
            yield "UNKNOWN_CALL", f"it has texts for {', '.join(strange)}, without an outcome"
        if bool(e.until) != bool(e.text):
            yield "TEXT_MISSING", f"what is left out up to {e.until} has the text {e.text[:50]!r}"

    def _rewinds(self, e: r.ContextRewound) -> Iterator[Wrong]:
        if (due := self._ends.get(e.to)) is None:
            yield "UNKNOWN_TURN", f"the view goes back behind {e.to}, and there was no such turn"
        elif e.until != due:
            yield "WRONG_CONTEXT", f"{e.to} was over at {due}, and the view goes back to {e.until}"


def is_between_steps(lane: Lane) -> Iterator[Wrong]:
    turn = lane.turn
    if turn is None:
        return
    if left := [call.call_id for call in turn.calls.values() if not call.is_done]:
        yield "CALL_LEFT_OPEN", f"the view changes without an outcome of {', '.join(left)}"
    if turn.model and turn.model.status in (RUNNING, CUT):
        yield "CALL_LEFT_OPEN", f"the view changes while {turn.model.call_id} is open"


def compaction_completes(lane: Lane, e: r.CompactionCompleted) -> Iterator[Wrong]:
    yield from is_between_steps(lane)
    begun = lane.summary
    if e.call_id and (begun is None or begun.failed or begun.call_id != e.call_id):
        yield "NOT_STARTED", f"the summary {e.call_id} is in the view, and was not begun"


def summary_starts(lane: Lane, e: r.SummaryStarted) -> Iterator[Wrong]:
    yield from is_between_steps(lane)
    before = lane.summary
    known = before.attempt if before and before.call_id == e.call_id else 0
    if e.attempt != known + 1:
        yield "ATTEMPT_OUT_OF_ORDER", f"attempt {e.attempt} at {e.call_id} follows on {known}"
    if before and before.failed:
        yield "SECOND_OUTCOME", f"{e.call_id} is begun, and {before.call_id} has failed"


def summary_fails(lane: Lane, e: r.SummaryFailed) -> Iterator[Wrong]:
    begun = lane.summary.attempt if lane.summary else 0
    due = begun if e.asked else begun + 1
    if e.attempt != due:
        yield "ATTEMPT_OUT_OF_ORDER", f"attempt {due} at {e.call_id} is due, and {e.attempt} failed"
    if lane.summary and lane.summary.call_id != e.call_id:
        yield "UNKNOWN_CALL", f"the summary {lane.summary.call_id} is open, and {e.call_id} failed"


def context_goes_back(lane: Lane, e: r.ContextRewound) -> Iterator[Wrong]:
    if lane.turn:
        yield "TURN_LEFT_OPEN", f"the view goes back behind {e.to} while {lane.turn.id} is open"
    if not any(each.op == "rewind" and each.turn == e.to for each in lane.views):
        yield "UNKNOWN_DELIVERY", f"nobody has asked for the view behind {e.to}"


def change_is_refused(lane: Lane, e: r.ContextChangeRefused) -> Iterator[Wrong]:
    if all(each.delivery_id != e.delivery_id for each in lane.views):
        yield "UNKNOWN_DELIVERY", f"{e.delivery_id} is refused, and nobody has asked for it"


CONTEXT_RULES: dict[type, Callable[[Lane, Any], Iterator[Wrong]]] = {
    r.CompactionCompleted: compaction_completes,
    r.SummaryStarted: summary_starts,
    r.SummaryFailed: summary_fails,
    r.ContextRewound: context_goes_back,
    r.ContextChangeRefused: change_is_refused,
}
