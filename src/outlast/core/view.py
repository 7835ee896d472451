"""The model's view: its messages, folded from the log. The session's slices are in `slice.py`.

The list only grows, but for an answer that was cut off and continued: what was said of it becomes
one message with the rest. Messages in the list are never copied or changed; that keeps a step's
cost independent of the history's length. Fed with committed records only.

A record may say that the model sees only a part of it from there on: each message has the offset
of the record that made it, and such a record names offsets. So the same log always gives the same
view, and what has been left out is still in the log, and in what people read of it. A view that
goes back is read from the log anew: what a compaction has left out since is seen again.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.message import (
    Content,
    Message,
    ModelAnswer,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolOutput,
    ToolOutputs,
    UserMessage,
    text_of,
)
from outlast.core.record import AnyRecord, Entry

GO_ON = "Your last answer was cut off. Go on exactly where it ended, without repeating any of it."
NOT_AS_ASKED = "That is not the answer that was asked for: {why}."
FEEDBACK = "Feedback ({name}): {text}"
NOT_COMPLETE = "You are not done yet. Go on, and answer again when this is settled:"
UNKNOWN = (
    "The outcome of this call is unknown: it may or may not have happened ({reason}). "
    "Do not simply make it again; find out first, or ask."
)
UNKEPT = (
    "The outcome of this call is unknown, although it was run: {why}. What it does may have "
    "happened. Do not simply make it again; find out first, or ask."
)


class RestartPoint(NamedTuple):
    """The last milestone, by its offset, and what is seen if the context begins anew from there.

    Those are the messages that `began` the milestone's turn, and those made after `until`.
    """

    milestone: int
    began: tuple[int, ...]
    until: int


class View:
    """The messages so far, and the little that is needed to make the next ones.

    One that `keeps_all` is for people: what the model no longer sees stays in it. `rewinds` are all
    places of the log at which the view goes back, each with that to which it does.
    """

    def __init__(
        self, *, keeps_all: bool = False, rewinds: Collection[tuple[int, int]] = ()
    ) -> None:
        self.messages: list[Message] = []
        self.offsets: list[int] = []
        """For each message, that of the record which made it."""
        self._keeps_all = keeps_all
        self._offset = 0
        self._began: tuple[int, ...] = ()
        self._answer = 0
        self._noted = 0
        self._restart: RestartPoint | None = None
        self.answers = 0
        """How many whole answers were given, those included that are no longer seen."""
        self.rendered: list[Any] = []
        """The client's own form of `messages`, as far as it has got: a cache."""
        self._rendered_for = ""
        self._attempt = 0
        self._inbox: dict[str, Content] = {}
        self._deltas: dict[int, list[str]] = {}
        self._said: set[int] = set()
        self._continuations = 0
        self._calls: dict[str, ToolCall] = {}
        self._results: dict[str, ToolOutput] = {}
        self._asked: dict[str, str] = {}
        self._edited: dict[str, tuple[str, str]] = {}
        self._turn = ""
        self._ends: dict[str, int] = {}
        """For each turn, the offset at which its last step was over."""
        self.rewinds: list[tuple[int, int]] = []
        """Those that were met."""
        self._foreseen = len(rewinds)
        self._void = void_ranges(rewinds)
        self.summaries: set[int] = set()
        """The offsets of messages that sum up what has been left out."""
        self.result_offsets: dict[str, int] = {}
        """For each call whose result is seen, the offset of its outcome."""
        self._instead: dict[str, str] = {}
        """Texts in the place of results that are not told yet, by call."""
        self._notes: list[str] = []
        """The feedback of rules on the open step, told behind the results of the step's calls."""

    def see(self, records: Iterable[AnyRecord], first: int) -> None:
        """Take in more records, the first of which stands at an offset, the others behind it."""
        steps, void = STEPS, self._void
        for offset, record in enumerate(records, first):
            if void:  # as only a lane has them that has gone back
                steps = VOID_STEPS if any(offset in each for each in void) else STEPS
            if step := steps.get(type(record)):
                self._offset = offset
                step(self, record)

    def see_all(self, entries: Iterable[Entry], lane: str) -> None:
        """Take in the entries of a log that are a lane's own."""
        for entry in entries:
            if entry.lane == lane:
                self.see((entry.record,), entry.offset)

    @property
    def is_outdated(self) -> bool:
        """Whether it goes back to what it may not have any more: it has to be read anew."""
        return len(self.rewinds) > self._foreseen and not self._keeps_all

    def pass_on(self) -> None:
        """Drop the messages so far, for a reader who has them."""
        self.messages.clear()
        self.offsets.clear()

    def restarted(self, turn: str, pinned: Collection[str] = ()) -> r.ContextRestarted | None:
        """Return the record by which a turn's context begins anew from the last milestone.

        What it began with stays, and the results of `pinned` calls.
        """
        if self._restart is None:
            return None
        milestone, began, until = self._restart
        stays = {*began, *self.offsets_of(pinned)}
        keep = tuple(sorted(offset for offset in stays if offset <= until))
        return r.ContextRestarted(turn=turn, milestone=milestone, until=until, keep=keep)

    @property
    def unsettled(self) -> int:
        """How many messages at the end may become one with the answer that goes on from them."""
        last = self.messages[-1] if self.messages else None
        is_partial = isinstance(last, ModelAnswer) and last.aborted
        return min(len(self.messages), 2 * self._continuations + is_partial)

    def has_queued(self, delivery_id: str) -> bool:
        """Whether a message was seen that is not taken up yet."""
        return delivery_id in self._inbox

    def waiting(self, delivery_ids: Iterable[str]) -> Iterator[Content]:
        """Return what was said in messages that are not taken up yet."""
        return (self._inbox[name] for name in delivery_ids if name in self._inbox)

    def render_for(self, model: str) -> None:
        """Drop the form that the client of another model has given to the messages."""
        if self._rendered_for != model:
            self._rendered_for = model
            self.rendered.clear()

    def _queued(self, e: r.DeliveryQueued) -> None:
        if e.content:
            self._inbox[e.delivery_id] = e.content

    def _say(self, message: Message, offset: int) -> None:
        self.messages.append(message)
        self.offsets.append(offset)

    def _taken(self, e: r.TurnStarted | r.DeliveryJoined) -> None:
        if isinstance(e, r.TurnStarted):
            self._turn = e.turn
            # A retry has no message: what began the turn that it retries is still what it is about.
            if not e.retries:
                self._began = ()
        if content := self._inbox.pop(e.delivery_id, None):
            self._say(UserMessage(content), self._offset)
            self._began = (*self._began, self._offset)

    def _settled(self, e: r.DeliverySettled) -> None:
        # It was refused or cancelled before any turn took it: the model never sees it.
        self._inbox.pop(e.delivery_id, None)

    def _model_started(self, e: r.ModelStarted) -> None:
        self._deltas, self._said, self._attempt = {}, set(), e.attempt
        last = self.messages[-1] if self.messages else None
        if e.attempt == 1:
            self._continuations = 0
        # An answer at the end would be taken for a whole one, and some models refuse it there.
        if isinstance(last, ModelAnswer) and last.aborted:
            self._continuations += 1
            self._say(UserMessage((Text(GO_ON),)), self._offset)

    def _delta(self, e: r.MessageDelta | r.ReasoningDelta) -> None:
        self._deltas.setdefault(e.part, []).append(e.text)
        if isinstance(e, r.MessageDelta) and e.text:
            self._said.add(e.part)

    def _aborted(self, e: r.MessageAborted) -> None:
        if e.attempt != self._attempt:  # kept until now: another model begins the answer anew
            self._take_back_partials()
            return
        said = tuple(Text("".join(self._deltas[part])) for part in sorted(self._said))
        if e.kept and said:
            self._say(ModelAnswer(said, aborted=True), self._offset)
        self._deltas, self._said = {}, set()

    def _completed(self, e: r.MessageCompleted) -> None:
        # What the model was sent in several pieces is one message from now on, as if it had never
        # been cut off.
        before = self._take_back_partials() if self._continuations else ""
        parts = whole_parts(e, self._deltas, before)
        self._answer, self.answers = self._offset, self.answers + 1
        self._say(ModelAnswer(parts), self._offset)
        if e.misfit:
            self._say(UserMessage((Text(NOT_AS_ASKED.format(why=e.misfit)),)), self._offset)
        self._calls = {part.call_id: part for part in parts if isinstance(part, ToolCall)}
        self._results = {}
        self._deltas, self._said = {}, set()

    def _take_back_partials(self) -> str:
        """Return what earlier attempts at this answer had said, which is a part of it from now on.

        With each goes the message that asked the model to go on.
        """
        # A partial answer and the request to go on, for each continuation.
        first = len(self.messages) - 2 * self._continuations
        partials = self.messages[first::2]
        del self.messages[first:], self.offsets[first:], self.rendered[first:]
        self._continuations = 0
        return "".join(text_of(partial.parts) for partial in partials)  # type: ignore[union-attr]

    def _requested(self, e: r.RequestOpened) -> None:
        if not e.origin:  # what a child asks is about a call of its own
            self._asked[e.request_id] = e.call_id

    def _resolved(self, e: r.RequestResolved) -> None:
        call_id = self._asked.pop(e.request_id, "")
        if e.args and call_id:
            self._edited[call_id] = ("A human", e.args)

    def _decided(self, e: r.ToolRequested) -> None:
        if e.changed:
            self._edited[e.call_id] = ("The application", e.changed)

    def _tool_ended(self, e: Any) -> None:
        # The model is told of outcomes only: another attempt is still to come.
        if type(e) is r.ToolFailed and e.again_at:
            return
        if type(e) is r.ToolInterrupted and not e.final:
            return
        call = self._calls.get(e.call_id)
        if call is None:  # the body of a workflow, that no model has asked for
            return
        text, failed = told(e)
        if edited := self._edited.pop(e.call_id, None):
            # Said with the result: what the model has said itself is never changed.
            text = f"({edited[0]} changed the arguments to {edited[1]}.)\n{text}"
        self.result_offsets[e.call_id] = self._offset
        self._results[e.call_id] = ToolOutput(e.call_id, call.tool, text, failed, call.provider_id)

    def _step_over(self, _: AnyRecord) -> None:
        results = self._results
        # In the order of the calls, whichever ended first: so the view does not depend on timing.
        if known := tuple([results[call_id] for call_id in self._calls if call_id in results]):
            if self._instead:
                known = with_texts(known, self._instead)
                self._instead = {}
            # Made by the answer that asked for them: no part of a view has one without the other.
            self._say(ToolOutputs(known), self._answer)
        self._ends[self._turn] = self._offset
        self._calls, self._results = {}, {}
        if self._notes:
            self._say(UserMessage(tuple(Text(note) for note in self._notes)), self._noted)
            self._notes = []

    def _milestone(self, _: r.MilestoneReached) -> None:
        """Note where a restart would begin: behind the step, if nothing of it was open any more."""
        is_over = self._calls.keys() <= self._results.keys()
        # An answer whose calls are still open is left out with them.
        until = self._answer if is_over else self._answer - 1
        self._restart = RestartPoint(self._offset, self._began, until)

    def _restarted(self, e: r.ContextRestarted) -> None:
        self._narrow(e.until, e.keep)

    def _compacted(self, e: r.CompactionCompleted) -> None:
        # What people read is all of it, whatever the model still sees.
        if self._keeps_all:
            return
        self._narrow(e.until, e.keep)
        if e.text:
            offsets = enumerate(self.offsets)
            # Before the first message that was not summed up: there it stands where what it tells
            # of was.
            later = (n for n, o in offsets if o > e.until and o not in self.summaries)
            place = next(later, len(self.offsets))
            self.messages.insert(place, UserMessage((Text(e.text),)))
            self.offsets.insert(place, self._offset)
            self.summaries.add(self._offset)
        for place, (message, offset) in enumerate(zip(self.messages, self.offsets, strict=True)):
            if isinstance(message, ToolOutputs) and e.results:
                self.messages[place] = ToolOutputs(with_texts(message.results, e.results))
            elif isinstance(message, UserMessage) and offset in e.shortened:
                self.messages[place] = UserMessage((Text(e.shortened[offset]),))
        # Results of the open step are no message yet: they are shortened when the step is over.
        self._instead |= e.results
        self.rendered.clear()

    def _rewound(self, e: r.ContextRewound) -> None:
        self.rewinds.append((self._offset, e.until))

    def end_of(self, turn: str) -> int | None:
        """Return the offset at which a turn's last step was over; None if there is no such turn."""
        return self._ends.get(turn)

    # Of what the view has gone back behind

    def _void_turn(self, e: r.TurnStarted) -> None:
        self._turn = e.turn

    def _void_step_over(self, _: AnyRecord) -> None:
        self._ends[self._turn] = self._offset

    def _void_answer(self, _: r.MessageCompleted) -> None:
        self.answers += 1

    def offsets_of(self, calls: Collection[str]) -> set[int]:
        """Return the offsets of the messages that have results of these calls."""
        return {
            offset
            for message, offset in zip(self.messages, self.offsets, strict=True)
            if isinstance(message, ToolOutputs)
            and any(result.call_id in calls for result in message.results)
        }

    @property
    def pending(self) -> tuple[ToolOutput, ...]:
        """The results of the open step, which are not told yet."""
        return with_texts(tuple(self._results.values()), self._instead)

    @property
    def open_answer(self) -> int:
        """The offset of the answer to whose calls the results are not told yet; 0: there is none.

        A view without it would tell results that no call in it has asked for.
        """
        return self._answer if self._calls else 0

    @property
    def began(self) -> tuple[int, ...]:
        """The offsets of the messages that the turn began with which is open, or was last."""
        return self._began

    def _narrow(self, until: int, keep: Collection[int]) -> None:
        """Leave out all messages up to an offset, but for those made at the offsets to keep."""
        if self._keeps_all:
            return
        said = zip(self.messages, self.offsets, strict=True)
        left = [(each, offset) for each, offset in said if offset > until or offset in keep]
        self.messages[:] = [message for message, _ in left]
        self.offsets[:] = [offset for _, offset in left]
        self.rendered.clear()

    def _feedback(self, e: r.FeedbackGiven) -> None:
        self._noted = self._offset
        self._notes.append(FEEDBACK.format(name=e.name, text=e.text))

    def _refused(self, e: r.CompletionRefused) -> None:
        self._noted = self._offset
        reasons = "\n".join(f"- {name}: {reason}" for name, reason in e.reasons.items())
        self._notes.append(f"{NOT_COMPLETE}\n{reasons}")


