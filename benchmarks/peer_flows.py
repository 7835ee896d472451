"""What steps of workflows cost elsewhere, in an environment of their own: see `make bench-peers`.

`OUTLAST_PEERS` is the directory of that environment; what is not in it is left out, and said to be.
Restate's server is started as a single node with its own storage, whatever the database here.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks import byhand, concurrency
from benchmarks.flow import flows
from benchmarks.work import TEXTS
from benchmarks.workflows import at_once
from benchmarks.workload import Bench, Measure, Workload
from outlast import Outlast

DIRECTORY = "OUTLAST_PEERS"
PROGRAM = Path(__file__).with_name("peer_work.py")
LONGEST = 300
ON = {"sqlite": ("dbos",), "postgres": ("dbos", "absurd", "restate")}
NAMES = ("outlast", "outlast, readonly", "dbos", "absurd", "restate")


def places_of(bench: Bench, name: str, peers: Path) -> str:
    """Return where a peer keeps its log, which is empty."""
    if name == "restate":
        return str(peers / "node_modules/.bin/restate-server")
    url, _, _ = bench.database(name).url.partition("?schema=")
    if name == "absurd":
        init = [str(peers / "venv/bin/absurdctl"), "init", "-d", url]
        subprocess.run(init, check=True, capture_output=True, timeout=60)  # noqa: S603
    return url


def elsewhere(bench: Bench, name: str, steps: int, runs: int) -> tuple[float, float] | None:
    """Return the seconds that a peer takes, or None where it cannot be run here."""
    peers = Path(os.environ.get(DIRECTORY, ""))
    python = peers / "venv/bin/python"
    if DIRECTORY not in os.environ or not python.exists():
        bench.say(f"peer-workflows: {name} is left out (make bench-peers installs it)")
        return None
    try:
        place = places_of(bench, name, peers)
        command = [str(python), str(PROGRAM), name, place, str(steps), str(runs)]
        found = subprocess.run(  # noqa: S603
            command, check=True, capture_output=True, text=True, timeout=LONGEST
        )
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", "") or str(error)
        lines = (said if isinstance(said, str) else said.decode()).strip().splitlines()
        bench.say(f"peer-workflows: {name} could not be run here ({lines[-1] if lines else error})")
        return None
    one, many = json.loads(found.stdout.splitlines()[-1])
    return one, many


async def by_outlast(bench: Bench, steps: int, name: str) -> float:
    async with Outlast(flows(), store=bench.database("outlast").url) as app:
        began = time.perf_counter()
        result = await (await app.run(name, steps)).wait()
        assert result.status == "completed", result
        return time.perf_counter() - began


def once(bench: Bench) -> Mapping[str, float]:
    steps, runs = bench.size(1000, 100), bench.size(200, 20)
    with bench.database("floor").floor() as floor:
        began = time.perf_counter()
        byhand.make_steps(floor, (TEXTS * steps)[:steps])
        hand = time.perf_counter() - began
    found = {"floor": hand / steps * 1e6}
    for name, flow in (("outlast", "with_effect"), ("outlast, readonly", "that_reads")):
        took = asyncio.run(by_outlast(bench, steps, flow))
        found |= {name: took / steps * 1e6, f"{name}, ratio": hand / took}
    many, _ = asyncio.run(at_once(bench.database("at-once"), runs))
    found["outlast, many"] = many / concurrency.IDEAL
    for name in ON[bench.place.store]:
        if came := elsewhere(bench, name, steps, runs):
            one, many = came
            found |= {name: one / steps * 1e6, f"{name}, ratio": hand / one}
            found[f"{name}, many"] = many / concurrency.IDEAL
    return found


WORKLOAD = Workload(
    "peer-workflows",
    "one run of 1,000 steps with 1 KB results, and 200 runs of 10 steps of 50 ms, here and in other"
    " engines; Restate is one local node with storage of its own",
    (
        Measure("floor", "µs per step"),
        *(Measure(name, "µs per step") for name in NAMES),
        *(Measure(f"{name}, ratio", "of the floor's steps per second") for name in NAMES),
        *(Measure(f"{name}, many", "of the ideal, 200 runs") for name in NAMES),
    ),
    once,
)
