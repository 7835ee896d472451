"""What handing work on costs: thousands of parents that wait for a child that waits for a human.

Nothing may depend on how many there are: not the worker's memory, not the time from an answer
to the child until its parent has answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from statistics import median

from benchmarks.place import Database
from benchmarks.process import WorkerProcess
from benchmarks.work import boss
from benchmarks.workload import Bench, Measure, Workload
from outlast import Outlast

TOGETHER = 250
WOKEN = 20


async def park(database: Database, families: int) -> None:
    """Fill a database with parents whose children wait for an approval."""
    agent = boss()

    async def ask(app: Outlast) -> str:
        return (await (await app.start(agent, "Have it paid.")).wait()).status

    async with Outlast([agent], store=database.url) as app:
        for start in range(0, families, TOGETHER):
            count = min(TOGETHER, families - start)
            statuses = await asyncio.gather(*(ask(app) for _ in range(count)))
            assert set(statuses) == {"waiting"}, set(statuses)


async def wake(database: Database) -> float:
    """Return the milliseconds from an answer to a child to the end of its parent's turn."""
    took: list[float] = []
    async with Outlast([boss()], store=database.url, worker=None) as app:
        for request in await app.requests(limit=WOKEN):
            child = await app.session(request.session_id)
            parent = await app.session((await child.info()).parent)
            began = time.perf_counter()
            await (await child.answer(request.request_id, "approve")).result()
            result = await parent.wait()
            took.append((time.perf_counter() - began) * 1e3)
            assert result.status == "completed", result
    return median(took)


def measure(bench: Bench, families: int) -> tuple[float, float]:
    """Return an idle worker's memory in MiB, and the time to wake a family in ms."""

    def fill(database: Database) -> None:
        bench.say(f"families: parking {families:,} parents and as many children")
        asyncio.run(park(database, families))

    database = bench.filled(f"families-{families}", fill)
    with WorkerProcess(database.url) as worker:
        worker.open()
        time.sleep(1.0)
        return worker.memory, asyncio.run(wake(database))


def once(bench: Bench) -> Mapping[str, float]:
    few = measure(bench, bench.size(1000, 20))
    many = measure(bench, bench.size(10_000, 60))
    return {
        "memory": many[0],
        "memory, 10,000 ÷ 1,000": many[0] / few[0],
        "wake one": many[1],
        "wake one, 10,000 ÷ 1,000": many[1] / few[1],
    }


WORKLOAD = Workload(
    "families",
    "10,000 parents that wait for a child that waits for a human, against 1,000: memory of an"
    " idle worker, and from an answer to the child to the end of the parent's turn",
    (
        Measure("memory", "MiB"),
        Measure("memory, 10,000 ÷ 1,000", "", at_most=1.1),
        Measure("wake one", "ms"),
        Measure("wake one, 10,000 ÷ 1,000", "", at_most=1.5),
    ),
    once,
)
