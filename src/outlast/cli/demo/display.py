"""Tells the events of the story in lines that a person reads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from outlast.cli.demo.kill import Kill
from outlast.cli.demo.scenario import DemoProgress
from outlast.cli.demo.timeline import Timeline
from outlast.core.event import Event

YOU = "you"
TOGETHER = 0.03
"""Seconds within which calls that begin again are told in one line."""


class EventDisplay:
    """Knows how each kind of event is told; most are not."""

    def __init__(self, timeline: Timeline, scene: DemoProgress) -> None:
        self._timeline = timeline
        self._scene = scene
        self._goes_on = False
        self._again: list[str] = []

    def tell(self, event: Event) -> None:
        """Tell an event that the scene has seen."""
        scene, data = self._scene, event.data
        if event.type != "tool.started":
            self._tell_again()
        match event.type:
            case "delivery.queued":
                self._arrived(data)
            case "turn.started" if event.turn != "t1":
                self._say("▾", "takes your next message from the queue", "dim")
            case "message.completed":
                self._speak()
                if wanted := calls_of(data):
                    self._say("→", wanted, "dim")
            case "message.aborted" if not data.get("kept"):
                self._goes_on = False
                self._say("↺", "the answer it had begun is dropped and asked for again", "dim")
            case "tool.started" if int(event.attempt_id.rpartition("#")[2]) > 1:
                self._again.append(scene.label(event))
                asyncio.get_running_loop().call_later(TOGETHER, self._tell_again_soon)
            case "tool.completed":
                self._say("✓", f"{scene.label(event)}: {data['value']}", "green")
            case "tool.interrupted" if data.get("final", True):
                told = "nobody knows whether it happened. Not repeated; the model is told"
                self._say("?", f"{scene.label(event)}: {told}", "yellow")
            case "tool.failed" | "turn.failed" | "session.failed":
                self._say("✗", f"{event.type}: {data['error']['message']}", "red")
            case "input.requested":
                self._say("?", question(data), "bold yellow")

    def _tell_again(self) -> None:
        """Tell the calls that were begun again in one line."""
        labels, self._again = self._again, []
        if labels:
            self._say("↻", f"{together(labels)}: {again(labels[0])}", "yellow")

    def _tell_again_soon(self) -> None:
        with suppress(BrokenPipeError):  # who tells the next line will notice
            self._tell_again()

    def killed(self, kill: Kill) -> None:
        self._tell_again()
        if kill.phase == "stream":
            self._goes_on = self._speak("…")
        self._timeline.line(kill.worker, "☠", f"SIGKILL {struck(kill)}", "bold red")

    def taken_over(self, kill: Kill) -> None:
        by = kill.by or self._scene.worker
        self._timeline.line(
            by, "⚑", f"takes over from {kill.worker} after {kill.takeover_ms} ms", "bold"
        )

    def _say(self, mark: str, text: str, style: str = "") -> None:
        self._timeline.line(self._scene.worker, mark, text, style)

    def _speak(self, end: str = "") -> bool:
        said = self._scene.take_said()
        if said:
            self._say("│", f"{'…' if self._goes_on else ''}{said}{end}")
        self._goes_on = False
        return bool(said)

    def _arrived(self, data: Any) -> None:
        if data.get("kind") == "reply":
            self._timeline.line(YOU, "✓", f"{data['option']}", "bold green")
        else:
            text = "".join(part.get("text", "") for part in data["content"])
            waits = " (it is busy: queued)" if self._scene.turn else ""
            self._timeline.line(YOU, "▸", text + waits, "bold")


def calls_of(data: Any) -> str:
    """Return the calls of an answer, those of one tool together."""
    calls: dict[str, list[str]] = {}
    for part in data["parts"]:
        if part["kind"] == "tool_call":
            calls.setdefault(part["tool"], []).append(part["args"])
    return ", ".join(
        f"{tool} ({len(args)})" if len(args) > 1 else tool for tool, args in calls.items()
    )


def together(labels: Sequence[str]) -> str:
    """Return labels in one, with the name of a tool said once."""
    tools: dict[str, list[str]] = {}
    for label in labels:
        tool, _, order = label.partition(" ")
        tools.setdefault(tool, []).append(order)
    return "; ".join(f"{tool} {', '.join(orders)}".strip() for tool, orders in tools.items())


def again(label: str) -> str:
    """Say why it is safe to run a call again."""
    match label.partition(" ")[0]:
        case "refund":
            return "run again, under the same idempotency key"
        case "post_letter":
            return "first asks the post office whether it was posted"
        case "ring_carrier":
            return "rung again, as approved"
    return "run again, it only reads"


def question(data: Any) -> str:
    if data["tool"] == "refund":
        args = data["args"]
        return f"{data['prompt']} {args['order']}, {args['cents'] / 100:.2f} €"
    return str(data["prompt"])


def struck(kill: Kill) -> str:
    match kill.phase:
        case "stream":
            return "in mid-sentence"
        case "tool":
            return f"in mid-tool: {together(kill.running)}"
        case "between":
            return "between two calls: all recorded, the next answer not begun"
