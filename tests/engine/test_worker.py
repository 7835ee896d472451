import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from known import known
from msgspec.structs import replace
from scene import FAST, Watched, agent, log_of, results_of, running, the, until

from outlast import Agent, Context, Limits, Outlast, Session, WorkerSettings, tool
from outlast.core.instant import date_of
from outlast.core.message import Text, UserMessage
from outlast.engine.counters import WorkerCounters
from outlast.engine.owned_lane import OwnedLane
from outlast.engine.worker import LANE_OVERHEAD, LaneCache
from outlast.errors import InvalidInput, StoreUnavailable
from outlast.store import Claim, Commit, Committed, Refused, Store, TakeoverEvidence, WorkerInfo
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import ScriptedReply, call, calls, say
from outlast.testing.wrapped_store import WrappedStore


def named(name: str, **options: Any) -> WorkerSettings:
    return replace(FAST, name=name, **options)


class Gate:
    """A tool that hangs in its first attempts and says how often it was run."""

    def __init__(self, *, hangs: int = 1, **manners: Any) -> None:
        self.runs: list[int] = []
        self.opens = asyncio.Event()
        self.is_entered = asyncio.Event()

        @tool(**manners)
        async def gate(ctx: Context) -> str:
            self.runs.append(ctx.attempt)
            self.is_entered.set()
            if len(self.runs) <= hangs:
                await self.opens.wait()
            return f"run {len(self.runs)}"

        self.tool = gate

    def agent(self, **options: Any) -> Agent[Any, Any]:
        return agent([call("gate"), say("done")], tools=[self.tool], **options)


async def takeovers(session: Session[Any]) -> list[bool]:
    """Of each takeover, whether it was graceful."""
    events = await log_of(session, internals=True)
    return [e.data.get("graceful", False) for e in events if e.type == "lane.taken_over"]


# Stopping


async def test_a_graceful_stop_waits_a_little_for_calls_and_records_their_outcome() -> None:
    gate, store = Gate(), MemoryStore()
    async with running(gate.agent(), store=store, settings=named("w1", grace=60.0)) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started")
        await gate.is_entered.wait()
        closing = asyncio.create_task(app.close())
        asyncio.get_running_loop().call_soon(gate.opens.set)
        await closing
    async with running(gate.agent(), store=store, settings=named("w2")) as app:
        session = await app.session(session.id)
        assert (await session.wait()).output == "done"

        assert await results_of(session) == ["run 1"]
        assert gate.runs == [1]


async def test_a_graceful_stop_costs_no_attempt() -> None:
    gate, store = Gate(hangs=3, readonly=True), MemoryStore()
    limited = gate.agent(limits=Limits(max_crashes=2))
    async with running(limited, store=store) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started")
    for times in (2, 3):
        async with running(limited, store=store) as app:
            session = await app.session(session.id)
            await until(session, "tool.started", times)
    async with running(limited, store=store) as app:
        session = await app.session(session.id)

        assert (await session.wait()).output == "done"
        assert gate.runs == [1, 2, 3, 4]


async def test_a_stop_in_the_middle_of_an_answer_is_gone_on_with_by_another_worker() -> None:
    telling, store = ScriptedReply(text="abcdefghijkl", chunks=12, pace=0.02), MemoryStore()
    async with running(agent([telling]), store=store) as app:
        session = await app.start("a", "go")
        await until(session, "message.delta")
    async with running(agent([telling]), store=store) as app:
        session = await app.session(session.id)
        result = await session.wait()

        assert result.output == "abcdefghijkl"
        assert await takeovers(session) == [True, True]  # who handed it back, and who took it


async def test_a_call_that_a_graceful_stop_cut_off_is_not_told_as_a_crash() -> None:
    gate, store = Gate(hangs=1), MemoryStore()
    async with running(gate.agent(), store=store) as app:
        session = await app.start("a", "go")
        await gate.is_entered.wait()
    async with running(gate.agent(), store=store) as app:
        session = await app.session(session.id)
        await session.wait()

        [cut] = await the(session, "tool.interrupted")
        assert cut.data["reason"] == "stopped"


