"""A short run of chaos on each store, and takeovers of each kind; `make chaos` is longer."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import SEARCH_PATH, TESTS
from chaos.agent import NAME, porter
from chaos.disk import compiler
from chaos.fleet import Fleet
from chaos.ledger import Ledger, Mark
from chaos.place import opened
from chaos.plan import write_plan
from chaos.report import report_on, traces
from chaos.run import SHARE_OF_RUNS, Settings, run_chaos
from chaos.takeover import TIMEOUT, Blow, measure
from outlast import Outlast

KINDS = {
    "sqlite": {"kill", "stop", "redeploy", "lock", "jump"},
    "postgres": {
        *("kill", "stop", "redeploy", "restart", "crash", "cut"),
        *("blip", "blackhole", "full", "late", "jump"),
        *(["disk"] if compiler() else []),
    },
}
STORES = tuple(KINDS)
SEED = 20
LEASES: dict[Blow, float] = {"kill": 600.0, "stop": 3.0}
"""Of workers that are taken over from: nobody waits for so long for one that was killed."""


@pytest.mark.timeout(300)  # a slow machine may take long
@pytest.mark.parametrize("store", STORES)
async def test_every_promise_is_kept_while_workers_die_and_the_database_shakes(
    store: str, tmp_path: Path
) -> None:
    settings = Settings(store=store, sessions=30, seconds=8.0, seed=SEED, longest_outage=3.0)

    evidence = await run_chaos(settings, tmp_path)

    report = report_on(evidence, SEED, 0.0)
    found = {name: texts for name, texts in report.findings.items() if texts}
    assert not found, "\n".join([str(found), *traces(evidence, found)])
    assert report.sessions == settings.sessions
    assert len(evidence.runs) >= settings.sessions // SHARE_OF_RUNS
    assert set(report.faults) == KINDS[store]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("blow", ["kill", "stop"])
async def test_a_lane_goes_on_with_another_worker(store: str, blow: Blow, tmp_path: Path) -> None:
    async with opened(store, tmp_path) as place:
        measured = await measure(place, tmp_path, blow, times=1, lease=LEASES[blow])

    assert len(measured.times) == 1


@pytest.mark.parametrize("seconds", [0.5, 3.0])
async def test_a_tool_is_not_begun_again_elsewhere_while_its_worker_is_cut_off(
    seconds: float, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    async with opened("postgres", tmp_path) as place:
        fleet = Fleet(place, ledger.path)
        app = Outlast([porter(ledger, place.url)], store=place.url, worker=None)
        async with app, fleet:
            members = {(member := await fleet.start()).pid: member for _ in range(2)}
            plan = write_plan([[("note", {"item": "one", "ms": 5_000})]])
            session = await app.start(NAME, plan)
            begun = await until_marked(ledger, "begun", "note")
            wire = members[begun.pid].wire
            assert wire is not None
            wire.lets_nobody_through = True
            wire.cut()
            await asyncio.sleep(seconds)
            wire.lets_nobody_through = False
            async with asyncio.timeout(TIMEOUT):
                await session.wait()
    marks = [(m.what, m.pid) for m in ledger.read() if m.tool == "note"]
    assert marks == [("begun", begun.pid), ("ended", begun.pid)]


async def until_marked(ledger: Ledger, what: str, tool: str) -> Mark:
    async with asyncio.timeout(TIMEOUT):
        while True:
            if found := [m for m in ledger.read() if (m.what, m.tool) == (what, tool)]:
                return found[0]
            await asyncio.sleep(0.02)


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
