"""An async tool that blocks the event loop is named, while it does so."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from scene import agent, running

from outlast import Context, tool
from outlast.agents.runtime.loop_watch import LONGEST_STEP, LoopWatch
from outlast.log_context import enter
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import call, say


class Told(logging.Handler):
    """Sets an event at a warning of the watch."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.event = threading.Event()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "blocks the event loop" in record.getMessage():
            self.records.append(record)
            self.event.set()


async def test_a_tool_that_blocks_the_loop_is_named_before_it_ends() -> None:
    told = Told()
    logging.getLogger("outlast.agents").addHandler(told)

    @tool
    async def busy(ctx: Context[Any]) -> str:
        return "named" if told.event.wait(60) else "not named"

    try:
        async with running(agent([call("busy"), say("done")], tools=[busy])) as app:
            session = await app.start("a", "go")
            assert (await session.wait()).output == "done"
            [completed] = [
                e async for e in session.events(follow=False) if e.type == "tool.completed"
            ]
    finally:
        logging.getLogger("outlast.agents").removeHandler(told)

    assert completed.data["value"] == "named"
    [record] = told.records
    named = record.__dict__
    assert (named["tool"], named["session"], named["call"]) == ("busy", session.id, "t1.s1.c1")


class Steps:
    """A watch whose clock the test moves, and which looks when the test says so."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.watch = LoopWatch(self.clock)

    def take(self, seconds: float) -> None:
        self.clock.advance(int(seconds * 1000))
        self.watch.look()


async def test_only_a_step_that_is_too_long_counts_and_only_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps = Steps()
    enter(session="ses_1")

    async def run() -> str:
        steps.take(LONGEST_STEP)
        await asyncio.sleep(0)
        steps.take(LONGEST_STEP / 2)
        steps.take(LONGEST_STEP)
        steps.take(9.0)
        return "done"

    assert await steps.watch.watched(run(), "busy") == "done"
    assert steps.watch.counts() == {"blocked_loops": 1}
    [record] = caplog.records
    assert (record.__dict__["tool"], record.__dict__["session"]) == ("busy", "ses_1")


async def test_a_tool_that_waits_does_not_block() -> None:
    steps = Steps()
    gate = asyncio.Event()

    async def run() -> None:
        await gate.wait()

    waiting = asyncio.ensure_future(steps.watch.watched(run(), "patient"))
    await asyncio.sleep(0)
    steps.take(60.0)
    gate.set()
    await waiting
    assert steps.watch.blocked == 0


async def test_cancels_and_errors_reach_the_tool_and_come_out_of_it() -> None:
    watch, heard = LoopWatch(ManualClock()), list[str]()

    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append("cancelled")
        return "went on"

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    task = asyncio.ensure_future(watch.watched(stubborn(), "stubborn"))
    await asyncio.sleep(0)
    task.cancel()
    assert (await task, heard) == ("went on", ["cancelled"])
    with pytest.raises(ValueError, match="no"):
        await watch.watched(failing(), "failing")
