"""Shows the demo on a terminal: a line per event, and below them what happens at this moment."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from outlast.cli.demo.kill import Kill
from outlast.cli.demo.process import WorkerPool
from outlast.cli.demo.progress import DemoProgress
from outlast.clock import Clock
from outlast.core.event import Event

COLOURS = ("cyan", "magenta", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_yellow")
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
INDENT = 14
WIDEST = 100
TICK = 0.08


def colour(worker: str) -> str:
    number = worker.removeprefix("w")
    return COLOURS[(int(number) - 1) % len(COLOURS)] if number.isdigit() else "bold"


class Timeline:
    """Prints lines, and on a terminal keeps the present in view."""

    def __init__(self, console: Console, clock: Clock, kills: int) -> None:
        self._console = console
        self._clock = clock
        self._kills = kills
        self._began = clock.monotonic()
        self._progress: DemoProgress | None = None
        self._workers: WorkerPool | None = None
        self._live = Live(
            get_renderable=self._present,
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._ticker: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        return self._clock.monotonic() - self._began

    @property
    def width(self) -> int:
        return min(self._console.width, WIDEST)

    def follow(self, progress: DemoProgress, workers: WorkerPool) -> None:
        self._progress, self._workers = progress, workers

    async def __aenter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
            self._ticker = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._ticker:
            self._ticker.cancel()
            self._progress = None
            self._live.stop()

    async def _tick(self) -> None:
        while True:
            self._live.refresh()
            await asyncio.sleep(TICK)

    # The past

    def line(self, who: str, mark: str, text: str, style: str = "") -> None:
        """Print what happened; long texts keep their margin."""
        head = Text.assemble(
            (f"{self.seconds:5.1f}s  ", "dim"), (f"{who:<4}", colour(who)), (f"{mark} ", style)
        )
        rows = Text(text, style).wrap(self._console, self.width - INDENT)
        for row in rows:
            row.rstrip()
            self._console.print(head + row, soft_wrap=True, highlight=False)
            head = Text(" " * (INDENT - 2)) + Text("  ")

    # The present

    def _present(self) -> Group:
        if self._progress is None or self._workers is None:
            return Group()
        rows = [*self._speech(self._progress), *self._tools(self._progress)]
        return Group(*rows, Rule(style="dim"), self._footer(self._progress, self._workers))

    def _speech(self, progress: DemoProgress) -> list[Text]:
        if not progress.said:
            return []
        text = Text(progress.said + "▌").wrap(self._console, self.width - INDENT)
        margin = Text(" " * 8)
        who = Text.assemble((f"{progress.worker:<4}", colour(progress.worker)), "│ ")
        blank = Text(" " * 4 + "│ ")
        return [margin + (who if row is text[0] else blank) + row for row in text]

    def _tools(self, progress: DemoProgress) -> list[Text]:
        if not progress.running:
            return []
        frame = SPINNER[int(self.seconds / TICK) % len(SPINNER)]
        row = Text(" " * 8)
        row.append(f"{progress.worker:<4}", colour(progress.worker))
        row.append("   ".join(f"{frame} {label}" for label in progress.running.values()))
        row.truncate(self.width, overflow="ellipsis")
        return [row]

    def _footer(self, progress: DemoProgress, workers: WorkerPool) -> Text:
        processes = list(workers.processes.values())
        dead = sum(process.is_killed for process in processes)
        row = Text(f" {self.seconds:5.1f}s  ", "dim")
        row.append(f"☠ {dead} of {self._kills}", "bold red")
        for process in processes[-4:]:
            row.append("   ")
            if process.is_killed:
                row.append(f"{process.name} ☠", "dim strike")
            elif process.name == progress.worker:
                row.append(f"{process.name} ● works", colour(process.name))
            else:
                state = "○ stands by" if process.is_ready else "◌ starts"
                row.append(f"{process.name} {state}", "dim")
        return row


YOU = "you"
TOGETHER = 0.03
"""Seconds within which calls that begin again are told in one line."""


class EventDisplay:
    """Turns events into lines; most kinds are not shown."""

    def __init__(self, timeline: Timeline, progress: DemoProgress) -> None:
        self._timeline = timeline
        self._progress = progress
        self._goes_on = False
        self._again: list[str] = []

    def tell(self, event: Event) -> None:
        """Show an event that the progress has seen."""
        progress, data = self._progress, event.data
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
                self._again.append(progress.label(event))
                asyncio.get_running_loop().call_later(TOGETHER, self._tell_again_soon)
            case "tool.completed":
                self._say("✓", f"{progress.label(event)}: {data['value']}", "green")
            case "tool.interrupted" if data.get("final", True):
                told = "nobody knows whether it happened. Not repeated; the model is told"
                self._say("?", f"{progress.label(event)}: {told}", "yellow")
            case "tool.failed" | "turn.failed" | "session.failed":
                self._say("✗", f"{event.type}: {data['error']['message']}", "red")
            case "request.opened":
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
        self._timeline.line(kill.worker, "☠", f"SIGKILL {place_of(kill)}", "bold red")

    def taken_over(self, kill: Kill) -> None:
        by = kill.by or self._progress.worker
        self._timeline.line(
            by, "⚑", f"takes over from {kill.worker} after {kill.takeover_ms} ms", "bold"
        )

    def _say(self, mark: str, text: str, style: str = "") -> None:
        self._timeline.line(self._progress.worker, mark, text, style)

    def _speak(self, end: str = "") -> bool:
        said = self._progress.take_said()
        if said:
            self._say("│", f"{'…' if self._goes_on else ''}{said}{end}")
        self._goes_on = False
        return bool(said)

    def _arrived(self, data: Any) -> None:
        if data.get("kind") == "reply":
            self._timeline.line(YOU, "✓", f"{data['option']}", "bold green")
        else:
            text = "".join(part.get("text", "") for part in data["content"])
            waits = " (it is busy: queued)" if self._progress.turn else ""
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
        case "ring_freight":
            return "rung again, as approved"
    return "run again, it only reads"


def question(data: Any) -> str:
    if data["tool"] == "refund":
        args = data["args"]
        return f"{data['prompt']} {args['order']}, {args['cents'] / 100:.2f} €"
    return str(data["prompt"])


def place_of(kill: Kill) -> str:
    match kill.phase:
        case "stream":
            return "in mid-sentence"
        case "tool":
            return f"in mid-tool: {together(kill.running)}"
        case "between":
            return "between two calls: all recorded, the next answer not begun"
