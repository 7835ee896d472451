"""What waiting costs: thousands of sessions that need a human, and a worker with nothing to do.

Nothing may depend on how many there are: not the worker's memory, not the time to wake one, not
the time to start again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from statistics import median

from benchmarks.place import Database
from benchmarks.process import WorkerProcess
from benchmarks.work import asker
from benchmarks.workload import Bench, Measure, Workload
from outlast import Outlast

TOGETHER = 500
WOKEN = 20
STARTED = 5


async def park(database: Database, sessions: int) -> None:
    """Fill a database with sessions that wait for an approval."""
    agent = asker()

    async def ask(app: Outlast) -> str:
        return (await (await app.start(agent, "Pay.")).wait()).status

    async with Outlast([agent], store=database.url) as app:
        for start in range(0, sessions, TOGETHER):
            count = min(TOGETHER, sessions - start)
            statuses = await asyncio.gather(*(ask(app) for _ in range(count)))
            assert set(statuses) == {"waiting"}, set(statuses)


async def wake(database: Database) -> float:
    """Return the milliseconds from an answer to the end of its turn, worked on elsewhere."""
    took: list[float] = []
    async with Outlast([asker()], store=database.url, worker=None) as app:
        for info in await app.sessions(status="waiting", limit=WOKEN):
            session = await app.session(info.session_id)
            [request] = await session.requests()
            began = time.perf_counter()
            await session.answer(request.request_id, "approve")
            result = await session.wait()
            took.append((time.perf_counter() - began) * 1e3)
            assert result.status == "completed", result
    return median(took)


async def start(database: Database) -> float:
    """Return the milliseconds that it takes to open the app with a worker."""
    began = time.perf_counter()
    async with Outlast([asker()], store=database.url):
        return (time.perf_counter() - began) * 1e3


def measure(bench: Bench, sessions: int) -> tuple[float, float, float]:
    """Return an idle worker's memory in MiB, the time to wake one in ms, and that to start."""

    def fill(database: Database) -> None:
        bench.say(f"parked: parking {sessions:,} sessions")
        asyncio.run(park(database, sessions))

    database = bench.filled(f"parked-{sessions}", fill)
    started = median(asyncio.run(start(database)) for _ in range(STARTED))
    with WorkerProcess(database.url) as worker:
        worker.open()
        time.sleep(1.0)
        return worker.memory, asyncio.run(wake(database)), started


def once(bench: Bench) -> Mapping[str, float]:
    few = measure(bench, bench.size(1000, 50))
    many = measure(bench, bench.size(10_000, 200))
    return {
        "memory": many[0],
        "memory, 10,000 ÷ 1,000": many[0] / few[0],
        "wake one": many[1],
        "wake one, 10,000 ÷ 1,000": many[1] / few[1],
        "start": many[2],
        "start, 10,000 ÷ 1,000": many[2] / few[2],
    }


WORKLOAD = Workload(
    "parked",
    "10,000 sessions waiting for a human, against 1,000: memory of an idle worker, from an answer"
    " to the end of its turn in another process, and opening the app",
    (
        Measure("memory", "MiB"),
        Measure("memory, 10,000 ÷ 1,000", "", at_most=1.1),
        Measure("wake one", "ms"),
        Measure("wake one, 10,000 ÷ 1,000", "", at_most=1.5),
        Measure("start", "ms"),
        Measure("start, 10,000 ÷ 1,000", "", at_most=1.5),
    ),
    once,
)
