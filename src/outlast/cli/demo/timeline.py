"""The story as lines on a screen, with what is going on right now beneath them.

On a terminal the last rows live; in a pipe there are only the lines.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from outlast.cli.demo.process import WorkerPool
from outlast.cli.demo.scenario import DemoProgress
from outlast.clock import Clock

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
        self._scene: DemoProgress | None = None
        self._stage: WorkerPool | None = None
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

    def follow(self, scene: DemoProgress, stage: WorkerPool) -> None:
        self._scene, self._stage = scene, stage

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
            self._scene = None
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
        if self._scene is None or self._stage is None:
            return Group()
        rows = [*self._speech(self._scene), *self._tools(self._scene)]
        return Group(*rows, Rule(style="dim"), self._footer(self._scene, self._stage))

    def _speech(self, scene: DemoProgress) -> list[Text]:
        if not scene.said:
            return []
        text = Text(scene.said + "▌").wrap(self._console, self.width - INDENT)
        margin = Text(" " * 8)
        who = Text.assemble((f"{scene.worker:<4}", colour(scene.worker)), "│ ")
        blank = Text(" " * 4 + "│ ")
        return [margin + (who if row is text[0] else blank) + row for row in text]

    def _tools(self, scene: DemoProgress) -> list[Text]:
        if not scene.running:
            return []
        frame = SPINNER[int(self.seconds / TICK) % len(SPINNER)]
        row = Text(" " * 8)
        row.append(f"{scene.worker:<4}", colour(scene.worker))
        row.append("   ".join(f"{frame} {label}" for label in scene.running.values()))
        row.truncate(self.width, overflow="ellipsis")
        return [row]

    def _footer(self, scene: DemoProgress, stage: WorkerPool) -> Text:
        players = list(stage.players.values())
        dead = sum(player.is_killed for player in players)
        row = Text(f" {self.seconds:5.1f}s  ", "dim")
        row.append(f"☠ {dead} of {self._kills}", "bold red")
        for player in players[-4:]:
            row.append("   ")
            if player.is_killed:
                row.append(f"{player.name} ☠", "dim strike")
            elif player.name == scene.worker:
                row.append(f"{player.name} ● works", colour(player.name))
            else:
                state = "○ stands by" if player.is_ready else "◌ starts"
                row.append(f"{player.name} {state}", "dim")
        return row
