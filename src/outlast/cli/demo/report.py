"""What the story came to: a table for people, an object for programs."""

from __future__ import annotations

import shutil
import sys
from statistics import median
from typing import Any

from msgspec import Struct, to_builtins
from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlast.cli.demo.count import DemoCounts
from outlast.cli.demo.plan import Phase
from outlast.cli.demo.story import DemoFiles

PHASES: dict[Phase, str] = {"stream": "mid-sentence", "tool": "mid-tool", "between": "between"}
EFFECTS = {
    "refund": ("refund", "refunds"),
    "call": ("phone call", "phone calls"),
    "letter": ("letter", "letters"),
}
MUST_BE_NONE = ("repeated", "lost")

Row = tuple[str, str, int, str]


class DemoReport(Struct, frozen=True, kw_only=True):
    """A telling's numbers and where to find what they were counted from."""

    seed: int
    planned: int
    seconds: float
    session_id: str
    files: DemoFiles
    tally: DemoCounts

    @property
    def is_good(self) -> bool:
        return not self.tally.broken

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = to_builtins(self.tally)
        return told | {
            "seed": self.seed,
            "kills_planned": self.planned,
            "seconds": round(self.seconds, 1),
            "session_id": self.session_id,
            "store": self.files.store_url,
            "dir": str(self.files.directory),
        }

    def show(self, console: Console) -> None:
        console.print()
        console.print(table(self.tally))
        if self.tally.kills < self.planned:
            late = self.planned - self.tally.kills
            console.print(Text(f"The story was over before the other {late} could strike.", "dim"))
        for row in [*self._verdict(), Text(), *self._files()]:
            console.print(row, highlight=False, soft_wrap=True)

    def _verdict(self) -> list[Text]:
        if not self.is_good:
            wrong = [Text(f"  ✗ {sentence}", "red") for sentence in self.tally.broken]
            return [Text("A promise was broken:", "bold red"), *wrong]
        return [
            Text(f"✓ {kills(self.tally)}, and the job was done exactly once.", "bold green"),
            Text("  Nothing recorded was paid for or done again, and nothing accepted was lost;"),
            Text("  `outlast verify` finds the log and its indexes sound."),
        ]

    def _files(self) -> list[Text]:
        return [
            Text.assemble("The witnesses are in ", (f"{self.files.directory}/", "bold")),
            Text("  outlast.db   the log"),
            Text("  model.jsonl   every request to the model, written by the model"),
            Text("  world.jsonl   every effect, written by the bank, the phone and the post"),
            Text("See for yourself:"),
            Text(f"  cd {self.files.directory}", "cyan"),
            Text(f"  {program()} show {self.session_id}", "cyan"),
            Text(f"  {program()} logs {self.session_id} --internals", "cyan"),
        ]


def program() -> str:
    """Return how to call outlast from anywhere."""
    return "outlast" if shutil.which("outlast") else f"{sys.executable} -m outlast.cli"


def table(tally: DemoCounts) -> Table:
    made = Table(box=ROUNDED, show_header=False, border_style="dim", title_style="bold")
    made.title = f"What {kills(tally)} changed"
    made.add_column(style="bold")
    made.add_column()
    made.add_column(justify="right")
    made.add_column()
    rows = rows_of(tally)
    for row, following in zip(rows, [*rows[1:], ("end", "", 0, "")], strict=True):
        group, name, number, remark = row
        made.add_row(group, name, figure(name, number), remark, end_section=bool(following[0]))
    return made


def rows_of(t: DemoCounts) -> list[Row]:
    return [
        ("workers", "killed", t.kills, phases(t)),
        ("model calls", "paid", t.model_calls_paid, ""),
        ("", "answered", t.model_calls_answered, "recorded, and never asked for again"),
        ("", "cut off", t.model_calls_cut_off, "in flight at a kill: paid, and called again"),
        ("", "repeated", t.model_calls_repeated, "though their answer had been recorded"),
        ("tool runs", "begun", t.tool_runs, ""),
        ("", "cut off", t.tool_runs_cut_off, "each tool says what that means for it"),
        ("effects", "done", t.effects, effects(t)),
        ("", "repeated", t.effects_repeated, asked_again(t)),
        ("deliveries", "sent", t.deliveries_sent, "a job, a follow-up, and what was approved"),
        ("", "settled", t.deliveries_settled, ""),
        ("", "lost", t.deliveries_lost, ""),
        ("takeovers", "", len(t.takeover_ms), takeovers(t)),
    ]


def figure(name: str, number: int) -> Text:
    if name in MUST_BE_NONE:
        return Text(str(number), "bold red" if number else "bold green")
    return Text(str(number), "bold")


def kills(tally: DemoCounts) -> str:
    return "1 kill" if tally.kills == 1 else f"{tally.kills} kills"


def phases(tally: DemoCounts) -> str:
    counted = tally.kills_by_phase
    return ", ".join(f"{counted[phase]} {PHASES[phase]}" for phase in PHASES if phase in counted)


def effects(tally: DemoCounts) -> str:
    counted = tally.effects_by_kind
    return ", ".join(f"{n} {EFFECTS[kind][n != 1]}" for kind, n in counted.items())


def asked_again(tally: DemoCounts) -> str:
    n = tally.effects_asked_again
    return f"the bank knew {n} key{'s' * (n > 1)} again, and paid nothing" if n else ""


def takeovers(tally: DemoCounts) -> str:
    if not tally.takeover_ms:
        return ""
    return f"median {round(median(tally.takeover_ms))} ms, longest {max(tally.takeover_ms)} ms"
