"""One run of the demo, from an empty directory to a report.

Plays the human (sends the job, a follow-up and an approval) and follows the session's events.
`kill.py` kills workers meanwhile, `display.py` shows what happens, `report.py` counts it.
"""

import asyncio
from pathlib import Path

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from outlast.app import Outlast
from outlast.cli.demo.agent import AGENT, FOLLOW_UP, JOB, make_app
from outlast.cli.demo.display import YOU, EventDisplay, Timeline
from outlast.cli.demo.effect import DemoFiles
from outlast.cli.demo.kill import Kill, KillPoint, ProcessKiller, plan
from outlast.cli.demo.process import WorkerFailed, WorkerPool
from outlast.cli.demo.progress import DemoProgress
from outlast.cli.demo.report import DemoCounts, DemoReport, count
from outlast.clock import Clock
from outlast.core.event import Event
from outlast.core.record import Entry
from outlast.errors import OutlastError
from outlast.log.verify import verify
from outlast.session import Session
from outlast.store import Store

WORKERS = 2
THINKING = 1.2
REST = 0.05


class DemoOutcome(Struct, frozen=True):
    """The kills of a run, the deliveries that got a receipt, and the last turn's status."""

    session_id: str
    kills: list[Kill]
    receipts: list[str]
    status: str


class DemoRunner:
    """Sends, follows and approves until the session has settled everything."""

    def __init__(
        self, app: Outlast, workers: WorkerPool, kill_points: list[KillPoint], timeline: Timeline
    ) -> None:
        self._app = app
        self._workers = workers
        self._timeline = timeline
        self._progress = DemoProgress()
        self._display = EventDisplay(timeline, self._progress)
        self._kill_points = kill_points
        self._receipts: list[str] = []
        self._tasks = asyncio.TaskGroup()
        self._followed_up = False

    async def run(self) -> DemoOutcome:
        """Run the scenario to its end."""
        self._timeline.follow(self._progress, self._workers)
        for _ in range(WORKERS):
            await self._workers.start()
        await self._workers.until_ready(WORKERS)
        session: Session[str] = await self._app.start(AGENT, JOB, principal=YOU)
        assert session.receipt is not None
        self._receipts.append(session.receipt.delivery_id)
        try:
            return await self._follow_to_end(session)
        except* (WorkerFailed, OutlastError, OSError) as group:
            raise group.exceptions[0] from None

    async def _follow_to_end(self, session: Session[str]) -> DemoOutcome:
        killer = ProcessKiller(
            self._kill_points,
            self._workers,
            self._progress,
            self._app.clock,
            self._tasks.create_task,
            session.info,
            self._display.killed,
        )
        async with self._tasks:
            watch = self._tasks.create_task(self._workers.until_trouble())
            await self._follow(session, killer)
            watch.cancel()
        result = await session.wait()
        return DemoOutcome(session.id, killer.kills, self._receipts, result.status)

    async def _follow(self, session: Session[str], killer: ProcessKiller) -> None:
        """Read events to the end; the stream pauses while the session waits for a human."""
        while not (self._followed_up and self._progress.is_over):
            async for event in session.events(self._progress.offset, internals=True):
                await self._see(event, session, killer)
            await asyncio.sleep(REST)

    async def _see(self, event: Event, session: Session[str], killer: ProcessKiller) -> None:
        self._progress.see(event)
        if event.type in ("turn.started", "session.resumed"):
            self._progress.worker = (await session.info()).lanes[0].worker or self._progress.worker
        if kill := killer.saw(event):
            self._display.taken_over(kill)
        self._display.tell(event)
        self._act(event, session)

    # The human

    def _act(self, event: Event, session: Session[str]) -> None:
        if event.type == "request.opened":
            self._tasks.create_task(self._approve(session, event.data["request_id"]))
        elif event.type == "message.completed" and not self._followed_up and event.step == 2:
            self._followed_up = True
            self._tasks.create_task(self._follow_up(session))

    async def _approve(self, session: Session[str], request_id: str) -> None:
        await asyncio.sleep(THINKING)
        receipt = await session.answer(request_id, "approve", principal=YOU)
        self._receipts.append(receipt.delivery_id)

    async def _follow_up(self, session: Session[str]) -> None:
        await asyncio.sleep(THINKING / 2)
        receipt = await session.send(FOLLOW_UP, principal=YOU)
        self._receipts.append(receipt.delivery_id)


TIMEOUT = 120.0


class DemoStuck(Exception):
    """The scenario did not end in time."""


async def run_demo(directory: Path, seed: int, kills: int, console: Console) -> DemoReport:
    """Run the scenario with so many kills and count the result."""
    files, clock = DemoFiles(directory), Clock()
    introduce(console, seed, kills)
    timeline = Timeline(console, clock, kills)
    async with make_app(directory) as app:
        try:
            async with asyncio.timeout(TIMEOUT), timeline, WorkerPool(files) as workers:
                outcome = await DemoRunner(app, workers, plan(seed, kills), timeline).run()
        except TimeoutError:
            raise DemoStuck(
                f"the demo is stuck: no end after {TIMEOUT:.0f} s; see {files.worker_log}"
            ) from None
        counts = await count_outcome(app.store, files, outcome)
    return DemoReport(
        seed=seed,
        planned=kills,
        seconds=timeline.seconds,
        session_id=outcome.session_id,
        files=files,
        counts=counts,
    )


async def count_outcome(store: Store, files: DemoFiles, outcome: DemoOutcome) -> DemoCounts:
    """Count from the whole log and the ledgers, and have the log checked."""
    found = await verify(store, outcome.session_id)
    wrong = [f"outlast verify: {finding.code}: {finding.message}" for finding in found]
    if outcome.status != "completed":
        wrong.append(f"the last turn is {outcome.status}")
    return count(
        await read_all(store, outcome.session_id),
        files.asked.lines(),
        files.effects.lines(),
        outcome.kills,
        outcome.receipts,
        wrong,
    )


async def read_all(store: Store, session_id: str) -> list[Entry]:
    entries: list[Entry] = []
    cursor = 0
    while True:
        page = await store.log.read(session_id, cursor)
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
