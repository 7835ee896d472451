"""The command: how many readers and sessions, and where the numbers go."""

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


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    for name in ("readers", "sessions", "tokens"):
        default = getattr(USUAL, name)
        parser.add_argument(f"--{name}", type=int, default=default, help=f"({default})")
    help = f"seconds between two words of a session ({USUAL.pace})"
    parser.add_argument("--pace", type=float, default=USUAL.pace, help=help)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here too")
    parser.add_argument("--directory", type=Path, help="where the database goes (the system's tmp)")
    return parser.parse_args()


def main() -> None:
    chosen = parse()
    raise_limit()
    gc.disable()  # what stops the readers is not what is measured
    given = {name: getattr(chosen, name) for name in ("readers", "sessions", "tokens", "pace")}
    found = {}
    for title, at_one in (("spread over the sessions", False), ("all at one session", True)):
        with tempfile.TemporaryDirectory(prefix="outlast-load-", dir=chosen.directory) as place:
            found[title] = asyncio.run(run(Load(**given, at_one=at_one), Path(place)))
        print(f"{chosen.readers:,} readers, {title}:")
        for name, value in found[title].items():
            print(f"  {name:<36} {number(value):>8}", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(given | {"found": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