def void_ranges(rewinds: Collection[tuple[int, int]]) -> tuple[range, ...]:
    """Return the offsets that a view goes back behind; the last to go back is in force."""
    found: list[range] = []
    end = None
    # From the last one back: a rewind that was itself gone back behind never happened.
    for offset, until in sorted(rewinds, reverse=True):
        if end is None or offset <= end:
            found.append(range(until + 1, offset))
            end = until
    return tuple(found)


def view_of(entries: Sequence[Entry], lane: str) -> View:
    """Return what the model sees of a lane after all entries of a log, or those up to a place."""
    view = View()
    view.see_all(entries, lane)
    if view.is_outdated:
        view = View(rewinds=view.rewinds)
        view.see_all(entries, lane)
    return view


def with_texts(results: tuple[ToolOutput, ...], texts: Mapping[str, str]) -> tuple[ToolOutput, ...]:
    """Return results, some of them with other texts."""
    return tuple(
        replace(each, text=texts[each.call_id]) if each.call_id in texts else each
        for each in results
    )


def whole_parts(
    e: r.MessageCompleted, deltas: Mapping[int, Sequence[str]], before: str = ""
) -> tuple[Part, ...]:
    """Return an answer's parts with the text that was streamed put back into them.

    `before` is the text of earlier attempts, which this one continued: it stands before its own.
    """
    parts = e.parts
    if e.streamed:
        parts = tuple(
            replace(part, text="".join(deltas.get(number, ())))
            if number in e.streamed and isinstance(part, Text | Reasoning)
            else part
            for number, part in enumerate(parts)
        )
    return with_text_before(parts, before) if before else parts


