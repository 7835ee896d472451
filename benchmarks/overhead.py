"""What one step costs when nothing else does: no provider to wait for, no company.

The floor makes two durable commits of one row for each step. Holdfast makes two as well: the
answer with the tool's start, and the tool's outcome with the next model call's start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks import byhand
from benchmarks.model import Model, Saying, texts
from benchmarks.stopwatch import Stopwatch, watch
from benchmarks.workload import Bench, Measure, Workload
from holdfast import Agent, Holdfast, tool
from holdfast.agents.perform import AgentPerformer
from holdfast.core import codec
from holdfast.engine import carry, owned
from holdfast.stores.sqlite.connection import Database
from holdfast.stores.sqlite.writer import Writer

TEXTS = texts(1024)

# What runs on the event loop's thread, then what runs on the writer's.
LOOP = {
    "decide": ((carry, "decide"),),
    "records": ((carry, "opening"), (carry, "outcome")),
    "fold": ((owned.OwnedLane, "write"),),
    "encode": ((codec, "encode"),),
    "commit's head": ((owned.OwnedLane, "_prepare"),),
    "view": ((owned.OwnedLane, "_accept"),),
    "tool arguments": ((AgentPerformer, "_answered"),),
}
WRITER = {
    "SQL": ((Database, "one"), (Database, "run"), (Database, "all"), (Database, "begin")),
    "pack": ((codec.Packer, "pack"),),
    "fsync": ((Database, "commit"),),
    "writer's rest": ((Writer, "_write_group"),),
}
TOTALS = ("loop's rest: tasks, agent, timeouts", "hand-over and waiting for the GIL")
PARTS = (*LOOP, TOTALS[0], *WRITER, TOTALS[1])


@tool(readonly=True)
async def look_up(number: int) -> str:
    """Return a text."""
    return TEXTS[number % len(TEXTS)]


def agent_of(steps: int) -> Agent[None, str]:
    """Return an agent that makes so many steps with a tool call in its turn, then ends it."""

    def say(messages: int) -> Saying:
        step = messages // 2
        return Saying(TEXTS[step % len(TEXTS)], "look_up" if step < steps else "", step)

    return Agent("worker", Model(say), tools=[look_up], max_steps=steps + 1)


async def by_holdfast(path: Path, steps: int) -> tuple[float, float]:
    """Return how long a turn took, and how much of it the loop's thread was busy."""
    agent = agent_of(steps)
    async with Holdfast([agent], store=f"sqlite:///{path}") as app:
        began, busy = time.perf_counter(), time.thread_time()
        session = await app.start(agent, "Go.")
        result = await session.wait()
        took, busy = time.perf_counter() - began, time.thread_time() - busy
    assert result.status == "completed", result
    return took, busy


async def by_hand(path: Path, steps: int) -> float:
    with byhand.database(path) as db:
        began = time.perf_counter()
        for step in range(steps):
            byhand.write(db, [(1, TEXTS[step % len(TEXTS)].encode())])
            result = await look_up.function(step)
            byhand.write(db, [(1, result.encode())])
        return time.perf_counter() - began


def parts_of(watched: Stopwatch, took: float, busy: float, steps: int) -> dict[str, float]:
    """Return microseconds per step of each part; together they are the time that a step took."""
    seconds = {part: watched.seconds[part] for part in (*LOOP, *WRITER)}
    seconds[TOTALS[0]] = busy - sum(seconds[part] for part in LOOP)
    seconds[TOTALS[1]] = took - busy - sum(seconds[part] for part in WRITER)
    return {part: seconds[part] / steps * 1e6 for part in PARTS}


def once(bench: Bench) -> Mapping[str, float]:
    steps = bench.size(1000, 100)
    place = bench.directory
    floor = asyncio.run(by_hand(fresh(place / "floor.db"), steps))
    took, _ = asyncio.run(by_holdfast(fresh(place / "holdfast.db"), steps))
    floor = min(floor, asyncio.run(by_hand(fresh(place / "floor.db"), steps)))
    with watch(LOOP | WRITER) as watched:
        slower, busy = asyncio.run(by_holdfast(fresh(place / "watched.db"), steps))
    return {
        "ratio": floor / took,
        "floor": floor / steps * 1e6,
        "step": took / steps * 1e6,
        "step, watched": slower / steps * 1e6,
        **parts_of(watched, slower, busy, steps),
    }


def fresh(path: Path) -> Path:
    """Remove a database and what lies beside it."""
    for old in path.parent.glob(f"{path.name}*"):
        if old.is_file():
            old.unlink()
    return path


WORKLOAD = Workload(
    "overhead",
    "one session, 1,000 steps of one model and one tool call with 1 KB results, against two"
    " durable one-row commits a step by hand; parts are microseconds per step, watched",
    (
        Measure("ratio", "of the floor's steps per second", at_least=0.5),
        Measure("floor", "µs per step"),
        Measure("step", "µs per step"),
        Measure("step, watched", "µs per step"),
        *(Measure(part, "µs") for part in PARTS),
    ),
    once,
)
