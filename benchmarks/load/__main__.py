"""Measure how late the readers of one server are, alone and beside strangers.

First with many readers, spread over the sessions and all at one; then with a few honest sessions
alone, and with the same beside connections that say nothing and readers that do not read, in turn
and several times: one pause of the machine is one hundredth of one round's events.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
from pathlib import Path

from benchmarks.load.party import raise_limit
from benchmarks.load.run import Load, Measured, run, summary
from benchmarks.report import number

USUAL = Load()


HONEST, IDLE, SLOW, ROUNDS = 50, 1000, 200, 3
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
    help = f"how often the few are measured, alone and beside strangers in turn ({ROUNDS})"
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=help)
    help = "measure one part alone"
    parser.add_argument("--only", choices=("readers", "strangers"), help=help)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here too")
    parser.add_argument("--directory", type=Path, help="where the database goes (the system's tmp)")
    return parser.parse_args()


def main() -> None:
    chosen = parse()
    raise_limit()
    gc.disable()  # what stops the readers is not what is measured
    found: dict[str, dict[str, float]] = {}
    pace = {"tokens": chosen.tokens, "pace": chosen.pace}
    if chosen.only != "strangers":
        many = {"readers": chosen.readers, "sessions": chosen.sessions, **pace}
        title = f"{chosen.readers:,} readers"
        spread = {f"{title}, spread over the sessions": Load(**many)}
        at_one = {f"{title}, all at one session": Load(**many, at_one=True)}
        found |= measure(spread, 1, chosen.directory) | measure(at_one, 1, chosen.directory)
    if chosen.only != "readers":
        alone = f"{chosen.honest:,} sessions with a reader each"
        beside = f"{alone}, beside {chosen.idle:,} idle strangers and {chosen.slow:,} slow readers"
        few = {"readers": chosen.honest, "sessions": chosen.honest, **pace}
        both = {alone: Load(**few), beside: Load(**few, idle=chosen.idle, slow=chosen.slow)}
        found |= measure(both, chosen.rounds, chosen.directory)
        times = found[beside][P99] / found[alone][P99]
        print(f"p99 of the honest sessions beside strangers: {times:.2f} times (goal: {GOAL:g})")
        found["beside strangers"] = {"times": times, "goal": GOAL}
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")


def measure(
    loads: dict[str, Load], rounds: int, directory: Path | None
) -> dict[str, dict[str, float]]:
    """Run loads in turn, so often, and print what was found."""
    runs: dict[str, list[Measured]] = {title: [] for title in loads}
    for _ in range(rounds):
        for title, load in loads.items():
            with tempfile.TemporaryDirectory(prefix="outlast-load-", dir=directory) as place:
                runs[title].append(asyncio.run(run(load, Path(place))))
    found = {title: summary(each) for title, each in runs.items()}
    for title, values in found.items():
        print(f"{title}:")
        for name, value in values.items():
            print(f"  {name:<40} {number(value):>8}", flush=True)
    return found


if __name__ == "__main__":
    main()
