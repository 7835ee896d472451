"""What was found, as a table for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.workload import Found

HEADINGS = ("workload", "measure", "median", "unit", "goal", "met", "repeats")
VERDICTS = {True: "yes", False: "NO", None: ""}


def machine(found: Sequence[Found]) -> dict[str, Any]:
    """Describe the machine in general terms: nothing that names it."""
    return {
        "system": platform.system(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "python": platform.python_version(),
        **{each.place.store: each.place.version for each in found},
    }


def as_json(found: Sequence[Found], *, quick: bool, repeats: int) -> dict[str, Any]:
    return {
        "machine": machine(found),
        "quick": quick,
        "repeats": repeats,
        "workloads": [each.as_json() for each in found],
    }


def number(value: float) -> str:
    """Write a number with three digits that matter."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def lines(found: Sequence[Found]) -> list[tuple[str, ...]]:
    return [
        (
            each.name if place == 0 else "",
            row["name"],
            number(row["median"]),
            row["unit"],
            row["goal"],
            VERDICTS[row["met"]],
            " ".join(number(value) for value in row["values"]),
        )
        for each in found
        for place, row in enumerate(each.rows)
    ]


def show(found: Sequence[Found]) -> None:
    """Print a table: with rich on a terminal, in plain columns elsewhere."""
    for each in found:
        print(f"{each.name}: {each.workload.about}")
    print()
    if sys.stdout.isatty():
        show_rich(lines(found))
    else:
        show_plain([HEADINGS, *lines(found)])


def show_plain(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def show_rich(rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(*HEADINGS)
    for row in rows:
        style = {"yes": "green", "NO": "bold red"}.get(row[5])
        table.add_row(*row, style=style, end_section=False)
    Console().print(table)
