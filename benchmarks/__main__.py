"""The command: which workloads to run, how often, and where the numbers go."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import (
    concurrency,
    growth,
    overhead,
    parked,
    peers,
    recovery,
    report,
    startup,
    streaming,
)
from benchmarks.workload import Bench, Found, run

WORKLOADS = {
    module.WORKLOAD.name: module.WORKLOAD
    for module in (overhead, concurrency, growth, streaming, recovery, parked, startup, peers)
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here too")
    parser.add_argument("--repeats", type=int, default=3, help="medians are over these (3)")
    parser.add_argument("--quick", action="store_true", help="do little: to see that it works")
    parser.add_argument("--directory", type=Path, help="where the databases go (the system's tmp)")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.names if name not in WORKLOADS]:
        parser.error(f"no workload {', '.join(unknown)}; there is: {', '.join(WORKLOADS)}")
    return chosen


def main() -> None:
    chosen = parse()
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {line}", file=sys.stderr, flush=True)

    found: list[Found] = []
    for name in chosen.names or WORKLOADS:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=chosen.directory) as place:
            found.append(
                run(WORKLOADS[name], Bench(Path(place), chosen.quick, say), chosen.repeats)
            )
    report.show(found)
    if chosen.json:
        summary = report.as_json(found, quick=chosen.quick, repeats=chosen.repeats)
        chosen.json.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
