"""What many sessions cost at once: 200 of them, each waiting for its model most of the time.

The ideal is the time that one session's model calls take. By hand, commits are grouped as well
as can be: a group is what came during the last one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from benchmarks import byhand
from benchmarks.place import Database
from benchmarks.stopwatch import watch
from benchmarks.work import stepper, text
from benchmarks.workload import Bench, Measure, Workload
from outlast import Agent, Outlast

STEPS = 10
DELAY = 0.05
IDEAL = STEPS * DELAY


async def by_outlast(database: Database, sessions: int) -> tuple[float, float]:
    """Return how long all took from the first start to the last end, and the CPU seconds."""
    agent = stepper(STEPS - 1, delay=DELAY)
    async with Outlast([agent], store=database.url) as app:
        began, busy = time.perf_counter(), time.process_time()
        results = await asyncio.gather(*(converse(app, agent) for _ in range(sessions)))
        took, busy = time.perf_counter() - began, time.process_time() - busy
    assert all(status == "completed" for status in results), set(results)
    return took, busy


async def converse(app: Outlast, agent: Agent[None, str]) -> str:
    session = await app.start(agent, "Go.")
    return (await session.wait()).status


async def by_hand(database: Database, sessions: int) -> float:
    async def work(log: byhand.GroupCommit, session: int) -> None:
        for step in range(STEPS):
            await asyncio.sleep(DELAY)
            await log.add((session, text(step).encode()))
            await log.add((session, text(step).encode()))

    with database.floor() as floor:
        log = byhand.GroupCommit(floor)
        began = time.perf_counter()
        await asyncio.gather(*(work(log, session) for session in range(sessions)))
        return time.perf_counter() - began


def once(bench: Bench) -> Mapping[str, float]:
    sessions = bench.size(200, 20)
    hand = asyncio.run(by_hand(bench.database("byhand"), sessions))
    with watch({"transaction": (bench.place.transaction,)}) as watched:
        took, busy = asyncio.run(by_outlast(bench.database("outlast"), sessions))
    return {
        "time": took / IDEAL,
        "by hand": hand / IDEAL,
        "CPU": busy / IDEAL,
        "CPU per step": busy / sessions / STEPS * 1e6,
        "transactions": watched.calls["transaction"],
    }


WORKLOAD = Workload(
    "concurrency",
    "200 sessions of 10 steps with a model call of 50 ms, one worker process; ideal: 0.5 s",
    (
        Measure("time", "of the ideal", at_most=2.0, store="sqlite"),
        Measure("time", "of the ideal", at_most=2.5, store="postgres"),
        Measure("by hand", "of the ideal"),
        Measure("CPU", "of the ideal"),
        Measure("CPU per step", "µs"),
        Measure("transactions", "for all commits"),
    ),
    once,
)
