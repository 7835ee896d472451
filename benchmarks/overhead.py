"""What one step costs when nothing else does: no provider to wait for, no company.

The floor makes two durable commits of one row for each step. Holdfast makes two as well: the
answer with the tool's start, and the tool's outcome with the next model call's start. Both take
turns, a few steps each, so that both meet the disk in the same mood.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

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

SLICE = 50

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
    """Seconds: by the floor, by Holdfast, and how much of these its event loop was busy."""

    floor: float
    holdfast: float
    loop: float


async def alternate(bench: Bench, steps: int) -> Spent:
    """Make the steps of one session, and as many by hand in between."""
    with byhand.database(bench.database("floor.db")) as db:
        floor = byhand.Floor(db)
        busy = 0.0

        def make_floor(step: int) -> None:
            nonlocal busy
            if step and step % SLICE == 0:
                began = time.thread_time()
                floor.make_steps(TEXTS[:SLICE])
                busy += time.thread_time() - began

        agent = stepper(steps, on_step=make_floor)
        store = f"sqlite:///{bench.database('holdfast.db')}"
        async with Holdfast([agent], store=store) as app:
            began, cpu = time.perf_counter(), time.thread_time()
            session = await app.start(agent, "Go.")
            result = await session.wait()
            took, cpu = time.perf_counter() - began, time.thread_time() - cpu
    assert result.status == "completed", result
    return Spent(floor.seconds, took - floor.seconds, cpu - busy)


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
    seconds[HAND_OVER] = spent.holdfast - spent.loop - writer
    return {part: seconds[part] / steps * 1e6 for part in PARTS}


def once(bench: Bench) -> Mapping[str, float]:
    steps = bench.size(1000, 2 * SLICE)
    spent = asyncio.run(alternate(bench, steps))
    return {
        "ratio": spent.floor / spent.holdfast,
        "floor": spent.floor / steps * 1e6,
        "step": spent.holdfast / steps * 1e6,
        **parts(bench, steps),
    }


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
