"""What the steps of workflows cost: alone, many at once, while they wait, and after a kill.

The floor makes two durable commits of one row for each step. A step that may have an effect makes
as many: its start, and its result. One that is `readonly` makes one, and is held against the same
floor, and against one with one commit. Outlast and floor take turns, a few steps each, so that both
meet the disk in the same mood.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median

from benchmarks import byhand, concurrency
from benchmarks.flow import flows
from benchmarks.overhead import SLICE, Spent
from benchmarks.parked import TOGETHER, WOKEN
from benchmarks.place import Database
from benchmarks.process import WorkerProcess
from benchmarks.work import TEXTS
from benchmarks.workload import Bench, Measure, Workload
from outlast import Outlast, Run

LONG = 10_000
KILL_AT = 9_000


async def alternate(bench: Bench, steps: int, name: str) -> Spent:
    """Make the steps of one run, and as many by hand in between."""
    spent = Spent()
    with bench.database("floor").floor() as floor:

        def make_floor(step: int) -> None:
            if step % SLICE:
                return
            now, cpu = time.perf_counter(), time.thread_time()
            if step:
                spent.outlast.append(now - began[0])
                spent.loop += cpu - began[1]
            byhand.make_steps(floor, TEXTS[:SLICE])
            spent.floor.append(time.perf_counter() - now)
            began[:] = time.perf_counter(), time.thread_time()

        began = [0.0, 0.0]
        async with Outlast(flows(make_floor), store=bench.database("outlast").url) as app:
            result = await (await app.run(name, steps)).wait()
    assert result.status == "completed", result
    return spent


async def at_once(database: Database, runs: int, name: str = "slow") -> tuple[float, float]:
    """Return how long it takes from the first start to the last end, and the CPU seconds."""
    async with Outlast(flows(), store=database.url) as app:

        async def one() -> str:
            return (await (await app.run(name, concurrency.STEPS)).wait()).status

        began, busy = time.perf_counter(), time.process_time()
        statuses = await asyncio.gather(*(one() for _ in range(runs)))
        took, busy = time.perf_counter() - began, time.process_time() - busy
    assert set(statuses) == {"completed"}, set(statuses)
    return took, busy


# While they wait


async def park(database: Database, runs: int) -> None:
    """Fill a database with runs that wait for an event."""
    async with Outlast(flows(), store=database.url) as app:
        for start in range(0, runs, TOGETHER):
            count = min(TOGETHER, runs - start)
            begun = await asyncio.gather(*(app.run("parked") for _ in range(count)))
            await asyncio.gather(*(until_parked(run) for run in begun))


async def until_parked(run: Run[str]) -> None:
    async for event in run.events():
        if event.type == "session.waiting":
            return


async def wake(database: Database, bench: Bench) -> float:
    """Return the milliseconds from an event to the end of its run, worked on elsewhere."""
    took: list[float] = []
    async with Outlast(flows(), store=database.url, worker=None) as app:
        for summary in await app.runs("parked", status="waiting", limit=WOKEN):
            run = await app.get_run(summary.run_id)
            began = time.perf_counter()
            await run.send_event("go")
            result = await run.wait()
            took.append((time.perf_counter() - began) * 1e3)
            assert result.status == "completed", result
    return median(took)


def measure_parked(bench: Bench, runs: int) -> tuple[float, float]:
    """Return an idle worker's memory in MiB, and the time to wake one in ms."""

    def fill(database: Database) -> None:
        bench.say(f"workflows: parking {runs:,} runs")
        asyncio.run(park(database, runs))

    database = bench.filled(f"runs-{runs}", fill)
    with WorkerProcess(database.url) as worker:
        worker.open()
        time.sleep(1.0)
        return worker.memory, asyncio.run(wake(database, bench))


# A long one, that is killed


async def grow(database: Database, steps: int) -> tuple[float, float]:
    """Return how much later steps take than early ones: by the clock, and in CPU time."""
    marks: list[tuple[float, float]] = []
    part = steps // 10

    def mark(step: int) -> None:
        if step % part == 0:
            marks.append((time.perf_counter(), time.thread_time()))

    async with Outlast(flows(mark), store=database.url) as app:
        assert (await (await app.run("that_reads", steps)).wait()).status == "completed"
    clock, cpu = ((marks[9][of] - marks[8][of]) / (marks[2][of] - marks[1][of]) for of in (0, 1))
    return clock, cpu


