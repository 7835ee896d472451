from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.load.run import Load, run, summary


async def test_a_small_load_run_finds_out_how_late_readers_are(tmp_path: Path) -> None:
    found = summary([await run(Load(readers=10, sessions=2, tokens=3, pace=0.01), tmp_path)])

    assert 0 < found["commit to reader, p50 (ms)"] <= found["commit to reader, p99 (ms)"]
    assert found["memory of the server, idle readers (MiB)"] > 0
    assert found["events to readers per second"] > found["commits per second"]
