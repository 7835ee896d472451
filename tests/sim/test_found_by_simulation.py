"""What the simulation found, each reduced to the smallest story that shows it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace
from scene import FAST, agent, log_of, running, until

from outlast import Context, DedupeKey, Session, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.limit import Bound
from outlast.errors import StoreUnavailable
from outlast.log.verify import verify
from outlast.store import (
    Claim,
    Commit,
    Committed,
    Lease,
    Loaded,
    PermitRequest,
    Refused,
    Renewal,
    WorkerInfo,
)
from outlast.stores.sqlite import MemoryStore
from outlast.testing.scripted import ScriptedError, ScriptedReply, call, calls, say
from outlast.testing.wrapped_store import WrappedStore

T = TypeVar("T")

BRIEF = replace(FAST, lease=0.15)


async def takeovers(session: Session[Any]) -> int:
    events = await log_of(session, internals=True)
    return sum(event.type == "lane.taken_over" for event in events)


# A worker that was taken for dead


class AwayForAWhile(WrappedStore):
    """Can be reached by a worker at first, then not for its next few tries to enlist."""

    def __init__(self, store: MemoryStore, tries: int) -> None:
        super().__init__(store)
        self.is_back = asyncio.Event()
        self._tries = tries
        self._enlisted = 0

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        self._enlisted += 1
        if 1 < self._enlisted <= 1 + self._tries:
            raise StoreUnavailable("the connection was lost")
        if self._enlisted > 1:
            self.is_back.set()
        return await self.inner.work.enlist(worker, lease)


async def test_a_worker_taken_for_dead_enlists_again_even_if_the_store_is_away_for_a_while() -> (
    None
):
    store = MemoryStore()
    away = AwayForAWhile(store, tries=2)
    async with running(agent([say("hello")]), store=away, settings=BRIEF) as app:
        [before] = await store.work.workers()
        store.declare_dead(before.worker)
        await away.is_back.wait()
        session = await app.start("a", "hi")

        assert (await session.wait()).output == "hello"


class NeverAgain(AwayForAWhile):
    """Notes who claims after it was taken for dead."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, tries=1)
        self.claimed: list[tuple[str, bool]] = []

    async def claim(self, worker: str, *args: Any, **options: Any) -> Any:
        living = [known.worker for known in await self.inner.work.workers()]
        self.claimed.append((worker, worker in living))
        return await self.inner.work.claim(worker, *args, **options)


async def test_a_worker_that_is_not_enlisted_claims_nothing() -> None:
    store = MemoryStore()
    watched = NeverAgain(store)
    async with running(agent([say("hello")]), store=watched, settings=BRIEF):
        [before] = await store.work.workers()
        store.declare_dead(before.worker)
        await watched.is_back.wait()

    strangers = [name for name, is_living in watched.claimed if not is_living]
    assert set(strangers) <= {before.worker}


class SlowToEnlist(WrappedStore):
    """Answers the first who enlists only when that lease has run out; notes who claims."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.first = ""
        self.claimed: list[bool] = []
        self.has_claimed = asyncio.Event()

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        held = await self.inner.work.enlist(worker, lease)
        if not self.first:
            self.first = worker.worker
            await asyncio.sleep(2 * lease / 1000)
        return held

    async def claim(self, worker: str, *args: Any, **options: Any) -> Any:
        self.claimed.append(worker in [info.worker for info in await self.inner.work.workers()])
        self.has_claimed.set()
        return await self.inner.work.claim(worker, *args, **options)


async def test_a_lease_that_ran_out_before_the_answer_came_is_renewed_before_it_is_used() -> None:
    store = SlowToEnlist(MemoryStore())
    async with running(agent([say("hello")]), store=store, settings=BRIEF):
        await store.has_claimed.wait()

    assert all(store.claimed)


# A graceful stop


class HeldLease:
    """A lease that cannot be given up."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.is_asked_for = False

    def renew(self, counters: str = "") -> Renewal:
        return self._lease.renew(counters)

    def release(self) -> None:
        self.is_asked_for = True
        raise StoreUnavailable("the connection was lost")


class KeepsLeases(WrappedStore):
    held: HeldLease

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        self.held = HeldLease(await self.inner.work.enlist(worker, lease))
        return self.held


async def test_a_stop_succeeds_though_the_store_is_away_when_the_lease_is_given_up() -> None:
    store = KeepsLeases(MemoryStore())
    async with running(agent([say("hello")]), store=store) as app:
        session = await app.start("a", "hi")
        await session.wait()

    assert store.held.is_asked_for
    assert not app.is_open


