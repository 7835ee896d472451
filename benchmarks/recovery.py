"""How long a kill keeps a session waiting: a worker dies by SIGKILL in the middle of a turn.

Either another worker is there already, or a new process is started at that instant; what it
needs to import is not counted. Both must first be sure that the old worker is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack

from benchmarks.place import Database
from benchmarks.process import WorkerProcess
from benchmarks.work import STEPS, stepper
from benchmarks.workload import Bench, Measure, Workload
from outlast import Event, Outlast


async def recover(database: Database, kill_at: int, *, waiting: bool) -> float:
    """Return the milliseconds from the kill to the next step."""
    agent = stepper()
    with ExitStack() as stack:
        first = stack.enter_context(WorkerProcess(database.url, kill_at=kill_at))
        second = stack.enter_context(WorkerProcess(database.url))
        async with Outlast([agent], store=database.url, worker=None) as app:
            first.open()
            session = await app.start(agent, "Go.")
            events = session.events(internals=True)
            await until(events, "step.started", 1)
            if waiting:
                second.open()
            killed_at = await asyncio.to_thread(first.see_die)
            if not waiting:
                second.begin_to_open()
            await until(events, "lane.taken_over")
            step = await until(events, "step.started")
            await session.wait()
    return (step.at.timestamp() - killed_at) * 1e3


async def until(events: AsyncIterator[Event], kind: str, step: int = 0) -> Event:
    async for event in events:
        if event.type == kind and event.step >= step:
            return event
    raise AssertionError(f"the session came to rest without {kind}")


def once(bench: Bench) -> Mapping[str, float]:
    kill_at = bench.size(STEPS // 2, 20)
    bench.place.wait_until_deaths_count()
    by_second = asyncio.run(recover(bench.database("second"), kill_at, waiting=True))
    by_restart = asyncio.run(recover(bench.database("restart"), kill_at, waiting=False))
    return {"by a waiting worker": by_second, "by a restarted process": by_restart}


WORKLOAD = Workload(
    "recovery",
    "a worker killed by SIGKILL at step 500 of 1,000: from the kill to the next step",
    (
        Measure("by a waiting worker", "ms", at_most=1000),
        Measure("by a restarted process", "ms"),
    ),
    once,
)