async def test_a_crash_after_a_graceful_stop_is_one() -> None:
    gate, store = Gate(hangs=2, readonly=True), MemoryStore()
    async with running(gate.agent(), store=store) as app:
        session = await app.start("a", "go")
        await gate.is_entered.wait()
    async with running(gate.agent(), store=store, settings=named("w2")) as app:
        session = await app.session(session.id)
        await until(session, "tool.started", 2)
        async with running(gate.agent(), store=store, settings=named("w3")) as third:
            store.declare_dead("w2")
            session = await third.session(session.id)
            await session.wait()

            assert await takeovers(session) == [True, True, False]


async def test_a_stopped_worker_leaves_no_lane_behind() -> None:
    store = MemoryStore()
    async with running(agent([say("hi")]), store=store) as app:
        session = await app.start("a", "go")
        await session.wait()

    assert await store.work.workers() == []
    info = await store.listing.session(session.id)
    assert [lane.worker for lane in known(info).lanes] == [""]


# Dying


async def test_a_dead_workers_lane_is_taken_over_and_its_interrupted_call_reported() -> None:
    gate, store = Gate(), MemoryStore()
    async with (
        running(gate.agent(), store=store, settings=named("w1")) as first,
        running(gate.agent(), store=store, settings=named("w2")) as second,
    ):
        session = await first.start("a", "go")
        await until(session, "tool.started")
        owner = (await session.info()).lanes[0].worker
        store.declare_dead(owner)
        session = await second.session(session.id)
        assert (await session.wait()).output == "done"

        assert gate.runs == [1]
        [told] = await results_of(session)
        assert "outcome of this call is unknown" in told
        assert (await session.info()).lanes[0].worker == ""


async def test_a_worker_that_wakes_late_cannot_add_a_record() -> None:
    gate, store = Gate(readonly=True), MemoryStore()
    async with (
        running(gate.agent(), store=store, settings=named("w1")) as first,
        running(gate.agent(), store=store, settings=named("w2")),
    ):
        session = await first.start("a", "go")
        await until(session, "tool.started")
        store.declare_dead((await session.info()).lanes[0].worker)
        assert (await session.wait()).output == "done"
        before = await log_of(session, internals=True)

        gate.opens.set()
        for _ in range(20):
            await asyncio.sleep(0)

        assert await log_of(session, internals=True) == before
        assert await results_of(session) == ["run 2"]


async def test_a_call_that_kills_its_worker_every_time_ends_its_turn_with_no_progress() -> None:
    gate, store = Gate(hangs=9, readonly=True), MemoryStore()
    deadly = gate.agent(limits=Limits(max_crashes=3))
    async with running(deadly, store=store, settings=named("w", lease=0.05, stop_grace=0.0)) as app:
        session = await app.start("a", "go")
        for times in (1, 2, 3):
            await until(session, "tool.started", times)
            store.declare_dead((await session.info()).lanes[0].worker)
        result = await session.wait()

        assert known(result.error).code == "NO_PROGRESS"
        assert gate.runs == [1, 2, 3]


async def test_a_worker_taken_for_dead_enlists_again_and_goes_on() -> None:
    store = MemoryStore()
    async with running(
        agent([say("one"), say("two")]), store=store, settings=named("w1", lease=0.05)
    ) as app:
        session = await app.start("a", "1")
        await session.wait()
        store.declare_dead("w1")
        await store.work.find_dead()

        assert (await (await session.send("2")).result()).output == "two"


# Working


