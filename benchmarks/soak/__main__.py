"""The command: for how long, how fast and on which databases, and where the numbers go."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.__main__ import PLACES
from benchmarks.report import number
from benchmarks.soak.run import GOAL, Interval, Soak, ratio, run

USUAL = Soak()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    for name, help in (
        ("minutes", "how long, for each database"),
        ("rate", "turns that begin in a second"),
        ("interval", "seconds between two lines of numbers"),
        ("lane_cache", "MiB of lanes that the worker keeps in memory"),
    ):
        usual = getattr(USUAL, name)
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=float, default=usual, help=f"{help} ({usual:g})")
    parser.add_argument("--store", choices=(*PLACES, "both"), default="both", help="(both)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here too")
    parser.add_argument("--directory", type=Path, help="where the databases go (the system's tmp)")
    return parser.parse_args()


def main() -> None:
    chosen = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server must not outlive us
    soak = Soak(
        minutes=chosen.minutes,
        rate=chosen.rate,
        interval=chosen.interval,
        lane_cache=chosen.lane_cache,
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for store in PLACES if chosen.store == "both" else [chosen.store]:
        new = tempfile.TemporaryDirectory(prefix="outlast-soak-", dir=chosen.directory)
        with new as directory:
            Path(directory).chmod(0o755)  # where we are root, PostgreSQL is somebody else
            with PLACES[store](Path(directory)) as place:
                print(f"{store}: {soak.rate:g} turns a second for {soak.minutes:g} minutes")
                with place.database("floor").floor() as floor:
                    intervals = asyncio.run(run(soak, place.database("soak"), floor, show))
        if not intervals:
            sys.exit(f"{store}: no turn ended in {soak.minutes:g} minutes")
        tell(intervals)
        found[store] = [interval.row() for interval in intervals]
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")


def show(interval: Interval, is_first: bool) -> None:
    """Print what an interval was like, under headings at first."""
    row = interval.row()
    if is_first:
        print("  ".join(name.rjust(max(len(name), 8)) for name in row))
    cells = (number(value).rjust(max(len(name), 8)) for name, value in row.items())
    print("  ".join(cells), flush=True)


def tell(intervals: Sequence[Interval]) -> None:
    """Print what the whole comes to, and whether the goal was kept."""
    spread = ratio([took for interval in intervals for took in interval.latencies])
    by_hand = ratio([took for interval in intervals for took in interval.by_hand])
    first, last = intervals[0], intervals[-1]
    print(f"memory: {last.memory - first.memory:+.1f} MiB from the first interval to the last")
    print(f"descriptors: {last.descriptors - first.descriptors:+d}")
    print(f"p50: {last.p50 / first.p50:.2f} of the first interval's in the last")
    print(f"p99: {last.p99 / first.p99:.2f} of the first interval's in the last")
    verdict = "kept" if spread <= GOAL else "NOT KEPT"
    print(f"p99 of a turn within {GOAL:g} times its median: {spread:.2f}, {verdict}")
    print(f"as many commits by hand, between the turns: {by_hand:.2f}\n", flush=True)


if __name__ == "__main__":
    main()
