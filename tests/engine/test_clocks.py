"""Clocks that differ: what a tool waits for is due by the store's, whatever a worker's shows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from scene import PATIENT, agent, results_of, running, the, types_of, until

from outlast import Agent, Context, Outlast, Session, tool
from outlast.core.instant import date_of
from outlast.log.reader import Wakeups
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import START, ManualClock
from outlast.testing.crash_everywhere import SharedStore
from outlast.testing.scripted import calls, say

HOUR = 3_600_000
DUE = START + HOUR

behind_or_ahead = pytest.mark.parametrize("off", [-3 * HOUR, 0, 3 * HOUR])


@asynccontextmanager
async def off_by(off: int, *agents: Agent[Any, Any]) -> AsyncIterator[tuple[Outlast, ManualClock]]:
    """An app by the store's clock, which is given as well; its worker's clock is off by so much."""
    clock, worker = ManualClock(), ManualClock(START + off)
    store = SharedStore(MemoryStore(clock))
    async with (
        running(*agents, settings=PATIENT, store=store, clock=worker),
        Outlast(agents, store=store, worker=None, clock=clock) as app,
    ):
        yield app, clock


@tool
async def ask(ctx: Context) -> str:
    return (await ctx.ask("Well?")).text


@tool
async def nap(ctx: Context) -> str:
    await ctx.sleep(timedelta(hours=1))
    return "rested"


@tool
async def meet(ctx: Context) -> str:
    await ctx.wait_until(datetime.fromtimestamp(DUE / 1000, UTC))
    return "met"


@tool
async def hurry(ctx: Context) -> str:
    return (await ctx.ask("Quick!", timeout=timedelta(hours=1))).text


@behind_or_ahead
@pytest.mark.parametrize("wait", [nap, meet], ids=["sleep", "wait_until"])
async def test_a_timer_is_due_by_the_stores_clock(off: int, wait: Any) -> None:
    script = [calls((wait.name, {}), ("ask", {})), say("done")]
    async with off_by(off, agent(script, tools=[wait, ask])) as (app, clock):
        session = await app.start("a", "go")
        set_up = await until(session, "timer.set")
        assert set_up.data["due_at"] == date_of(DUE)

        # Somebody else wakes the lane a moment before.
        [request] = (await session.wait()).requests
        clock.set(DUE - 1)
        await session.answer(request.request_id, text="now")
        await until(session, "tool.completed")
        assert await the(session, "timer.fired") == []
        clock.set(DUE)

        assert (await session.wait()).output == "done"
        assert len(await the(session, "timer.fired")) == 1


@behind_or_ahead
async def test_a_request_expires_by_the_stores_clock(off: int) -> None:
    script = [calls(("hurry", {}), ("ask", {})), say("done")]
    async with off_by(off, agent(script, tools=[hurry, ask])) as (app, clock):
        session = await app.start("a", "go")
        asked = {request.tool: request for request in (await session.wait()).requests}
        assert asked["hurry"].expires_at == date_of(DUE)

        clock.set(DUE - 1)
        await session.answer(asked["ask"].request_id, text="now")
        await until(session, "tool.completed")
        assert await the(session, "request.expired") == []
        clock.set(DUE)

        await the_end(session)
        assert await results_of(session) == ["TOOL_ERROR: nobody answered in time", "now"]


@behind_or_ahead
async def test_a_reader_waits_for_what_is_ready_by_the_stores_clock(off: int) -> None:
    clock, reader = ManualClock(), ManualClock(START + off)
    store = SharedStore(MemoryStore(clock))
    asking = agent([calls(("ask", {})), say("done")], tools=[ask])
    async with (
        running(asking, settings=PATIENT, store=store, clock=clock),
        Outlast([asking], store=store, worker=None, clock=reader) as app,
    ):
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        await session.answer(request.request_id, text="now")

        assert (await session.wait()).output == "done"


@behind_or_ahead
async def test_a_deadline_passes_by_the_stores_clock(off: int) -> None:
    script = [calls(("nap", {}), ("ask", {})), say("too late")]
    async with off_by(off, agent(script, tools=[nap, ask])) as (app, clock):
        session = await app.start("a", "go", deadline=timedelta(hours=1))
        [request] = (await session.wait()).requests
        clock.set(DUE - 1)
        await session.answer(request.request_id, text="now")
        await until(session, "tool.completed")
        assert await the(session, "turn.failed") == []
        clock.set(DUE)

        await the_end(session)
        [failed] = await the(session, "turn.failed")
        assert failed.data["error"]["code"] == "DEADLINE_EXCEEDED"


async def the_end(session: Session[Any]) -> None:
    """Wait for the end of the turn, though the lane may rest for its time before."""
    with Wakeups(session._store, session.id) as wakeups:
        while not {"turn.completed", "turn.failed"} & {*await types_of(session)}:
            wakeups.clear()
            await wakeups.wait()
