"""The command: which workloads to run, where, how often, and where the numbers go."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import (
    calls,
    concurrency,
    endless,
    families,
    growth,
    overhead,
    parked,
    peer_flows,
    peers,
    recovery,
    report,
    scale,
    startup,
    streaming,
    workflows,
)
from benchmarks.place import Place
from benchmarks.postgres import PostgresPlace
from benchmarks.server import server
from benchmarks.sqlite import SqlitePlace
from benchmarks.workload import Bench, Found, Workload, run

WORKLOADS = {
    module.WORKLOAD.name: module.WORKLOAD
    for module in (
        *(overhead, concurrency, growth, streaming, recovery, parked, families, endless),
        *(scale, startup, calls, peers, workflows, peer_flows),
    )
}


@contextmanager
def sqlite(directory: Path) -> Iterator[Place]:
    yield SqlitePlace(directory)


@contextmanager
def postgres(directory: Path) -> Iterator[Place]:
    with server(directory) as url:
        place = PostgresPlace(url)
        try:
            yield place
        finally:
            place.clear()


PLACES = {"sqlite": sqlite, "postgres": postgres}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--store", choices=(*PLACES, "both"), default="both", help="(both)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here too")
    parser.add_argument("--repeats", type=int, default=3, help="medians are over these (3)")
    parser.add_argument("--quick", action="store_true", help="do little: to see that it works")
    parser.add_argument("--directory", type=Path, help="where the databases go (the system's tmp)")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.names if name not in WORKLOADS]:
        parser.error(f"no workload {', '.join(unknown)}; there is: {', '.join(WORKLOADS)}")
    chosen.runs = choose(chosen.names or list(WORKLOADS), chosen.store)
    if not chosen.runs:
        parser.error(f"{', '.join(chosen.names)} is not measured on {chosen.store}")
    return chosen


def choose(names: Sequence[str], store: str) -> list[tuple[Workload, str]]:
    """Return each workload with each store that is wanted and that it makes sense on."""
    wanted = list(PLACES) if store == "both" else [store]
    workloads = [WORKLOADS[name] for name in names]
    return [(each, store) for each in workloads for store in wanted if store in each.stores]


def main() -> None:
    chosen = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server must not outlive us
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {line}", file=sys.stderr, flush=True)

    found: list[Found] = []
    with ExitStack() as stack:
        new = tempfile.TemporaryDirectory(prefix="outlast-bench-", dir=chosen.directory)
        directory = Path(stack.enter_context(new))
        directory.chmod(0o755)  # where we are root, PostgreSQL is somebody else
        places: dict[str, Place] = {}
        for workload, store in chosen.runs:
            if store not in places:
                places[store] = stack.enter_context(PLACES[store](directory))
            bench = Bench(places[store], chosen.quick, say)
            found.append(run(workload, bench, chosen.repeats))
            bench.place.clear()
    report.show(found)
    if chosen.json:
        summary = report.as_json(found, quick=chosen.quick, repeats=chosen.repeats)
        chosen.json.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
