"""What one step costs when nothing else does: no provider to wait for, no company.

The floor makes two durable commits of one row for each step. Outlast would make two as well: the
answer with the tool's start, and the tool's outcome with the next model call's start. But the tool
is declared readonly and returns at once, so that both are one. `with an effect` is the same with a
tool that may have one, and begins when the log says so. Outlast and floor take turns, a few steps
each, so that both meet the disk in the same mood.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from benchmarks import byhand, model
from benchmarks.anatomy import DISK, POSTGRES, SQLITE
from benchmarks.stopwatch import watch
from benchmarks.work import TEXTS, look_up, put_down, stepper
from benchmarks.workload import Bench, Measure, Workload
from outlast import Outlast, Tool
from outlast.agents.runtime import model_call as ask
from outlast.agents.runtime import tool_call as run
from outlast.core import codec
from outlast.engine import lane_runner, result_recorder
from outlast.engine import owned_lane as owned

SLICE = 20

# What runs on the event loop's thread besides the store.
LOOP = {
    "decide": ((lane_runner, "decide"),),
    "records": ((lane_runner, "opening"), (result_recorder, "outcome")),
    "fold": ((owned.OwnedLane, "write"),),
    "encode": ((codec, "encode"),),
    "commit made ready": ((owned.OwnedLane, "_prepare"),),
    "commit taken in": ((owned.OwnedLane, "_land"),),
    "answer looked at": ((ask.ModelCaller, "_answered"),),
    "result encoded": ((run, "returned"),),
    "the model itself": ((model, "whole"),),
}
LOOP_REST = "loop's rest: tasks, timeouts, agent"
PARTS = tuple(dict.fromkeys((*LOOP, LOOP_REST, *SQLITE.names, *POSTGRES.names)))


@dataclass
class Spent:
    """Seconds: of each slice of the floor's and of Outlast's steps, and its event loop's CPU."""

    floor: list[float] = field(default_factory=list)
    outlast: list[float] = field(default_factory=list)
    loop: float = 0.0

    @property
    def floor_step(self) -> float:
        return median(self.floor) / SLICE * 1e6

    @property
    def outlast_step(self) -> float:
        return median(self.outlast) / SLICE * 1e6

    @property
    def ratio(self) -> float:
        return self.floor_step / self.outlast_step


async def alternate(bench: Bench, steps: int, using: Tool = look_up) -> Spent:
    """Make the steps of one session, and as many by hand in between."""
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
        agent = stepper(steps, on_step=make_floor, using=using)
        async with Outlast([agent], store=bench.database("outlast").url) as app:
            session = await app.start(agent, "Go.")
            result = await session.wait()
    assert result.status == "completed", result
    return spent


def parts(bench: Bench, steps: int) -> dict[str, float]:
    """Return microseconds per step of each part; together they are the time that a step took.

    CPU time, but for the disk and the rest.
    """
    anatomy = bench.place.anatomy
    with watch({**LOOP, **anatomy.on_loop}) as watched:
        spent = asyncio.run(alternate(bench, steps))
    loop = {part: watched.cpu[part] for part in (*LOOP, *anatomy.on_loop)}
    loop[LOOP_REST] = spent.loop - sum(loop.values())
    waits = {}
    if durable := anatomy.durable:
        waits[DISK] = watched.wall[durable] - watched.cpu[durable]
    rest = sum(spent.outlast) - spent.loop - sum(waits.values())
    seconds = {**loop, **waits, anatomy.rest: rest}
    return {part: spent / steps * 1e6 for part, spent in seconds.items()}


def once(bench: Bench) -> Mapping[str, float]:
    steps = bench.size(1000, 3 * SLICE)
    spent = asyncio.run(alternate(bench, steps))
    effect = asyncio.run(alternate(bench, steps, put_down))
    return {
        "ratio": spent.ratio,
        "floor": spent.floor_step,
        "step": spent.outlast_step,
        "ratio with an effect": effect.ratio,
        "step with an effect": effect.outlast_step,
        "beside the floor": effect.outlast_step - effect.floor_step,
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
        Measure("ratio with an effect", "of the floor's steps per second", at_least=0.5),
        Measure("step with an effect", "µs per step"),
        Measure("beside the floor", "µs per step with an effect, whatever the disk takes"),
        *(Measure(part, "µs per step") for part in PARTS),
    ),
    once,
)
