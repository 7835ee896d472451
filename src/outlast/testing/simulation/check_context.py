"""Promises about what models are sent: bounded, with the first message, and told once."""

from collections.abc import Iterator

from outlast.agents.context.policy import ContextPolicy
from outlast.core import record as r
from outlast.core.compaction import BYTES_PER_TOKEN, GROWTH, bytes_of
from outlast.core.message import (
    Message,
    ModelAnswer,
    ToolCall,
    ToolOutputs,
    UserMessage,
    text_of,
)
from outlast.core.record import Entry
from outlast.core.view import View, view_of
from outlast.testing.simulation.evidence import SessionEvidence, SimulationEvidence

SLACK = 150
"""Tokens for what is not known to the byte: words around texts, answers that were cut off."""
BEGINNING = 50
"""So much of the first message is told also where it is too long for the provider."""


def views_are_bounded(evidence: SimulationEvidence) -> Iterator[str]:
    """A request has no more than a policy allows, but for what is never left out.

    Each result is sent with the call that asked for it. Each lane's first message is in all
    requests, unless its context began anew.
    """
    for name, session in evidence.talks.items():
        if session.findings:
            continue
        lanes: dict[str, LaneView] = {}
        for entry in session.entries:
            lane = lanes.setdefault(entry.lane, LaneView(evidence.agent(name).context))
            for wrong in lane.see(entry, session):
                yield f"{name}@{entry.offset} {entry.lane}: {wrong}"


class LaneView:
    """What the models of a lane are sent, as its log goes on."""

    def __init__(self, policy: ContextPolicy | None) -> None:
        self._policy = policy
        self._view = View()
        self._first = ""
        self._has_cut = True
        self._floor = 0
        """Tokens that the last compaction left: the next is due when the view has grown by some."""
        self._told: dict[str, str] = {}

    def see(self, entry: Entry, session: SessionEvidence) -> Iterator[str]:
        e = entry.record
        self._view.see((e,), entry.offset)
        match e:
            case r.ContextRewound():
                self._view = view_of(session.entries[: entry.offset], entry.lane)
                self._told, self._floor = {}, 0
            case r.ContextRestarted():
                self._first = ""
            case r.TurnStarted() if not self._first and len(self._view.messages) == 1:
                self._first = said_in(self._view.messages[0])[:BEGINNING]
            case r.CompactionCompleted():
                yield from self._compacted(e)
            case r.ModelStarted():
                yield from self._asked(e)

    def _compacted(self, e: r.CompactionCompleted) -> Iterator[str]:
        again = [name for name, text in e.results.items() if self._told.get(name) == text]
        if again:
            yield f"of {', '.join(again)} it is said again what is told instead"
        self._told |= e.results
        # Where no summary can be had, messages stay until there is one.
        wants = self._policy is not None and self._policy.summarize
        self._has_cut = bool(e.call_id) or not wants
        pending = sum(len(result.text) for result in self._view.pending) // BYTES_PER_TOKEN
        self._floor = tokens_in(self._view.messages) + pending
        if self._most is None or not self._has_cut:
            return
        allowed = int(self._most * GROWTH) + tokens_in(self._kept()) + pending + SLACK
        if self._floor > allowed:
            yield f"{self._floor} tokens are left, and {allowed} would be fair"

    @property
    def _most(self) -> int | None:
        return self._policy.max_tokens if self._policy else None

    def _asked(self, e: r.ModelStarted) -> Iterator[str]:
        messages = self._view.messages
        if self._first and not any(said_in(each).startswith(self._first) for each in messages):
            yield f"{e.call_id} is asked without the first message"
        if lonely := sorted(results_in(messages) ^ calls_in(messages)):
            yield f"{e.call_id} is sent a call without its result, or the reverse: {lonely}"
        if self._most is None or not self._has_cut:
            return
        size = tokens_in(messages)
        # What had to be left when the view was last cut counts until it has grown from that: a
        # result that was the last one then may be an older one by now.
        allowed = int(max(self._most, self._floor) * GROWTH) + tokens_in(self._kept()) + SLACK
        if size > allowed:
            yield f"{e.call_id} is sent {size} tokens, and {allowed} would be fair"

    def _kept(self) -> list[Message]:
        """Return what is never left out: the first message, the open turn's, the last results."""
        view, began = self._view, set(self._view.began)
        pairs = zip(view.messages, view.offsets, strict=True)
        kept = [message for message, offset in pairs if offset in began]
        results = [each for each in view.messages if isinstance(each, ToolOutputs)]
        return [*view.messages[:1], *kept, *results[-1:]]


def said_in(message: Message) -> str:
    return text_of(message.content) if isinstance(message, UserMessage) else ""


def results_in(messages: list[Message]) -> set[str]:
    outputs = (each for each in messages if isinstance(each, ToolOutputs))
    return {result.call_id for output in outputs for result in output.results}


def calls_in(messages: list[Message]) -> set[str]:
    answers = (each for each in messages if isinstance(each, ModelAnswer))
    return {part.call_id for each in answers for part in each.parts if isinstance(part, ToolCall)}


def tokens_in(messages: list[Message]) -> int:
    return sum(map(bytes_of, messages)) // BYTES_PER_TOKEN