async def replay(database: Database, steps: int, kill_at: int) -> float:
    """Return the milliseconds from the takeover to the next step that is recorded."""
    with ExitStack() as stack:
        first = stack.enter_context(WorkerProcess(database.url, kill_at=kill_at))
        second = stack.enter_context(WorkerProcess(database.url))
        async with Outlast(flows(), store=database.url, worker=None) as app:
            first.open()
            run = await app.run("that_reads", steps)
            await asyncio.to_thread(first.see_die)
            second.open()
            result = await run.wait()
            assert result.status == "completed", result
            taken = 0.0
            async for event in run.events(internals=True, follow=False):
                if event.type == "lane.taken_over":
                    taken = event.at.timestamp()
                elif event.type == "tool.step_recorded" and taken:
                    return (event.at.timestamp() - taken) * 1e3
    raise AssertionError("no other worker took it over")


def once(bench: Bench) -> Mapping[str, float]:
    steps = bench.size(1000, 3 * SLICE)
    effect = asyncio.run(alternate(bench, steps, "with_effect"))
    reads = asyncio.run(alternate(bench, steps, "that_reads"))
    runs = bench.size(200, 20)
    hand = asyncio.run(concurrency.by_hand(bench.database("byhand"), runs))
    took, busy = asyncio.run(at_once(bench.database("at-once"), runs))
    read, busy_reading = asyncio.run(at_once(bench.database("at-once"), runs, "slow_reads"))
    few = measure_parked(bench, bench.size(1000, 50))
    many = measure_parked(bench, bench.size(10_000, 200))
    bench.place.wait_until_deaths_count()
    long, kill_at = bench.size(LONG, 300), bench.size(KILL_AT, 270)
    replayed = asyncio.run(replay(bench.database("long"), long, kill_at))
    clock, cpu = asyncio.run(grow(bench.database("grow"), long))
    return {
        "ratio with an effect": effect.ratio,
        "step with an effect": effect.outlast_step,
        "ratio, readonly": reads.ratio,
        "ratio, readonly, to one commit": reads.ratio / 2,
        "step, readonly": reads.outlast_step,
        "floor": median([effect.floor_step, reads.floor_step]),
        "200 runs": took / concurrency.IDEAL,
        "200 runs, readonly": read / concurrency.IDEAL,
        "200 runs, CPU per step": busy / runs / concurrency.STEPS * 1e6,
        "200 runs, readonly, CPU per step": busy_reading / runs / concurrency.STEPS * 1e6,
        "200 runs by hand": hand / concurrency.IDEAL,
        "memory": many[0],
        "memory, 10,000 ÷ 1,000": many[0] / few[0],
        "wake one": many[1],
        "wake one, 10,000 ÷ 1,000": many[1] / few[1],
        "replay": replayed,
        "late steps ÷ early": clock,
        "late steps ÷ early, CPU": cpu,
    }


WORKLOAD = Workload(
    "workflows",
    "1,000 steps of a run with 1 KB results, against two durable one-row commits a step by hand;"
    " 200 runs of 10 steps of 50 ms; 10,000 parked runs against 1,000; a run of 10,000 steps whose"
    " worker is killed at step 9,000",
    (
        Measure("ratio with an effect", "of the floor's steps per second", at_least=0.45),
        Measure("ratio, readonly", "of the floor's steps per second", at_least=0.7),
        Measure("ratio, readonly, to one commit", "of the half floor's steps per second"),
        Measure("floor", "µs per step"),
        Measure("step with an effect", "µs per step"),
        Measure("step, readonly", "µs per step"),
        Measure("200 runs", "of the ideal", at_most=2.0, store="sqlite"),
        Measure("200 runs", "of the ideal", at_most=2.3, store="postgres"),
        Measure("200 runs, readonly", "of the ideal"),
        Measure("200 runs by hand", "of the ideal"),
        Measure("200 runs, CPU per step", "µs"),
        Measure("200 runs, readonly, CPU per step", "µs"),
        Measure("memory", "MiB"),
        Measure("memory, 10,000 ÷ 1,000", "", at_most=1.1),
        Measure("wake one", "ms"),
        Measure("wake one, 10,000 ÷ 1,000", "", at_most=1.5),
        Measure("replay", "ms from the takeover to the next step, of 9,000"),
        Measure("late steps ÷ early", "the ninth thousand and the second"),
        Measure("late steps ÷ early, CPU", "the same of the event loop's thread", at_most=1.3),
    ),
    once,
)