async def test_a_worker_leaves_lanes_of_agents_that_it_does_not_know() -> None:
    store = MemoryStore()
    both = Outlast(
        [agent([say("a")]), Agent("b", agent([say("b")]).model)], store=store, worker=None
    )
    theirs = await both.start("b", "go")
    async with running(agent([say("a")]), store=store) as app:
        ours = await app.start("a", "go")
        assert (await ours.wait()).output == "a"

        assert [e.type for e in await log_of(theirs)] == ["session.started", "delivery.queued"]


async def test_a_worker_carries_no_more_lanes_at_once_than_it_may() -> None:
    now, most = 0, 0

    @tool(readonly=True)
    async def count() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1

    counting = agent([call("count"), say("done")], tools=[count])
    async with running(counting, settings=replace(FAST, concurrency=3)) as app:
        sessions = [await app.start("a", "go") for _ in range(12)]
        for session in sessions:
            assert (await session.wait()).output == "done"

    assert most == 3


async def test_many_sessions_are_carried_side_by_side() -> None:
    together = asyncio.Barrier(50)

    @tool(readonly=True)
    async def meet() -> str:
        await together.wait()
        return "met"

    async with running(agent([call("meet"), say("done")], tools=[meet])) as app:
        sessions = [await app.start("a", "go") for _ in range(50)]
        outputs = [(await session.wait()).output for session in sessions]

    assert outputs == ["done"] * 50


async def test_a_long_conversation_is_gone_on_with_from_its_snapshot() -> None:
    store, long = MemoryStore(), "x" * 30_000
    model = Watched([say(long + str(n)) for n in range(8)])
    async with running(Agent("a", model), store=store) as app:
        session = await app.start("a", long)
        for n in range(6):
            await (await session.send(f"{n} {long}")).result()
    loaded = await store.log.load(session.id, "main")
    assert loaded.snapshot is not None

    async with running(Agent("a", model), store=store) as app:
        session = await app.session(session.id)
        assert (await (await session.send("more")).result()).output == long + "7"

    seen = model.seen[-1]
    assert len(seen) == 15
    assert seen[0] == UserMessage((Text(long),))
    assert seen == (await session.history())[:-1]


# A store that is away for a while