def with_text_before(parts: tuple[Part, ...], before: str) -> tuple[Part, ...]:
    for number, part in enumerate(parts):
        # The continuation begins in the middle of a word, maybe: it must be one part with what was
        # before.
        if isinstance(part, Text):
            whole = replace(part, text=before + part.text)
            return (*parts[:number], whole, *parts[number + 1 :])
    return (Text(before), *parts)


TOLD = (r.ToolCompleted, r.ToolFailed, r.ToolInterrupted, r.ToolDenied)
"""The records of which the model is told as a result."""


def told(e: AnyRecord) -> tuple[str, bool]:
    """Return what the model is told of a tool's outcome, and whether that is a failure."""
    match e:
        case r.ToolCompleted():
            return (plain(e.value) if e.message is None else e.message), False
        case r.ToolFailed():
            return f"{e.error.code}: {e.error.message}", True
        case r.ToolInterrupted():
            return (UNKEPT.format(why=e.why) if e.why else UNKNOWN.format(reason=e.reason)), False
        case r.ToolDenied():
            return f"Not run: {e.reason}.", True
    raise TypeError(e)


def plain(value: str) -> str:
    """Return JSON text as a model reads it best: a string without its quotes."""
    return str(msgspec.json.decode(value)) if value.startswith('"') else value


