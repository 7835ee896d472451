"""Chaos on a terminal: how far it is, and what it came to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from chaos.report import Report
from chaos.run import Look, Progress, Settings
from chaos.takeover import Takeovers

SHOWN = 5
"""So many findings of a check are shown; all are in the JSON."""


@contextmanager
def watching(console: Console, settings: Settings) -> Iterator[Look]:
    """Show how far a run is, where somebody looks on."""
    with console.status(f"{settings.store}: starting") as status:

        def look(progress: Progress) -> None:
            status.update(
                f"{settings.store}: {progress.phase}, {progress.started} of {settings.sessions}"
                f" sessions started, {progress.at_rest} at rest, {progress.faults} faults"
            )

        yield look


def show(console: Console, report: Report) -> None:
    """Show the numbers, then what was found wrong."""
    table = Table(title=f"chaos on {report.store}, seed {report.seed}", show_header=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    for name, value in rows(report):
        table.add_row(name, value)
    console.print(table)
    for name, found in report.findings.items():
        mark = Text("broken" if found else "kept  ", style="red" if found else "green")
        console.print(mark, Text(name))
        for text in found[:SHOWN]:
            console.print(Text(f"         {text}"))


def rows(report: Report) -> Iterator[tuple[str, str]]:
    for name in ("sessions", "deliveries", "calls", "begun", "commits"):
        yield name, f"{getattr(report, name):,}"
    yield from ((f"{kind}s", f"{times:,}") for kind, times in report.faults.items())
    yield "of those longer than leases allow", f"{report.outlasted:,}"
    yield "takeovers", f"{report.takeovers:,}"
    if report.takeover_median is not None:
        yield "after a kill, median", f"{report.takeover_median:.2f} s"
        yield "after a kill, at most", f"{report.takeover_max:.2f} s"
    yield "repeats", f"{report.repeats:,}"
    yield "lost", f"{report.lost:,}"
    yield "lasted", f"{report.lasted:.0f} s"


def show_takeovers(console: Console, measured: list[Takeovers]) -> None:
    """Show the medians against their goals."""
    table = Table(title="takeovers, from the blow to the first commit of the heir")
    for name in ("store", "owner", "lease", "median", "at most", "goal", ""):
        table.add_column(name, justify="left" if name in ("store", "owner", "") else "right")
    for one in measured:
        owner = "killed" if one.blow == "kill" else "stands still"
        numbers = (one.lease, one.median, max(one.times), one.goal)
        told = "in time" if one.is_in_time else "[red]too late[/red]"
        table.add_row(one.store, owner, *(f"{number:.2f} s" for number in numbers), told)
    console.print(table)
