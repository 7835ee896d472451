"""What `import outlast` costs a process that may never start a worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

from benchmarks.workload import Bench, Measure, Workload

PROGRAM = """
import json, os, subprocess, sys, time
def resident(): return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(os.getpid())]))
before, modules, began = resident(), len(sys.modules), time.perf_counter()
import outlast
took = (time.perf_counter() - began) * 1e3
print(json.dumps([took, (resident() - before) / 1024, len(sys.modules) - modules]))
"""


def once(bench: Bench) -> Mapping[str, float]:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    took, memory, modules = json.loads(done.stdout)
    return {"time": took, "memory": memory, "modules": modules}


WORKLOAD = Workload(
    "import",
    "`import outlast` in a fresh process",
    (Measure("time", "ms"), Measure("memory", "MiB"), Measure("modules", "loaded")),
    once,
    stores=("sqlite",),
)