STEPS: dict[type, Callable[[View, Any], None]] = {
    r.DeliveryQueued: View._queued,
    r.TurnStarted: View._taken,
    r.DeliveryJoined: View._taken,
    r.DeliverySettled: View._settled,
    r.ModelStarted: View._model_started,
    r.MessageDelta: View._delta,
    r.ReasoningDelta: View._delta,
    r.MessageAborted: View._aborted,
    r.MessageCompleted: View._completed,
    r.ToolRequested: View._decided,
    r.RequestOpened: View._requested,
    r.RequestResolved: View._resolved,
    r.ToolCompleted: View._tool_ended,
    r.ToolFailed: View._tool_ended,
    r.ToolInterrupted: View._tool_ended,
    r.ToolDenied: View._tool_ended,
    r.FeedbackGiven: View._feedback,
    r.CompletionRefused: View._refused,
    r.MilestoneReached: View._milestone,
    r.ContextRestarted: View._restarted,
    r.CompactionCompleted: View._compacted,
    r.ContextRewound: View._rewound,
    r.StepCompleted: View._step_over,
    r.TurnFailed: View._step_over,
    r.TurnCancelled: View._step_over,
}

VOID_STEPS: dict[type, Callable[[View, Any], None]] = {
    r.DeliveryQueued: View._queued,
    r.DeliverySettled: View._settled,
    r.TurnStarted: View._void_turn,
    r.StepCompleted: View._void_step_over,
    r.TurnFailed: View._void_step_over,
    r.TurnCancelled: View._void_step_over,
    r.MessageCompleted: View._void_answer,
    r.ContextRewound: View._rewound,
}
"""The records of which something stays where the view has gone back: arrivals, and turns' ends."""
