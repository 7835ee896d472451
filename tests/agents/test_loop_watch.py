"""Code of an app that blocks the event loop is named, while it does so."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec import Struct
from scene import agent, running

from outlast import Approval, Context, ToolResult, tool
from outlast.agents.runtime import loop_watch
from outlast.agents.runtime.loop_watch import LONGEST_STEP, LoopWatch
from outlast.log_context import enter
from outlast.prompts import PromptTemplate, Section
from outlast.state import reducer, slice_type
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


# Where an app's code runs on the loop besides its tools


@slice_type("busy_marks")
class BusyMark(Struct, frozen=True):
    text: str


class BusyMade(Struct, frozen=True):
    text: str


BUSY = Told()
"""Whoever is blocked until a warning has named it."""


@reducer(BusyMark, BusyMade)
def mark_slowly(marks: Sequence[BusyMark], event: BusyMade) -> Sequence[BusyMark]:
    return [*marks, BusyMark(f"{event.text} {named_in_time()}")]


def named_in_time() -> str:
    return "named" if BUSY.event.wait(60) else "not named"


@tool
async def work() -> str:
    return "worked"


@tool(approval=lambda _: named_in_time() == "not named")
async def careful() -> str:
    return "worked"


@tool
async def made() -> ToolResult[BusyMade]:
    return ToolResult("made", BusyMade("by a tool"))


def template(**options: Any) -> PromptTemplate:
    return PromptTemplate([Section("Where", "At $place.", **options)], params={"place": "home"})


def everywhere(ctx: Any) -> Any:
    return {"place": named_in_time()}


async def told_slowly(ctx: Any) -> str:
    await asyncio.sleep(0)
    return named_in_time()


BLOCKED: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "instructions": ({"instructions": lambda _: named_in_time()}, ("instructions", "a")),
    "async instructions": ({"instructions": told_slowly}, ("instructions", "a")),
    "section": (
        {"instructions": PromptTemplate([Section("Where", lambda _: named_in_time())])},
        ("section", "Where"),
    ),
    "async section": (
        {"instructions": PromptTemplate([Section("Where", told_slowly)])},
        ("section", "Where"),
    ),
    "visibility": (
        {
            "instructions": template(
                summary="Somewhere.", visibility=lambda _: named_in_time() and "full"
            )
        },
        ("section", "Where"),
    ),
    "params": (
        {"instructions": PromptTemplate([Section("Where", "At $place.")], params=everywhere)},
        ("section", "params"),
    ),
    "approval": ({"tools": [careful]}, ("approval", "careful")),
    "reducer": ({"tools": [made]}, ("reducer", "BusyMade")),
}


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("options", "named"), BLOCKED.values(), ids=BLOCKED)
async def test_other_code_that_blocks_the_loop_is_named_as_well(
    options: dict[str, Any], named: tuple[str, str]
) -> None:
    name = {"approval": "careful", "reducer": "made"}.get(named[0], "work")
    options = {"tools": [work], **options}
    with listening() as records:
        async with running(agent([call(name), say("done")], **options)) as app:
            session = await app.start("a", "go")
            assert (await session.wait()).output == "done"

    key, value = named
    [record] = [each.__dict__ for each in records if key in each.__dict__]
    assert (record[key], record["session"]) == (value, session.id)


@pytest.mark.usefixtures("brief")
async def test_a_reducer_that_blocks_the_loop_for_somebody_outside_is_named() -> None:
    with listening() as records:
        async with running(agent([])) as app:
            session = await app.start("a", "go")
            receipt = await session.mutate(BusyMark).dispatch(BusyMade("from outside"))
            await receipt.result()
            marks = await session.query(BusyMark).all()

    assert [mark.text for mark in marks] == ["from outside named"]
    assert "busy_marks" in [record.__dict__.get("reducer") for record in records]


@pytest.mark.usefixtures("brief")
async def test_who_may_approve_is_named_where_asking_blocks_the_loop() -> None:
    asked = []

    def may(who: str) -> bool:
        asked.append(who)  # first by the handle that the answer is given to, then by the worker
        return len(asked) == 1 or named_in_time() == "named"

    @tool(approval=Approval("always", approvers=may))
    async def pay() -> str:
        return "paid"

    async with running(agent([call("pay"), say("done")], tools=[pay])) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        with listening() as records:
            receipt = await session.answer(request.request_id, "approve", principal="ada")
            assert (await receipt.result()).output == "done"

    assert "pay" in [record.__dict__.get("approvers") for record in records]


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have little time be too long, so that these tests need not wait for much."""
    monkeypatch.setattr(loop_watch, "LONGEST_STEP", 0.05)
    monkeypatch.setattr(loop_watch, "INTERVAL", 0.01)


@contextmanager
def listening() -> Iterator[list[logging.LogRecord]]:
    """Have what blocks go on as soon as a warning has named it."""
    BUSY.event.clear()
    BUSY.records.clear()
    logging.getLogger("outlast.agents").addHandler(BUSY)
    try:
        yield BUSY.records
    finally:
        logging.getLogger("outlast.agents").removeHandler(BUSY)


# How it is measured


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

    assert await steps.watch.watched(run(), tool="busy") == "done"
    assert steps.watch.counts() == {"blocked_loops": 1}
    [record] = caplog.records
    assert (record.__dict__["tool"], record.__dict__["session"]) == ("busy", "ses_1")


async def test_what_is_called_within_a_step_is_named_and_then_what_called_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps = Steps()

    async def run() -> None:
        with steps.watch.inside(reducer="notes"):
            steps.take(2 * LONGEST_STEP)
        steps.take(2 * LONGEST_STEP)

    await steps.watch.watched(run(), tool="busy")

    first, second = [record.__dict__ for record in caplog.records]
    assert (first["reducer"], first.get("tool")) == ("notes", None)
    assert (second["tool"], second["seconds"]) == ("busy", 4 * LONGEST_STEP)


async def test_a_tool_that_waits_does_not_block() -> None:
    steps = Steps()
    gate = asyncio.Event()

    async def run() -> None:
        await gate.wait()

    waiting = asyncio.ensure_future(steps.watch.watched(run(), tool="patient"))
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

    task = asyncio.ensure_future(watch.watched(stubborn(), tool="stubborn"))
    await asyncio.sleep(0)
    task.cancel()
    assert (await task, heard) == ("went on", ["cancelled"])
    with pytest.raises(ValueError, match="no"):
        await watch.watched(failing(), tool="failing")
