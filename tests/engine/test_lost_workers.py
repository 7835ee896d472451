"""A lane that kills its workers, and a session that has grown too large for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from scene import FAST, Watched, agent, running, the

from outlast import Agent, Limits, Outlast, WorkerSettings, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.instant import date_of
from outlast.errors import SessionTooLarge
from outlast.log.verify import verify
from outlast.session.inbox import QueueLimits
from outlast.store import Loaded, Store, WorkerInfo
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import ScriptedReply, call, say
from outlast.testing.wrapped_store import WrappedStore

MOST = 3
DEADLY = Limits(max_crashes=MOST)
LARGE = "x" * 100_000
FULL = QueueLimits(session_bytes=2 * len(LARGE))
ROOMY = QueueLimits(session_bytes=0)


class NotRead(WrappedStore):
    """A store in which reading a lane as a whole would be the end of its worker."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.loads: list[str] = []

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        if after is None:
            self.loads.append(session_id)
        return await self.inner.log.load(session_id, lane, after)


async def lose_workers(store: MemoryStore, clock: ManualClock, times: int) -> None:
    """Let workers claim what is ready and die before they have read it, one after the other."""
    for _ in range(times):
        clock.advance(300_000)
        name = clock.new_id("wrk")
        info = WorkerInfo(worker=name, host="here", pid=1, started_at=date_of(clock.now()))
        await store.work.enlist(info, 30_000)
        assert await store.work.claim(name, 10)
        store.declare_dead(name)
        assert list(await store.work.find_dead()) == [name]
    clock.advance(300_000)


async def started(store: Store, clock: ManualClock, *texts: str) -> str:
    """Start a session of which nobody has taken up anything."""
    async with Outlast(
        [agent([])], store=store, clock=clock, worker=None, queue_limits=ROOMY
    ) as app:
        session = await app.start("a", texts[0])
        for text in texts[1:]:
            await session.send(text)
        return session.id


async def test_a_lane_that_killed_its_workers_before_they_wrote_anything_fails_its_turn() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    session_id = await started(store, clock, "go")
    await lose_workers(store, clock, MOST)
    model, wrapped = Watched([say("hi")]), NotRead(store)
    settings = replace(FAST, lease=3600.0)
    deadly = Agent("a", model, limits=DEADLY)
    async with running(deadly, store=wrapped, clock=clock, settings=settings) as app:
        session = await app.session(session_id)
        result = await session.wait()

        assert result.error is not None
        assert result.error.code == "WORKERS_LOST"
        assert f"{MOST} workers" in result.error.message
        assert model.requests == []
        assert wrapped.loads == []
        assert await verify(store, session_id) == []


async def test_the_next_turn_of_such_a_lane_is_tried_once() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    session_id = await started(store, clock, "one", "two", "three")
    await lose_workers(store, clock, MOST)
    model = Watched([say("hi"), say("there")])
    settings = replace(FAST, lease=3600.0)
    deadly = Agent("a", model, limits=DEADLY)
    async with running(deadly, store=store, clock=clock, settings=settings) as app:
        session = await app.session(session_id)
        result = await session.wait()

        assert result.output == "there"
        assert len(await the(session, "turn.failed")) == 1
        assert len(await the(session, "turn.completed")) == 2
        [lane] = (await app.store.listing.session(session_id)).lanes  # type: ignore[union-attr]
        assert (lane.deaths, lane.claimable_at) == (0, None)
        assert await verify(store, session_id) == []


async def test_a_next_turn_that_costs_another_worker_fails_at_once() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    session_id = await started(store, clock, "one", "two", "three")
    await lose_workers(store, clock, MOST)
    asked: asyncio.Queue[str] = asyncio.Queue()

    def deadly(worker: str) -> Agent[Any, Any]:
        def never(_: ModelRequest) -> ScriptedReply:
            asked.put_nowait(worker)
            return say("never", delay=3600.0)

        return agent(never, limits=DEADLY)

    def settings(worker: str) -> WorkerSettings:
        return replace(FAST, lease=3600.0, name=worker)

    async with (
        running(deadly("w1"), store=store, clock=clock, settings=settings("w1")) as app,
        running(deadly("w2"), store=store, clock=clock, settings=settings("w2")),
    ):
        session = await app.session(session_id)
        owner = await asked.get()
        store.declare_dead(owner)
        await store.work.find_dead()
        clock.advance(300_000)
        assert await asked.get() != owner

        failed = await the(session, "turn.failed")
        assert [e.data["error"]["code"] for e in failed] == ["WORKERS_LOST"] * 2


