"""A worker that is asked to drain, by this process or by another."""

import asyncio

import pytest
from known import known
from msgspec.structs import replace
from scene import FAST, agent, results_of, running

from outlast import Outlast, tool
from outlast.errors import UnknownAgent
from outlast.stores.sqlite import MemoryStore
from outlast.testing.scripted import call, say

SHORT = replace(FAST, lease=6.0, grace=60.0)


async def test_a_worker_that_is_asked_to_drain_records_what_runs_and_leaves() -> None:
    entered, opens = asyncio.Event(), asyncio.Event()

    @tool
    async def gate() -> str:
        entered.set()
        await opens.wait()
        return "through"

    store, slow = MemoryStore(), agent([call("gate"), say("done")], tools=[gate])
    async with running(slow, store=store, settings=replace(SHORT, name="w1")) as app:
        session = await app.start("a", "go")
        await entered.wait()
        assert await store.work.drain("w1")
        await known(app.worker).until_draining()
        opens.set()
        await known(app.worker).until_stopped()

        assert await store.work.workers() == []
        assert [lane.worker for lane in (await session.info()).lanes] == [""]
        assert await results_of(session) == ["through"]
    async with running(slow, store=store) as app:
        assert (await (await app.session(session.id)).wait()).output == "done"


async def test_a_worker_that_drains_takes_up_nothing_more() -> None:
    store = MemoryStore()
    async with running(agent([say("hi")]), store=store, settings=SHORT) as app:
        await store.work.drain(known(app.worker).name)
        await known(app.worker).until_stopped()
        session = await app.start("a", "go")

        assert (await session.info()).lanes[0].fence == 0
        assert (await session.info()).status == "queued"


async def test_an_app_whose_worker_has_drained_can_be_closed() -> None:
    store = MemoryStore()
    async with running(agent([say("hi")]), store=store, settings=SHORT) as app:
        known(app.worker).drain()
        known(app.worker).drain()
        await known(app.worker).until_stopped()


async def test_a_worker_notices_at_once_where_hints_arrive() -> None:
    """The lease is a day long: what is noticed within the test was hinted at."""
    store, long = MemoryStore(), replace(FAST, lease=86_400.0)
    async with running(agent([say("hi")]), store=store, settings=long) as app:
        await store.work.drain(known(app.worker).name)
        await known(app.worker).until_stopped()


async def test_a_worker_serves_only_the_agents_it_is_told_to() -> None:
    store = MemoryStore()
    ours, theirs = agent([say("a")]), agent([say("b")])
    theirs.name = "b"
    settings = replace(FAST, agents=("a",), concurrency=7, lanes=("main",))
    async with running(ours, theirs, store=store, settings=settings) as app:
        left = await app.start("b", "go")
        assert (await (await app.start("a", "go")).wait()).output == "a"
        assert (await left.info()).lanes[0].fence == 0
        [info] = await store.work.workers()
        assert (info.agents, info.lanes, info.concurrency) == (("a",), ("main",), 7)


async def test_a_worker_cannot_serve_an_agent_that_the_app_does_not_have() -> None:
    app = Outlast([agent([say("a")])], store="memory://", worker=replace(FAST, agents=("nobody",)))
    with pytest.raises(UnknownAgent, match="nobody"):
        await app.open()