class HangingLease(HeldLease):
    """A lease whose renewal does not come back."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(lease)
        self.is_renewed, self.opens = threading.Event(), threading.Event()

    def renew(self, counters: str = "") -> Renewal:
        self.is_renewed.set()
        self.opens.wait()
        return Renewal(alive=True)


class HangsLeases(WrappedStore):
    held: HangingLease

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        self.held = HangingLease(await self.inner.work.enlist(worker, lease))
        return self.held


async def test_a_stop_succeeds_though_a_renewal_of_the_lease_hangs() -> None:
    store = HangsLeases(MemoryStore())
    async with asyncio.timeout(60):
        async with running(agent([say("hello")]), store=store, settings=BRIEF) as app:
            await asyncio.to_thread(store.held.is_renewed.wait)

    assert not app.is_open
    assert not store.held.is_asked_for
    store.held.opens.set()


# A call that is stopped while it records something


class Slow(WrappedStore):
    """Takes its time to acknowledge; what it was given it writes, whoever waits for it."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.is_slow = False
        self.has_written = asyncio.Event()

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await asyncio.shield(self._write(self.inner.log.commit(commits)))

    async def _write(self, commit: Awaitable[T]) -> T:
        result = await commit
        if self.is_slow:
            self.has_written.set()
            await asyncio.sleep(0.1)
        return result


async def test_a_call_stopped_while_it_records_a_step_costs_its_lane_nothing() -> None:
    slow = Slow(MemoryStore())

    @tool(timeout=0.05)
    async def hurry(ctx: Context) -> str:
        slow.is_slow = True
        await ctx.step(lambda: 1, name="first")
        return "never"

    @tool
    async def charge() -> str:
        await slow.has_written.wait()
        slow.is_slow = False
        await asyncio.sleep(0.2)
        return "charged"

    both = agent([calls(("hurry", {}), ("charge", {})), say("done")], tools=[hurry, charge])
    async with running(both, store=slow) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"

        assert (await until(session, "tool.interrupted")).data["reason"] == "timeout"
        assert (await until(session, "tool.completed")).data["value"] == "charged"
        assert await takeovers(session) == 0


# A store that is away for a moment


