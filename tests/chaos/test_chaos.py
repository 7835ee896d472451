"""A short run of chaos on each store, and takeovers of each kind; `make chaos` is longer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import SEARCH_PATH, TESTS
from chaos.place import opened
from chaos.report import report_on, traces
from chaos.run import Settings, run_chaos
from chaos.takeover import Blow, measure

KINDS = {
    "sqlite": {"kill", "stop", "redeploy", "lock"},
    "postgres": {"kill", "stop", "redeploy", "restart", "crash", "cut"},
}
STORES = tuple(KINDS)
SEED = 20
SHORT_LEASE = 3.0
"""Of the workers whose takeovers are timed; the others have that of `Settings`."""


@pytest.mark.timeout(300)  # a slow machine has all its patience
@pytest.mark.parametrize("store", STORES)
async def test_every_promise_is_kept_while_workers_die_and_the_database_shakes(
    store: str, tmp_path: Path
) -> None:
    settings = Settings(store=store, sessions=30, seconds=8.0, seed=SEED)

    evidence = await run_chaos(settings, tmp_path)

    report = report_on(evidence, SEED, 0.0)
    found = {name: texts for name, texts in report.findings.items() if texts}
    assert not found, "\n".join([str(found), *traces(evidence, found)])
    assert report.sessions == settings.sessions
    assert set(report.faults) == KINDS[store]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("blow", ["kill", "stop"])
async def test_a_lane_goes_on_with_another_worker(store: str, blow: Blow, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as place:
        measured = await measure(place, tmp_path, blow, times=1, lease=SHORT_LEASE)

    assert len(measured.times) == 1


def test_the_command_explains_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "chaos", "--help"],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": SEARCH_PATH},
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    assert "--sessions" in done.stdout
