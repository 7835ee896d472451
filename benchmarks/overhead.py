"""What one step costs when nothing else does: no provider to wait for, no company.

The floor makes two durable commits of one row for each step. Holdfast makes two as well: the
answer with the tool's start, and the tool's outcome with the next model call's start. Both take
turns, a few steps each, so that both meet the disk in the same mood.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from benchmarks import byhand, model
from benchmarks.stopwatch import watch
from benchmarks.work import TEXTS, stepper
from benchmarks.workload import Bench, Measure, Workload
from holdfast import Holdfast
from holdfast.agents import perform
from holdfast.core import codec
from holdfast.engine import carry, owned
from holdfast.stores.sqlite.connection import Database
from holdfast.stores.sqlite.writer import Writer

SLICE = 20

# What runs on the event loop's thread, then what runs on the writer's.
LOOP = {
    "decide": ((carry, "decide"),),
    "records": ((carry, "opening"), (carry, "outcome")),
    "fold": ((owned.OwnedLane, "write"),),
    "encode": ((codec, "encode"),),
    "commit made ready": ((owned.OwnedLane, "_prepare"),),
    "commit taken in": ((owned.OwnedLane, "_accept"),),
    "answer looked at": ((perform.AgentPerformer, "_answered"),),
    "result encoded": ((perform, "returned"),),
    "the model itself": ((model, "whole"),),
}
WRITER = {
    "SQL": ((Database, "one"), (Database, "run"), (Database, "all"), (Database, "begin")),
    "compression": ((codec.Packer, "pack"),),
    "COMMIT": ((Database, "commit"),),
    "writer's rest": ((Writer, "_write_group"),),
}
LOOP_REST = "loop's rest: tasks, timeouts, agent"
DISK = "waiting for the disk"
HAND_OVER = "hand-over between threads"
PARTS = (*LOOP, LOOP_REST, *WRITER, DISK, HAND_OVER)


@dataclass
class Spent:
    """Seconds: of each slice of the floor's and of Holdfast's steps, and its event loop's CPU."""

    floor: list[float] = field(default_factory=list)
    holdfast: list[float] = field(default_factory=list)
    loop: float = 0.0


async def alternate(bench: Bench, steps: int) -> Spent:
    """Make the steps of one session, and as many by hand in between."""
    spent = Spent()
    with byhand.database(bench.database("floor.db")) as db:

        def make_floor(step: int) -> None:
            if step % SLICE:
                return
            now, cpu = time.perf_counter(), time.thread_time()
            if step:
                spent.holdfast.append(now - began[0])
                spent.loop += cpu - began[1]
            byhand.make_steps(db, TEXTS[:SLICE])
            spent.floor.append(time.perf_counter() - now)
            began[:] = time.perf_counter(), time.thread_time()

        began = [0.0, 0.0]
        agent = stepper(steps, on_step=make_floor)
        async with Holdfast([agent], store=f"sqlite:///{bench.database('holdfast.db')}") as app:
            session = await app.start(agent, "Go.")
            result = await session.wait()
    assert result.status == "completed", result
    return spent


def parts(bench: Bench, steps: int) -> dict[str, float]:
    """Return microseconds per step of each part; together they are the time that a step took.

    CPU time, but for the disk and the hand-over; threads that work at once make the latter less.
    """
    with watch(LOOP | WRITER) as watched:
        spent = asyncio.run(alternate(bench, steps))
    seconds = {part: watched.cpu[part] for part in (*LOOP, *WRITER)}
    seconds[LOOP_REST] = spent.loop - sum(seconds[part] for part in LOOP)
    seconds[DISK] = watched.wall["COMMIT"] - watched.cpu["COMMIT"]
    writer = sum(seconds[part] for part in (*WRITER, DISK))
    seconds[HAND_OVER] = sum(spent.holdfast) - spent.loop - writer
    return {part: seconds[part] / steps * 1e6 for part in PARTS}


def once(bench: Bench) -> Mapping[str, float]:
    steps = bench.size(1000, 5 * SLICE)
    spent = asyncio.run(alternate(bench, steps))
    floor, step = (median(slices) / SLICE * 1e6 for slices in (spent.floor, spent.holdfast))
    return {"ratio": floor / step, "floor": floor, "step": step, **parts(bench, steps)}


WORKLOAD = Workload(
    "overhead",
    "one session, 1,000 steps of one model and one tool call with 1 KB results, against two"
    " durable one-row commits a step by hand; parts are from a run that is watched, and slower",
    (
        Measure("ratio", "of the floor's steps per second", at_least=0.5),
        Measure("floor", "µs per step"),
        Measure("step", "µs per step"),
        *(Measure(part, "µs per step") for part in PARTS),
    ),
    once,
)
