"""How many Python calls a step, a turn and a message take: numbers that no noise can touch.

A call is a Python function that is entered, in any thread, as `sys.setprofile` reports it; calls
into C do not count. The difference between a run of 2n and one of n steps (or turns) is what n of
them cost, without what only the start and the end of a session cost. A file is a module of Outlast
that a message passes on its way from `app.start` to the answer that `wait` returns.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import outlast
from benchmarks.work import look_up, stepper
from benchmarks.workload import Bench, Measure, Workload
from outlast import Agent, Outlast

PACKAGE = str(Path(outlast.__file__).parent)


class CallCount:
    """Calls by the file of the function that was called."""

    def __init__(self) -> None:
        self.by_file: dict[str, int] = {}

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            file = frame.f_code.co_filename
            self.by_file[file] = self.by_file.get(file, 0) + 1

    @property
    def all(self) -> int:
        return sum(self.by_file.values())

    @property
    def own(self) -> int:
        return sum(n for file, n in self.by_file.items() if file.startswith(PACKAGE))

    @property
    def files(self) -> int:
        return sum(file.startswith(PACKAGE) for file in self.by_file)


@contextmanager
def counting() -> Iterator[CallCount]:
    """Count the calls of this thread and of those that are started meanwhile."""
    count = CallCount()
    threading.setprofile(count.see)
    sys.setprofile(count.see)
    try:
        yield count
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def steps(bench: Bench, number: int) -> CallCount:
    """Count one session of so many steps; the store's threads are started within the count."""
    agent = stepper(number, using=look_up)
    return await counted(bench, agent, lambda app: one_turn(app, agent))


async def turns(bench: Bench, number: int) -> CallCount:
    """Count one conversation of so many turns without a tool call."""
    agent = stepper(0)

    async def talk(app: Outlast) -> None:
        session = await app.start(agent, "Go.")
        await session.wait()
        for _ in range(number - 1):
            receipt = await session.send("Go on.")
            await receipt.result()

    return await counted(bench, agent, talk)


async def one_turn(app: Outlast, agent: Agent[Any, Any]) -> None:
    session = await app.start(agent, "Go.")
    result = await session.wait()
    assert result.status == "completed", result


async def counted(
    bench: Bench, agent: Agent[Any, Any], work: Callable[[Outlast], Awaitable[None]]
) -> CallCount:
    with counting() as count:
        async with Outlast([agent], store=bench.database("outlast").url) as app:
            await work(app)
    return count


async def message(bench: Bench) -> CallCount:
    """Count a message with one tool call, from its start to its answer, in an app that is open."""
    agent = stepper(1, using=look_up)
    with counting() as count:
        async with Outlast([agent], store=bench.database("outlast").url) as app:
            await asyncio.sleep(0.2)  # what opening an app does is not the message's
            count.by_file.clear()
            await one_turn(app, agent)
            seen = CallCount()
            seen.by_file = dict(count.by_file)
    return seen


def once(bench: Bench) -> Mapping[str, float]:
    number = bench.size(200, 20)
    few, many = asyncio.run(steps(bench, number)), asyncio.run(steps(bench, 2 * number))
    fewer, more = asyncio.run(turns(bench, number)), asyncio.run(turns(bench, 2 * number))
    passed = asyncio.run(message(bench))
    return {
        "calls a step": (many.all - few.all) / number,
        "own calls a step": (many.own - few.own) / number,
        "calls a turn": (more.all - fewer.all) / number,
        "own calls a turn": (more.own - fewer.own) / number,
        "files a message": passed.files,
        "calls a message": passed.own,
    }


WORKLOAD = Workload(
    "calls",
    "Python calls a step (one model call and one readonly tool call) and a turn (a message and"
    " its answer), from runs of 400 and 200; and the files of Outlast that one message passes",
    (
        Measure("calls a step", "Python calls, in all threads"),
        Measure("own calls a step", "of them Outlast's own"),
        Measure("calls a turn", "Python calls, in all threads"),
        Measure("own calls a turn", "of them Outlast's own"),
        Measure("files a message", "modules of Outlast", at_most=45),
        Measure("calls a message", "Outlast's own"),
    ),
    once,
)