class AwayStore(WrappedStore):
    """A store that is away for some of its calls."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.away: list[str] = []

    def _may_be_away(self, name: str) -> None:
        if name in self.away:
            self.away.remove(name)
            raise StoreUnavailable("the store is away")

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        self._may_be_away("commit")
        return await super().commit(commits)

    async def claim(self, *args: Any, **options: Any) -> Any:
        self._may_be_away("claim")
        return await super().claim(*args, **options)

    async def find_dead(self) -> Mapping[str, TakeoverEvidence]:
        self._may_be_away("find_dead")
        return await super().find_dead()


async def test_a_store_that_is_away_for_a_while_costs_nothing_but_time() -> None:
    store = AwayStore(MemoryStore())
    store.away = ["claim", "find_dead", "commit", "commit"]
    runs: list[int] = []

    @tool
    async def pay() -> str:
        runs.append(1)
        return "paid"

    async with running(agent([call("pay"), say("done")], tools=[pay]), store=store) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"

        assert store.away == []
        assert runs == [1]
        assert await takeovers(session) == []


async def test_a_fault_that_nobody_foresaw_is_met_with_a_pause_and_another_try() -> None:
    class Broken(AwayStore):
        async def load(self, *args: Any, **options: Any) -> Any:
            if "load" in self.away:
                self.away.remove("load")
                raise RuntimeError("a bug")
            return await super().load(*args, **options)

    store = Broken(MemoryStore())
    store.away = ["load"]
    async with running(agent([say("done")]), store=store) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == "done"


async def test_results_that_end_together_are_committed_together() -> None:
    class Counting(AwayStore):
        commits = 0

        async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
            self.commits += 1
            return await super().commit(commits)

    @tool(readonly=True)
    async def look() -> str:
        return "seen"

    store = Counting(MemoryStore())
    script = [calls(*[("look", {})] * 8), say("done")]
    async with running(agent(script, tools=[look]), store=store) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert len(await the(session, "tool.completed")) == 8
        # The turn's start; answer and tool starts; outcomes and model start; answer and rest.
        assert store.commits <= 5


# Opening


async def test_an_app_that_is_being_opened_is_not_opened_again(tmp_path: Path) -> None:
    app = Outlast([agent([say("hello")])], store=f"sqlite:///{tmp_path / 'a.db'}", worker=FAST)

    opened = await asyncio.gather(app.open(), app.open(), return_exceptions=True)

    assert [type(each) for each in opened] == [type(None), InvalidInput]
    assert len(await app.store.work.workers()) == 1
    await app.close()


async def test_a_worker_that_cannot_listen_leaves_no_lease_behind() -> None:
    class Deaf(WrappedStore):
        def listen(self, heard: Any, session_id: str = "") -> Callable[[], None]:
            raise OSError("too many open files")

    store = Deaf(MemoryStore())
    app = Outlast([agent([say("hello")])], store=store, worker=FAST)
    before = set(threading.enumerate())

    with pytest.raises(OSError, match="too many"):
        await app.open()

    assert list(await store.work.workers()) == []
    new = set(threading.enumerate()) - before
    assert not any(thread.name == "outlast lease" for thread in new)


# A lease that ran out

END_LEASES = "UPDATE outlast_workers SET lease_until = 0"


async def test_a_worker_whose_lease_ran_out_lets_go_at_once_of_what_others_took() -> None:
    store, ended, ran = MemoryStore(), asyncio.Event(), asyncio.Event()

    @tool
    async def linger() -> str:
        ran.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    lingering = agent([call("linger")], tools=[linger])
    async with running(lingering, store=store, settings=replace(FAST, lease=60.0)) as app:
        session = await app.start("a", "go")
        await ran.wait()
        assert app.worker
        store.write_outside_transaction(lambda db: db.raw.execute(END_LEASES))
        heir = WorkerInfo(worker="heir", host="here", pid=1, started_at=date_of(0))
        await store.work.enlist(heir, 3_600_000)
        [taken] = await store.work.claim("heir", 1)
        assert app.worker._lease_keeper
        await asyncio.to_thread(app.worker._lease_keeper.renew)

        async with asyncio.timeout(60):
            await ended.wait()
        assert taken.session_id == session.id
        assert "tool.completed" not in [e.type for e in await log_of(session)]


# The cache of lanes


def given_back(store: Store, name: str, size: int) -> OwnedLane:
    claim = Claim(name, "default", "main", "a", 1, 0, 0, size=size)
    return OwnedLane(claim, "w1", store, ManualClock(), WorkerCounters(dict))


async def test_lanes_are_kept_as_long_as_their_bytes_fit() -> None:
    store, kept = MemoryStore(), LaneCache(10 * LANE_OVERHEAD)
    small = [given_back(store, f"small {number}", 0) for number in range(4)]
    for lane in small:
        kept.keep(lane)
    large = given_back(store, "large", 8 * LANE_OVERHEAD)
    kept.keep(large)

    assert [kept.take(lane.session_id, "main", 0) for lane in small] == [None] * 3 + [small[3]]
    assert kept.take("large", "main", 0) is large


async def test_a_lane_larger_than_the_cache_is_not_kept_and_what_left_makes_room() -> None:
    store, kept = MemoryStore(), LaneCache(4 * LANE_OVERHEAD)
    kept.keep(given_back(store, "too large", 4 * LANE_OVERHEAD))
    assert kept.take("too large", "main", 0) is None
    for _ in range(9):
        kept.keep(lane := given_back(store, "one", 2 * LANE_OVERHEAD))
        assert kept.take("one", "main", 0) is lane
    kept.keep(given_back(store, "grows", LANE_OVERHEAD))
    kept.keep(grown := given_back(store, "grows", 3 * LANE_OVERHEAD))
    assert kept.take("grows", "main", 0) is grown
