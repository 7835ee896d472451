"""Measure how late the readers of one server are, alone and beside strangers.

First with many readers, spread over the sessions and all at one; then with a few honest sessions
alone, and with the same beside connections that say nothing and readers that do not read.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
from pathlib import Path

from benchmarks.load.party import raise_limit
from benchmarks.load.run import Load, run
from benchmarks.report import number

USUAL = Load()


HONEST, IDLE, SLOW = 50, 1000, 200
P99 = "commit to reader, p99 (ms)"
GOAL = 2.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    for name in ("readers", "sessions", "tokens"):
        default = getattr(USUAL, name)
        parser.add_argument(f"--{name}", type=int, default=default, help=f"({default})")
    help = f"seconds between two words of a session ({USUAL.pace})"
    parser.add_argument("--pace", type=float, default=USUAL.pace, help=help)
    help = f"sessions beside strangers, each with one reader ({HONEST})"
    parser.add_argument("--honest", type=int, default=HONEST, help=help)
    help = f"connections that say nothing ({IDLE})"
    parser.add_argument("--idle", type=int, default=IDLE, help=help)
    help = f"readers that do not read ({SLOW})"
    parser.add_argument("--slow", type=int, default=SLOW, help=help)
    help = "measure one part alone"
    parser.add_argument("--only", choices=("readers", "strangers"), help=help)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here too")
    parser.add_argument("--directory", type=Path, help="where the database goes (the system's tmp)")
    return parser.parse_args()


def main() -> None:
    chosen = parse()
    raise_limit()
    gc.disable()  # what stops the readers is not what is measured
    loads: dict[str, Load] = {}
    pace = {"tokens": chosen.tokens, "pace": chosen.pace}
    if chosen.only != "strangers":
        many = {"readers": chosen.readers, "sessions": chosen.sessions, **pace}
        title = f"{chosen.readers:,} readers"
        loads[f"{title}, spread over the sessions"] = Load(**many)
        loads[f"{title}, all at one session"] = Load(**many, at_one=True)
    alone = f"{chosen.honest:,} sessions with a reader each"
    beside = f"{alone}, beside {chosen.idle:,} idle strangers and {chosen.slow:,} slow readers"
    if chosen.only != "readers":
        few = {"readers": chosen.honest, "sessions": chosen.honest, **pace}
        loads[alone] = Load(**few)
        loads[beside] = Load(**few, idle=chosen.idle, slow=chosen.slow)
    found = {title: measure(title, load, chosen.directory) for title, load in loads.items()}
    if beside in found:
        times = found[beside][P99] / found[alone][P99]
        print(f"p99 of the honest sessions beside strangers: {times:.2f} times (goal: {GOAL:g})")
        found["beside strangers"] = {"times": times, "goal": GOAL}
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")


def measure(title: str, load: Load, directory: Path | None) -> dict[str, float]:
    """Run a load and print what was found."""
    with tempfile.TemporaryDirectory(prefix="outlast-load-", dir=directory) as place:
        found = asyncio.run(run(load, Path(place)))
    print(f"{title}:")
    for name, value in found.items():
        print(f"  {name:<40} {number(value):>8}", flush=True)
    return found


if __name__ == "__main__":
    main()
