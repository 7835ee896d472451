"""One performance of the demo, from an empty directory to a report."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rich.console import Console
from rich.text import Text

from outlast.cli.demo.count import DemoCounts, count
from outlast.cli.demo.director import DemoOutcome, DemoRunner
from outlast.cli.demo.plan import plan
from outlast.cli.demo.process import WorkerPool
from outlast.cli.demo.report import DemoReport
from outlast.cli.demo.story import DemoFiles, make_app
from outlast.cli.demo.timeline import Timeline
from outlast.clock import Clock
from outlast.core.record import Entry
from outlast.log.verify import verify
from outlast.store import Store

PATIENCE = 120.0


class DemoStuck(Exception):
    """The story did not come to its end."""


async def perform(directory: Path, seed: int, kills: int, console: Console) -> DemoReport:
    """Tell the story with so many kills, and count what it came to."""
    files, clock = DemoFiles(directory), Clock()
    introduce(console, seed, kills)
    timeline = Timeline(console, clock, kills)
    async with make_app(directory) as app:
        try:
            async with asyncio.timeout(PATIENCE), timeline, WorkerPool(files) as stage:
                played = await DemoRunner(app, stage, plan(seed, kills), timeline).direct()
        except TimeoutError:
            raise DemoStuck(
                f"the story is stuck: no end after {PATIENCE:.0f} s; see {files.worker_log}"
            ) from None
        tally = await take_stock(app.store, files, played)
    return DemoReport(
        seed=seed,
        planned=kills,
        seconds=timeline.seconds,
        session_id=played.session_id,
        files=files,
        tally=tally,
    )


async def take_stock(store: Store, files: DemoFiles, played: DemoOutcome) -> DemoCounts:
    """Count from the whole log and the ledgers, and have the log checked."""
    found = await verify(store, played.session_id)
    wrong = [f"outlast verify: {finding.code}: {finding.message}" for finding in found]
    if played.status != "completed":
        wrong.append(f"the story's last turn is {played.status}")
    return count(
        await read_all(store, played.session_id),
        files.asked.lines(),
        files.effects.lines(),
        played.kills,
        played.receipts,
        wrong,
    )


async def read_all(store: Store, session_id: str) -> list[Entry]:
    entries: list[Entry] = []
    cursor = 0
    while True:
        page = await store.read(session_id, cursor)
        entries += page.entries
        if page.cursor <= cursor:
            return entries
        cursor = page.cursor


def introduce(console: Console, seed: int, kills: int) -> None:
    told = f"One works, one stands by; {kills} get SIGKILL, by --seed {seed}. No key, no network.\n"
    console.print(
        Text.assemble(
            ("outlast demo", "bold"), "  An agent does a job; its workers are killed meanwhile."
        ),
        Text(told, "dim"),
        sep="\n",
        highlight=False,
    )
