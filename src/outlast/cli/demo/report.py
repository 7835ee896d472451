"""Counts a run from the log and the files outside it: a table for people, JSON for programs.

Owns what the demo claims at its end, and that each number is read after all kills, from what is
left. What is shown meanwhile is `display.py`'s affair.
"""

import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any, TypeVar

from msgspec import Struct, to_builtins
from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlast.cli.demo.effect import DemoEffect, DemoFiles, ModelAsked
from outlast.cli.demo.kill import Kill
from outlast.cli.demo.progress import Phase
from outlast.core import record as r

Fact = TypeVar("Fact")
WANTED = {"refund": 4, "call": 1, "letter": 4}


class DemoCounts(Struct, frozen=True, kw_only=True):
    """The numbers of one run.

    A model call is cut off if its worker died before the answer was recorded, and repeated if
    it was made although the answer had been recorded. `asked_again` counts requests to the
    bank that it knew by their key and did not do again.
    """

    kills: int
    kills_by_phase: dict[str, int]
    model_calls_paid: int
    model_calls_answered: int
    model_calls_cut_off: int
    model_calls_repeated: int
    tool_runs: int
    tool_runs_cut_off: int
    effects: int
    effects_by_kind: dict[str, int]
    effects_repeated: int
    effects_asked_again: int
    deliveries_sent: int
    deliveries_settled: int
    deliveries_lost: int
    takeover_ms: list[int]
    takeovers_missing: int
    broken: list[str]


def count(
    entries: Sequence[r.Entry],
    asked: Sequence[ModelAsked],
    effects: Sequence[DemoEffect],
    kills: Sequence[Kill],
    receipts: Sequence[str],
    findings: Sequence[str] = (),
) -> DemoCounts:
    """Count everything, and say in sentences which promises were not kept.

    `findings` are what a check of the log and its indexes found wrong.
    """
    answers = {e.call_id: (e.attempt, at) for at, e in of_kind(entries, r.MessageCompleted)}
    repeated = [a for a in asked if a.call_id in answers and a.at >= answers[a.call_id][1]]
    cut_off = [a for a in asked if a.attempt != answers.get(a.call_id, (0, 0))[0]]
    done = Counter((e.what, e.subject) for e in effects if e.done)
    settled = Counter(e.delivery_id for _, e in of_kind(entries, r.DeliverySettled))
    runs, ends = runs_of(entries)
    kinds = Counter(what for what, _ in done)
    counts = DemoCounts(
        kills=len(kills),
        kills_by_phase=dict(Counter(kill.phase for kill in kills)),
        model_calls_paid=len(asked),
        model_calls_answered=len(answers),
        model_calls_cut_off=len([a for a in cut_off if a not in repeated]),
        model_calls_repeated=len(repeated),
        tool_runs=len(runs),
        tool_runs_cut_off=len(runs - ends),
        effects=len(done),
        effects_by_kind=dict(kinds),
        effects_repeated=done.total() - len(done),
        effects_asked_again=sum(not e.done for e in effects),
        deliveries_sent=len(receipts),
        deliveries_settled=sum(settled[receipt] for receipt in receipts),
        deliveries_lost=sum(not settled[receipt] for receipt in receipts),
        takeover_ms=[kill.takeover_ms for kill in kills if kill.takeover_ms is not None],
        takeovers_missing=sum(kill.held and kill.takeover_ms is None for kill in kills),
        broken=[],
    )
    counts.broken.extend([*broken(counts), *findings])
    return counts


def of_kind(entries: Sequence[r.Entry], kind: type[Fact]) -> list[tuple[int, Fact]]:
    return [(entry.at, entry.record) for entry in entries if isinstance(entry.record, kind)]


Run = tuple[str, int]


def runs_of(entries: Sequence[r.Entry]) -> tuple[set[Run], set[Run]]:
    """Return the attempts at tool calls that began, and those whose outcome was recorded."""
    runs = {(e.call_id, e.attempt) for _, e in of_kind(entries, r.ToolStarted)}
    completed = {(e.call_id, e.attempt) for _, e in of_kind(entries, r.ToolCompleted)}
    failed = {(e.call_id, e.attempt) for _, e in of_kind(entries, r.ToolFailed)}
    return runs, completed | failed


