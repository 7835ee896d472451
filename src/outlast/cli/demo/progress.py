"""The demo's progress, folded from the session's events: who works, what runs, what was said.

Knows only what any reader of the stream is given. `display.py` shows it, and `kill.py` looks here
for the moment to kill a worker.
"""

from typing import Any, Literal

from outlast.core.event import Event

Phase = Literal["between", "stream", "tool"]

ENDS = {"tool.completed", "tool.failed", "tool.interrupted", "tool.denied"}


class DemoProgress:
    """A fold of the events, kept by a reader that knows no more than any other."""

    def __init__(self) -> None:
        self.offset = 0
        self.worker = ""
        self.turn = 0
        self.step = 0
        self.said = ""
        self.deltas = 0
        self.asking = False
        self.running: dict[str, str] = {}
        self.labels: dict[str, str] = {}
        self.sent: set[str] = set()
        self.settled: set[str] = set()

    @property
    def phase(self) -> Phase | None:
        """Return what a kill would interrupt now, if anything."""
        if self.asking:
            return "stream" if self.deltas else "between"
        return "tool" if self.running else None

    @property
    def is_over(self) -> bool:
        """Whether all that was sent has been settled."""
        return self.sent <= self.settled

    def take_said(self) -> str:
        """Return what was said since this was asked last."""
        said, self.said = self.said, ""
        return said

    def label(self, event: Event) -> str:
        return self.labels.get(event.call_id, event.call_id)

    def see(self, event: Event) -> None:
        self.offset = event.offset
        if event.turn and event.step:
            self.turn, self.step = int(event.turn.removeprefix("t")), event.step
        match event.type:
            case "model.started":
                self.asking, self.deltas = True, 0
            case "message.aborted" if not event.data.get("kept"):
                self.said = ""
            case "message.delta":
                self.said += event.data.get("text", "")
                self.deltas += 1
            case "message.completed":
                self.asking = False
            case "tool.requested":
                self.labels[event.call_id] = label(event.data["tool"], event.data["args"])
            case "tool.started":
                self.running[event.call_id] = self.label(event)
            case "lane.taken_over":
                self.asking, self.worker = False, event.data["worker"]
                self.running.clear()
            case "delivery.queued":
                self.sent.add(event.delivery_id)
            case "delivery.settled":
                self.settled.add(event.delivery_id)
            case ended if ended in ENDS:
                self.running.pop(event.call_id, None)


def label(tool: str, args: dict[str, Any]) -> str:
    return f"{tool} {args['order']}" if "order" in args else tool
