"""A conversation as it is shown while it happens: words as they come, calls on a line each.

Owns what stands on the screen already. Which events there are, and when a human is asked, is
`conversation.py`'s affair; a single event in a few words is `event_line.py`'s.
"""

from collections.abc import Callable
from typing import Any

from outlast.cli.terminal.event_line import (
    failure_text,
    next_try,
    parts_text,
    refused,
    value_text,
)
from outlast.cli.terminal.output import is_terminal, json_line, one_line, out, write
from outlast.core.event import Event
from outlast.core.visible import escaped
from outlast.session.request import call_text

LONGEST_NOTICE = 1000
OVER = ("session.completed", "session.failed", "session.ended")


class Transcript:
    """Prints events. Knows where on the line it is, and what it has streamed."""

    def __init__(self, *, as_json: bool) -> None:
        self.has_failed = False
        self.is_over = False
        self._as_json = as_json
        self._is_mid_line = False
        self._streamed: set[str] = set()
        self._tools: dict[str, str] = {}
        self._said_here: set[str] = set()

    def said_here(self, delivery_id: str) -> None:
        """Note a message of our own, which need not be shown again."""
        self._said_here.add(delivery_id)

    def show(self, event: Event) -> None:
        """Print an event for a reader."""
        if self._as_json:
            print(json_line(event), flush=True)
        elif step := SHOWN.get(event.type):
            step(self, event)
        self.has_failed = event.type == "turn.failed" or (
            self.has_failed and event.type != "turn.started"
        )
        self.is_over = self.is_over or event.type in OVER

    def line(self, text: str, style: str = "dim") -> None:
        """Print a line of its own."""
        if not self._as_json:
            self.end_line()
            out(text, style)

    def prompt(self) -> None:
        """Show the user at a terminal that it is their turn."""
        if is_terminal() and not self._as_json:
            self.end_line()
            write("> ", "bold cyan")

    def end_line(self) -> None:
        if self._is_mid_line:
            print(flush=True)
        self._is_mid_line = False

    def _delta(self, event: Event) -> None:
        if text := event.data.get("text", ""):
            self._streamed.add(event.attempt_id)
            self._write(text)

    def _reasoning(self, event: Event) -> None:
        if is_terminal():
            self._write(event.data["text"], "dim italic")

    def _write(self, text: str, style: str = "") -> None:
        write(text, style)
        self._is_mid_line = not text.endswith("\n")

    def _completed(self, event: Event) -> None:
        words = [part for part in event.data["parts"] if part["kind"] == "text"]
        if event.attempt_id not in self._streamed and (text := parts_text(words)):
            self.end_line()
            self._write(text)
        self.end_line()

    def _aborted(self, event: Event) -> None:
        if not event.data.get("kept"):
            self.line("(cut off; once more)")

    def _requested(self, event: Event) -> None:
        self._tools[event.call_id] = event.data["tool"]
        if event.data.get("output"):
            self.line(json_line(event.data["args"]), "")
        else:
            self.line(f"-> {one_line(call_text(event.data['tool'], event.data['args']))}")

    def _returned(self, event: Event) -> None:
        value = event.data.get("message") or value_text(event.data.get("value"))
        if event.data.get("value") != "accepted" or event.attempt_id:
            self._outcome(event, value)

    def _failed(self, event: Event) -> None:
        again = "; again soon" if event.data.get("again_at") else ""
        self._outcome(event, f"{failure_text(event.data['error'])}{again}")

    def _stopped(self, event: Event) -> None:
        how = event.type.partition(".")[2]
        self._outcome(event, f"{how}: {event.data.get('reason', '')}")

    def _sign_in(self, event: Event) -> None:
        where = escaped(event.data["url"])
        self.line(f"sign in to {one_line(event.data['connection'])}: {where}", "yellow")

    def _outcome(self, event: Event, text: str) -> None:
        tool = self._tools.get(event.call_id, event.call_id)
        self.line(f"<- {tool}: {one_line(text)}")

    def _queued(self, event: Event) -> None:
        if event.delivery_id not in self._said_here and (content := event.data.get("content")):
            self.line(f"> {one_line(parts_text(content))}", "cyan")

    def _settled(self, event: Event) -> None:
        if event.data["outcome"] == "cancelled" and not event.turn:  # before its turn began
            self.line("(cancelled)")

    def _turn_failed(self, event: Event) -> None:
        self.line(f"failed: {failure_text(event.data['error'])}", "red")

    def _turn_cancelled(self, event: Event) -> None:
        self.line("(cancelled)")

    def _over(self, event: Event) -> None:
        self.line(f"(the session is {event.type.partition('.')[2]})")

    def _retrying(self, event: Event) -> None:
        self.line(f"({failure_text(event.data['error'])}; trying again)")

    def _switched(self, event: Event) -> None:
        name, why = one_line(event.data["model"]), failure_text(event.data["error"])
        self.line(f"({why}; asking {name} instead)")

    def _feedback(self, event: Event) -> None:
        self.line(one_line(f"(feedback, {event.data['name']}: {event.data['text']})"))

    def _refused(self, event: Event) -> None:
        self.line(one_line(f"(not done yet: {refused(event.data)})"))

    def _milestone(self, event: Event) -> None:
        about = f": {event.data['title']}" if event.data.get("title") else ""
        self.line(one_line(f"(milestone{about})"))

    def _restarted(self, event: Event) -> None:
        self.line("(interrupted; it goes on from the last milestone)")

    def _compacted(self, event: Event) -> None:
        before, tokens = event.data["before"], event.data["tokens"]
        self.line(f"(the model sees {tokens:,} tokens of this from here on, and not {before:,})")

    def _unavailable(self, event: Event) -> None:
        error, again = failure_text(event.data["error"]), next_try(event.data)
        self.line(one_line(f"(waiting for the provider: {error}; {again})", LONGEST_NOTICE))

    def _available(self, event: Event) -> None:
        self.line("(the provider answers again)")


SHOWN: dict[str, Callable[[Transcript, Any], None]] = {
    "message.delta": Transcript._delta,
    "reasoning.delta": Transcript._reasoning,
    "message.completed": Transcript._completed,
    "message.aborted": Transcript._aborted,
    "tool.requested": Transcript._requested,
    "tool.completed": Transcript._returned,
    "tool.failed": Transcript._failed,
    "tool.denied": Transcript._stopped,
    "tool.interrupted": Transcript._stopped,
    "authorization.required": Transcript._sign_in,
    "delivery.queued": Transcript._queued,
    "delivery.settled": Transcript._settled,
    "turn.failed": Transcript._turn_failed,
    "turn.cancelled": Transcript._turn_cancelled,
    "session.completed": Transcript._over,
    "session.failed": Transcript._over,
    "session.ended": Transcript._over,
    "model.retrying": Transcript._retrying,
    "model.switched": Transcript._switched,
    "feedback.given": Transcript._feedback,
    "completion.refused": Transcript._refused,
    "milestone.reached": Transcript._milestone,
    "context.restarted": Transcript._restarted,
    "compaction.completed": Transcript._compacted,
    "provider.unavailable": Transcript._unavailable,
    "provider.available": Transcript._available,
}
