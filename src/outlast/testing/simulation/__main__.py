"""`python -m outlast.testing.simulation`: one seed with its trace, or many with a summary."""

import argparse
import os
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from outlast.testing.simulation.fleet import SeedCounts, run_many, run_twice
from outlast.testing.simulation.promise import PROMISES

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    """Simulate; return 1 if a promise was broken."""
    options = parse(sys.argv[1:])
    if options.seed is not None:
        return show_one(options.seed, workflows=options.workflows)
    return show_many(range(options.first, options.first + options.seeds), options.jobs)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m outlast.testing.simulation")
    parser.add_argument("--seed", type=int, help="run this one, and show all that happens")
    parser.add_argument("--workflows", action="store_true", help="of that seed, the workflows")
    parser.add_argument("--seeds", type=int, default=100, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once")
    return parser.parse_args(arguments)


def show_one(seed: int, *, workflows: bool) -> int:
    report = run_twice(seed, workflows=workflows)
    for line in report.trace():
        console.print(Text(line))
    console.print(Text(report.summary()))
    return 1 if report.violations else 0


def show_many(seeds: range, jobs: int) -> int:
    total = SeedCounts()
    with Progress(
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=len(seeds))
        for counts in run_many(seeds, jobs):
            total += counts
            progress.advance(task)
            for failed in counts.failed:
                console.print(Text(failed, style="red"))
    console.print(summary(total))
    broken = f"[red]{len(total.failed)} of {total.seeds} seeds broke a promise[/red]"
    console.print(broken if total.failed else "[green]every promise was kept[/green]")
    return 1 if total.failed else 0


def summary(total: SeedCounts) -> Table:
    table = Table(
        title=f"{total.seeds} seeds, agents and workflows, each run twice", show_header=False
    )
    table.add_column(justify="left")
    table.add_column(justify="right")
    facts = {
        "sessions": total.sessions,
        "commits": total.commits,
        "records": total.records,
        "hours of their own time": round(total.lasted / 3600),
        "promises checked": 2 * len(PROMISES) * total.seeds,
    }
    for name, number in facts.items():
        table.add_row(name, f"{number:,}")
    table.add_section()
    for fault, times in sorted(total.faults.items()):
        table.add_row(fault, f"{times:,}")
    return table


if __name__ == "__main__":
    sys.exit(main())