class FailsOnce(WrappedStore):
    """Fails one read, the next after `fails` was set."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.fails = False
        self.has_failed = asyncio.Event()

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        if self.fails:
            self.fails = False
            self.has_failed.set()
            raise StoreUnavailable("the connection was lost")
        return await self.inner.log.load(session_id, lane, after)


async def test_a_read_that_fails_interrupts_nothing_that_runs() -> None:
    store, entered, opens = FailsOnce(MemoryStore()), asyncio.Event(), asyncio.Event()

    @tool
    async def charge() -> str:
        entered.set()
        await opens.wait()
        return "charged"

    async with running(agent([call("charge"), say("done")], tools=[charge]), store=store) as app:
        session = await app.start("a", "go")
        await entered.wait()
        store.fails = True
        await session.send("hello?")
        await store.has_failed.wait()
        opens.set()

        assert (await until(session, "tool.completed")).data["value"] == "charged"
        assert await takeovers(session) == 0


async def test_a_read_that_fails_after_a_commit_does_not_count_it_twice() -> None:
    store, opens = FailsOnce(MemoryStore()), asyncio.Event()

    @tool
    async def charge(ctx: Context) -> str:
        await opens.wait()
        store.fails = True  # the next read is for what the other lane wrote
        return "charged"

    async with running(agent([call("charge"), say("done")], tools=[charge]), store=store) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started")
        other = await session.send("and you", lane="notes")
        opens.set()
        await other.result()
        await session.wait()

        assert await takeovers(session) == 0


async def test_a_short_wait_before_another_try_leaves_the_lane_where_it_is() -> None:
    busy = ScriptedReply(text="hello", fails=(ScriptedError("transient", "busy", retry_after=20),))
    async with running(agent([busy])) as app:
        session = await app.start("a", "hi")

        assert (await session.wait()).output == "hello"
        assert await takeovers(session) == 0


class SlowToWrite(WrappedStore):
    """Writes late while it is slow, and wakes nobody up."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.is_slow = False
        self.is_asked = asyncio.Event()

    def listen(self, *_: Any) -> Callable[[], None]:
        return lambda: None

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await asyncio.shield(self._write(commits))

    async def _write(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        if self.is_slow:
            self.is_slow = False
            self.is_asked.set()
            await asyncio.sleep(0.15)
        return await self.inner.log.commit(commits)


async def test_an_answer_is_not_slept_through_that_comes_while_a_stopped_call_records_a_step() -> (
    None
):
    slow = SlowToWrite(MemoryStore())

    @tool(timeout=0.05)
    async def hurry(ctx: Context) -> str:
        slow.is_slow = True
        await ctx.step(lambda: 1, name="first")
        return "never"

    @tool(approval="always")
    async def pay() -> str:
        return "paid"

    both = agent([calls(("hurry", {}), ("pay", {})), say("done")], tools=[hurry, pay])
    async with running(both, store=slow) as app:
        session = await app.start("a", "go")
        await slow.is_asked.wait()
        [request] = await session.requests()
        receipt = await session.answer(request.request_id, "approve")

        assert (await asyncio.wait_for(receipt.result(), 60)).output == "done"


async def test_a_crash_between_two_calls_with_one_key_leaves_neither_waiting_for_itself() -> None:
    store, entered, runs = MemoryStore(), asyncio.Event(), 0

    @tool(idempotent=True, idempotency_key=DedupeKey(lambda args: "one", "session"))
    async def register(n: int) -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            entered.set()
            await asyncio.Event().wait()
        return f"run {runs}"

    twins = agent(
        [calls(("register", {"n": 1}), ("register", {"n": 2})), say("done")], tools=[register]
    )
    async with running(twins, store=store, settings=replace(FAST, name="w1")) as app:
        session = await app.start("a", "go")
        await entered.wait()
        async with running(twins, store=store, settings=replace(FAST, name="w2")):
            store.declare_dead("w1")

            assert (await asyncio.wait_for(session.wait(), 60)).output == "done"
            assert runs == 2


# A place that is held by nobody


class LeavesAGhost(WrappedStore):
    """Has a place held by a call that is in no log, as of an owner whose last answer was lost."""

    has_left = False

    async def claim(self, worker: str, limit: int, *args: Any, **options: Any) -> Sequence[Claim]:
        claims = await self.inner.work.claim(worker, limit, *args, **options)
        if self.has_left or not claims:
            return claims
        self.has_left = True
        [claim] = claims
        wish = PermitRequest(
            session_id=claim.session_id,
            lane=claim.lane,
            worker=worker,
            fence=claim.fence,
            call_id="t1.s1.c9",
            bounds=(Bound("mutex:default:desk", 1),),
        )
        await self.inner.limit.acquire([wish])
        return [replace(claim, permits=("t1.s1.c9",))]


async def test_a_call_does_not_wait_for_a_place_that_a_lost_call_of_its_own_lane_has() -> None:
    @tool(mutex="desk")
    async def edit() -> str:
        return "edited"

    store = LeavesAGhost(MemoryStore())
    async with running(agent([call("edit"), say("done")], tools=[edit]), store=store) as app:
        session = await app.start("a", "go")
        await until(session, "tool.completed")

        assert (await session.wait()).output == "done"
        assert await app.store.limit.permits() == []


# Two lanes that end their session


class SlowToEnd(WrappedStore):
    """Keeps the commit of a lane that would end its session until another lane has."""

    def __init__(self, store: MemoryStore, lane: str) -> None:
        super().__init__(store)
        self.is_held = asyncio.Event()
        self.has_ended = asyncio.Event()
        self._lane = lane

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        ending = [commit for commit in commits if commit.index.over]
        if any(commit.lane == self._lane for commit in ending):
            self.is_held.set()
            await self.has_ended.wait()
        results = await super().commit(commits)
        if any(commit.lane != self._lane for commit in ending):
            self.has_ended.set()
        return results


async def test_a_session_that_two_lanes_end_at_once_ends_once() -> None:
    broken = ScriptedReply(fails=(ScriptedError("structural", "no such model"),))
    store = SlowToEnd(MemoryStore(), "notes")

    def answer(request: ModelRequest) -> ScriptedReply:
        return broken if request.call_id.startswith("notes/") else say("well")

    async with running(agent(answer), store=store) as app:
        session = await app.start("a", "go")
        await session.wait()
        await session.send("go", lane="notes")
        await store.is_held.wait()
        await session.end("enough")
        async with asyncio.timeout(60):
            await store.has_ended.wait()
            while (await session.info()).lanes[1].status == "running":  # noqa: ASYNC110 - or not
                await asyncio.sleep(0.01)

        ends = {"session.ended", "session.failed", "session.completed"}
        assert [e.type for e in await log_of(session) if e.type in ends] == ["session.ended"]
        info = await session.info()
        assert info.over == "ended"
        assert {lane.status for lane in info.lanes} == {"ended"}
        assert not await verify(store, session.id)
