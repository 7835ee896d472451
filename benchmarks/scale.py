"""What a fleet costs its one PostgreSQL: more processes, their round trips, and their idleness.

Round trips and queries are counted on the wire, not timed. Of many sessions that wait neither
the time to wake one nor that to look for work may depend on how many there are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median

from benchmarks import crowd, parked
from benchmarks.place import Database
from benchmarks.process import WorkerProcess
from benchmarks.wire import Wire
from benchmarks.work import stepper
from benchmarks.workload import Bench, Measure, Workload
from outlast import Outlast

PROCESSES = (1, 2, 4)
CONCURRENCY = 16
CLAIMS = 200
LOOKER = "looker"


def work(bench: Bench) -> list[float]:
    """Return how many steps 1, 2 and 4 processes make in a second."""
    sessions, steps = bench.size(128, 8), bench.size(25, 5)
    database = bench.database("fleet")
    rates: list[float] = []
    with ExitStack() as stack:
        workers = [
            WorkerProcess(database.url, steps=steps - 1, concurrency=CONCURRENCY)
            for _ in range(max(PROCESSES))
        ]
        for worker in workers:
            stack.enter_context(worker)
        for number, worker in enumerate(workers, 1):
            worker.open()
            if number in PROCESSES:
                took = asyncio.run(have_done(database, sessions, f"fleet of {number}"))
                rates.append(sessions * steps / took)
    return rates


async def have_done(database: Database, sessions: int, tenant: str) -> float:
    """Return how long it takes others to do the work of a tenant's new sessions."""
    agent = stepper()
    async with Outlast([agent], store=database.url, worker=None) as app:

        async def done() -> int:
            return len(await app.sessions(tenant=tenant, status="idle", limit=sessions))

        began = time.perf_counter()
        await asyncio.gather(*(app.start(agent, "Go.", tenant=tenant) for _ in range(sessions)))
        # Asked now and then: following each session would cost what is measured.
        while await done() < sessions:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return time.perf_counter() - began


def count(bench: Bench) -> dict[str, float]:
    """Count what one worker asks of the server for a lone session, and with nothing to do."""
    steps, idle = bench.size(500, 20), bench.size(10, 1)
    database = bench.database("counted")
    with Wire(database.url) as wire, WorkerProcess(wire.url, steps=steps - 1) as worker:
        worker.open()
        before = wire.count
        asyncio.run(have_done(database, 1, "one"))
        busy = wire.count.since(before)
        time.sleep(1.0)
        before = wire.count
        time.sleep(idle)
        rest = wire.count.since(before)
    return {
        "round trips": busy.round_trips / steps,
        "idle queries": rest.round_trips / idle,
        "idle statements": rest.statements / idle,
    }


def wait(bench: Bench, sessions: int) -> tuple[float, float]:
    """Return the ms to wake one of so many sessions that wait, and the µs of a claim of nothing."""

    def fill(database: Database) -> None:
        bench.say(f"scale: parking {sessions:,} sessions")
        asyncio.run(crowd.gather(database, sessions))

    database = bench.filled(f"crowd-{sessions}", fill)
    claim = asyncio.run(look_for_work(database))
    asyncio.run(parked.park(database, parked.WOKEN))
    with WorkerProcess(database.url) as worker:
        worker.open()
        return asyncio.run(parked.wake(database)), claim


async def look_for_work(database: Database) -> float:
    took: list[float] = []
    app = Outlast(store=database.url, worker=None)
    async with app:
        await (
            app.store.work.find_dead()
        )  # a worker of the last repeat: it would be looked for each time
        lease = await crowd.enlist(app, LOOKER)
        for _ in range(CLAIMS):
            began = time.perf_counter()
            claims = await app.store.work.claim(LOOKER, 200)
            took.append((time.perf_counter() - began) * 1e6)
            assert not claims, claims
        await asyncio.to_thread(lease.release)
    return median(took)


def once(bench: Bench) -> Mapping[str, float]:
    one, two, four = work(bench)
    few = wait(bench, bench.size(1000, 50))
    many = wait(bench, bench.size(100_000, 200))
    return {
        "steps, 1 process": one,
        "steps, 2 processes ÷ 1": two / one,
        "steps, 4 processes ÷ 1": four / one,
        **count(bench),
        "wake one": many[0],
        "wake one, 100,000 ÷ 1,000": many[0] / few[0],
        "claim": many[1],
        "claim, 100,000 ÷ 1,000": many[1] / few[1],
    }


WORKLOAD = Workload(
    "scale",
    "128 sessions of 25 instant steps, 16 at a time in each worker process on one server; what one"
    " worker asks of the server; and 100,000 sessions waiting for a human, against 1,000",
    (
        Measure("steps, 1 process", "per second"),
        Measure("steps, 2 processes ÷ 1", ""),
        Measure("steps, 4 processes ÷ 1", ""),
        Measure("round trips", "per step of a lone session", at_most=4.0),
        Measure("idle queries", "per second of a worker", at_most=2.0),
        Measure("idle statements", "per second of a worker"),
        Measure("wake one", "ms"),
        Measure("wake one, 100,000 ÷ 1,000", "", at_most=1.5),
        Measure("claim", "µs, with nothing ready"),
        Measure("claim, 100,000 ÷ 1,000", "", at_most=1.5),
    ),
    once,
    stores=("postgres",),
)