async def test_an_open_turn_that_waits_is_failed_too_and_its_request_closed() -> None:
    @tool(approval="always")
    async def pay() -> str:
        return "paid"

    clock = ManualClock()
    store = MemoryStore(clock)
    settings = replace(FAST, lease=3600.0)
    payer = agent([call("pay"), say("done")], tools=[pay], limits=DEADLY)
    async with running(payer, store=store, clock=clock, settings=settings) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
    async with running(payer, store=store, clock=clock, settings=None) as app:
        session = await app.session(session.id)
        await session.answer(request.request_id, "approve")
    await lose_workers(store, clock, MOST)
    async with running(payer, store=store, clock=clock, settings=settings) as app:
        session = await app.session(session.id)
        result = await session.wait()

        assert result.error is not None
        assert result.error.code == "WORKERS_LOST"
        assert result.requests == ()
        assert await the(session, "tool.started") == []
        assert await verify(store, session.id) == []


async def test_what_got_on_between_two_crashes_is_not_counted() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    session_id = await started(store, clock, "one")
    await lose_workers(store, clock, MOST - 1)
    settings = replace(FAST, lease=3600.0)
    deadly = agent([say("hi"), say("there")], limits=DEADLY)
    async with running(deadly, store=store, clock=clock, settings=settings) as app:
        await (await app.session(session_id)).wait()
    async with running(deadly, store=store, clock=clock, settings=None) as app:
        await (await app.session(session_id)).send("two")
    await lose_workers(store, clock, MOST - 1)
    async with running(deadly, store=store, clock=clock, settings=settings) as app:
        assert (await (await app.session(session_id)).wait()).output == "there"


async def test_why_a_lane_is_left_alone_is_explained() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    session_id = await started(store, clock, "go")
    await lose_workers(store, clock, MOST)
    async with running(agent([]), store=store, clock=clock, settings=None) as app:
        session = await app.session(session_id)
        [main] = (await session.explain()).lanes
        [told] = [link for link in main.links if link.kind == "deaths"]
        assert told.text.startswith("3 workers died with it in a row")
    await lose_workers(store, clock, 1)
    clock.advance(-299_000)
    async with running(agent([]), store=store, clock=clock, settings=None) as app:
        [main] = (await (await app.session(session_id)).explain()).lanes
        [told] = [link for link in main.links if link.kind == "deaths"]
        assert told.text.endswith("it is left alone for a while")
        assert told.until is not None
        assert told.until > date_of(clock.now())


# Too large


async def test_a_session_that_is_too_large_fails_its_turns_unread() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    session_id = await started(store, clock, LARGE, LARGE, LARGE)
    model, wrapped = Watched([]), NotRead(store)
    async with running(Agent("a", model), store=wrapped, clock=clock, queue_limits=FULL) as app:
        session = await app.session(session_id)
        result = await session.wait()

        failed = await the(session, "turn.failed")
        assert [e.data["error"]["code"] for e in failed] == ["SESSION_TOO_LARGE"] * 3
        assert result.error is not None
        assert "go on in a new session" in result.error.message
        assert (model.requests, wrapped.loads) == ([], [])
        assert await verify(store, session_id) == []


async def test_a_turn_that_makes_its_session_too_large_fails_before_the_next_model_call() -> None:
    @tool(readonly=True)
    async def fetch() -> str:
        return 3 * LARGE

    model = Watched([call("fetch"), say("done")])
    async with running(Agent("a", model, tools=[fetch]), queue_limits=FULL) as app:
        session = await app.start("a", "go")
        result = await session.wait()

        assert result.error is not None
        assert result.error.code == "SESSION_TOO_LARGE"
        assert len(model.requests) == 1
        [done] = await the(session, "tool.completed")
        assert done.data["value"] == 3 * LARGE
        assert await verify(app.store, session.id) == []
        with pytest.raises(SessionTooLarge, match="go on in a new session"):
            await session.send("more")


async def test_a_session_that_is_too_large_can_be_ended() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    session_id = await started(store, clock, LARGE, LARGE, LARGE)
    async with running(agent([]), store=store, clock=clock, settings=None) as app:
        await (await app.session(session_id)).end()
    async with running(agent([]), store=store, clock=clock, queue_limits=FULL) as app:
        session = await app.session(session_id)
        assert (await session.wait()).status == "ended"
        assert await the(session, "turn.failed") == []


async def test_with_a_higher_limit_the_session_goes_on() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    session_id = await started(store, clock, LARGE, LARGE, LARGE)
    async with running(agent([]), store=store, clock=clock, queue_limits=FULL) as app:
        await (await app.session(session_id)).wait()
    async with running(agent([say("hi")]), store=store, clock=clock, queue_limits=ROOMY) as app:
        session = await app.session(session_id)
        assert (await (await session.retry()).result()).output == "hi"
        assert await verify(store, session_id) == []