def broken(counts: DemoCounts) -> list[str]:
    """Return a sentence for each promise that was not kept."""
    wrong = []
    if counts.model_calls_repeated:
        wrong.append(f"{counts.model_calls_repeated} recorded model calls were paid for again")
    if counts.effects_repeated:
        wrong.append(f"{counts.effects_repeated} effects happened more than once")
    if counts.effects_by_kind != WANTED:
        wrong.append(f"the job was not done: {counts.effects_by_kind} instead of {WANTED}")
    if counts.deliveries_lost:
        wrong.append(f"{counts.deliveries_lost} accepted deliveries were lost")
    if counts.deliveries_settled > counts.deliveries_sent - counts.deliveries_lost:
        wrong.append("a delivery was settled more than once")
    if counts.takeovers_missing:
        wrong.append("a killed worker's lane was never taken over")
    if counts.model_calls_cut_off > counts.kills:
        wrong.append("more model calls were cut off than workers were killed")
    return wrong


PHASES: dict[Phase, str] = {"stream": "mid-sentence", "tool": "mid-tool", "between": "between"}
EFFECTS = {
    "refund": ("refund", "refunds"),
    "call": ("phone call", "phone calls"),
    "letter": ("letter", "letters"),
}
MUST_BE_NONE = ("repeated", "lost")

Row = tuple[str, str, int, str]


class DemoReport(Struct, frozen=True, kw_only=True):
    """A run's numbers and the files that they were counted from."""

    seed: int
    planned: int
    seconds: float
    session_id: str
    files: DemoFiles
    counts: DemoCounts

    @property
    def is_good(self) -> bool:
        return not self.counts.broken

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = to_builtins(self.counts)
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
        console.print(table(self.counts))
        if self.counts.kills < self.planned:
            late = self.planned - self.counts.kills
            console.print(Text(f"The session was over before the other {late} kills.", "dim"))
        for row in [*self._verdict(), Text(), *self._files()]:
            console.print(row, highlight=False, soft_wrap=True)

    def _verdict(self) -> list[Text]:
        if not self.is_good:
            wrong = [Text(f"  ✗ {sentence}", "red") for sentence in self.counts.broken]
            return [Text("A promise was broken:", "bold red"), *wrong]
        return [
            Text(f"✓ {kills(self.counts)}, and the job was done exactly once.", "bold green"),
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
    """Return how to call the command line from anywhere."""
    return "outlast" if shutil.which("outlast") else f"{sys.executable} -m outlast.cli"


def table(counts: DemoCounts) -> Table:
    made = Table(box=ROUNDED, show_header=False, border_style="dim", title_style="bold")
    made.title = f"What {kills(counts)} changed"
    made.add_column(style="bold")
    made.add_column()
    made.add_column(justify="right")
    made.add_column()
    rows = rows_of(counts)
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


def kills(counts: DemoCounts) -> str:
    return "1 kill" if counts.kills == 1 else f"{counts.kills} kills"


def phases(counts: DemoCounts) -> str:
    counted = counts.kills_by_phase
    return ", ".join(f"{counted[phase]} {PHASES[phase]}" for phase in PHASES if phase in counted)


def effects(counts: DemoCounts) -> str:
    counted = counts.effects_by_kind
    return ", ".join(f"{n} {EFFECTS[kind][n != 1]}" for kind, n in counted.items())


def asked_again(counts: DemoCounts) -> str:
    n = counts.effects_asked_again
    return f"the bank knew {n} key{'s' * (n > 1)} again, and paid nothing" if n else ""


def takeovers(counts: DemoCounts) -> str:
    if not counts.takeover_ms:
        return ""
    return f"median {round(median(counts.takeover_ms))} ms, longest {max(counts.takeover_ms)} ms"
