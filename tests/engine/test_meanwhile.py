"""What happens to a lane while it is busy with something else: reading, committing, stopping."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel
from scene import FAST, Watched, agent, results_of, running, seen, the, until

from outlast import Agent, Context, DedupeKey, Limit, tool
from outlast.core import record as r
from outlast.errors import StoreUnavailable
from outlast.store import Commit, Committed, Lease, LogPage, Refused, WorkerInfo
from outlast.stores.sqlite import MemoryStore, SqliteStore
from outlast.testing.scripted import ScriptedModel, call, calls, say
from outlast.testing.wrapped_store import WrappedStore

LONG = "x" * 30_000


class Spent(BaseModel):
    cents: int


def add(cents: int) -> Callable[[Spent | None], Spent]:
    return lambda spent: Spent(cents=(spent.cents if spent else 0) + cents)


class Meanwhile(WrappedStore):
    """A memory store in which something happens while a page is on its way, or before a commit."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.after_read: Callable[[], Awaitable[object]] | None = None
        self.before_commit: Callable[[Commit], Awaitable[object]] | None = None

    async def read(
        self,
        session_id: str,
        after: int,
        limit: int = 500,
        *,
        large: bool = True,
        lane: str | None = None,
    ) -> LogPage:
        page = await super().read(session_id, after, limit, large=large, lane=lane)
        if happens := self.after_read:
            self.after_read = None
            await happens()
        return page

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        if self.before_commit:
            await self.before_commit(commits[0])
        return await super().commit(commits)


class Silent(WrappedStore):
    """A store whose hints are all lost."""

    def listen(self, heard: Any, session_id: str = "") -> Callable[[], None]:
        return lambda: None


# What arrives


async def test_a_message_that_arrives_while_the_log_is_read_for_the_model_is_shown_to_it() -> None:
    store = Meanwhile()
    model = Watched([say(LONG + str(n)) for n in range(9)])
    async with running(Agent("a", model), store=store) as app:
        session = await app.start("a", LONG)
        for n in range(6):
            await (await session.send(f"{n} {LONG}")).result()
    assert (await store.log.load(session.id, "main")).snapshot is not None

    async with running(Agent("a", model), store=store) as app:
        session = await app.session(session.id)
        is_read, arrived = asyncio.Event(), asyncio.Event()

        async def pause() -> None:
            is_read.set()
            await arrived.wait()

        store.after_read = pause
        first = await session.send("first")
        await is_read.wait()
        second = await session.send("second")
        for _ in range(20):  # the lane hears of it
            await asyncio.sleep(0)
        arrived.set()
        await first.result()
        await second.result()

        assert model.seen[-1] == (await session.history())[:-1]


async def test_a_cancel_that_comes_before_a_lane_rests_for_a_place_is_not_slept_through() -> None:
    store = Meanwhile()
    leave = asyncio.Event()

    @tool(
        limit=Limit(concurrency=1), idempotency_key=DedupeKey(lambda args: args["who"], "session")
    )
    async def sit(who: str) -> None:
        await leave.wait()

    def sitter(who: str) -> Agent[None, str]:
        return Agent(who, ScriptedModel([call("sit", who=who), say("sat")]), tools=[sit])

    async with running(sitter("one"), sitter("two"), store=store) as app:
        one = await app.start("one", "go")
        await until(one, "tool.started")

        async def cancel(commit: Commit) -> None:
            if commit.session_id != one.id and is_answer(commit):
                store.before_commit = None
                await (await app.session(commit.session_id)).cancel("enough")

        store.before_commit = cancel
        two = await app.start("two", "go")
        result = await asyncio.wait_for(two.wait(), 30)

        assert result.status == "cancelled"
        leave.set()
        await one.wait()


def is_answer(commit: Commit) -> bool:
    return any(isinstance(record, r.MessageCompleted) for record in commit.records)


@pytest.mark.parametrize("how", ["cancel", "answer"])
async def test_what_arrives_for_a_lane_at_work_is_seen_though_nobody_is_told(how: str) -> None:
    store = Silent(MemoryStore())

    @tool
    async def dig() -> None:
        await asyncio.Event().wait()

    @tool(approval="always")
    async def pay() -> str:
        return "paid"

    script = [calls(("dig", {}), ("pay", {})), say("done")]
    async with running(agent(script, tools=[dig, pay]), store=store) as app:
        session = await app.start("a", "go")
        await seen(session, "request.opened")
        if how == "cancel":
            await session.cancel("enough")
            await seen(session, "turn.cancelled")
        else:
            [asked] = await session.requests()
            await session.answer(asked.request_id, "approve")
            await seen(session, "tool.completed")
            await session.end("enough")


# What a cancelled tool leaves


async def test_what_a_tool_updates_is_kept_if_it_ends_well_when_cancelled() -> None:
    @tool
    async def pay(ctx: Context, cents: int) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ctx.session.mutate(Spent).update(add(cents))
        return "paid"

    async with running(agent([call("pay", cents=5), say("done")], tools=[pay])) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started")
        await session.cancel("enough")
        await session.wait()

        assert await results_of(session) == ["paid"]
        assert await session.query(Spent).latest() == Spent(cents=5)


async def test_a_token_that_another_session_has_by_then_costs_a_cancelled_call_and_no_more() -> (
    None
):
    @tool
    async def move(ctx: Context) -> str:
        await ctx.session.set_continuation_token("thread-1")
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "moved"

    other = Agent("b", ScriptedModel([say("mine")]))
    async with running(agent([call("move"), say("done")], tools=[move]), other) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started")
        await app.start("b", "go", continuation_token="thread-1")
        await session.cancel("enough")
        result = await asyncio.wait_for(session.wait(), 30)

        assert result.status == "cancelled"
        [failed] = await the(session, "tool.failed")
        assert failed.data["error"]["code"] == "TOKEN_TAKEN"


# Who loses a race


async def test_a_transactional_tool_that_another_lane_was_quicker_than_is_run_again_by_itself(
    tmp_path: Path,
) -> None:
    counted, again = asyncio.Event(), asyncio.Event()
    mails: list[str] = []

    @tool(transactional=True)
    async def book(ctx: Context) -> str:
        await counted.wait()
        await ctx.tx.execute("CREATE TABLE IF NOT EXISTS booking (room TEXT)")
        await ctx.tx.execute("INSERT INTO booking VALUES ('a')")
        ctx.session.mutate(Spent).update(add(10))
        if ctx.attempt == 2:
            again.set()
        return f"booked at attempt {ctx.attempt}"

    @tool
    async def mail() -> str:
        mails.append("begun")
        await again.wait()
        mails.append("sent")
        return "sent"

    @tool
    async def count(ctx: Context) -> str:
        ctx.session.mutate(Spent).update(add(1))
        return "counted"

    def script(request: Any) -> Any:
        last = request.view.messages[-1]
        said = getattr(last, "content", None)
        if said is None:
            return say("done")
        return call("count") if said[0].text == "side" else calls(("book", {}), ("mail", {}))

    store = Silent(SqliteStore(tmp_path / "a.db"))
    async with running(agent(script, tools=[book, mail, count]), store=store) as app:
        session = await app.start("a", "main")
        await seen(session, "tool.started", 2)
        await session.send("side", lane="side")
        await seen(session, "turn.completed")
        counted.set()
        await seen(session, "turn.completed", 2)

        assert mails == ["begun", "sent"]
        assert sorted(await results_of(session)) == ["booked at attempt 2", "sent"]
        assert await session.query(Spent).latest() == Spent(cents=11)
        assert await the(session, "lane.taken_over") == []


# A lease that nobody confirms


async def test_nothing_begins_after_a_store_was_away_until_the_lease_is_confirmed_anew() -> None:
    class Away(Meanwhile):
        """A store whose leases cannot be renewed for a while."""

        is_away = False
        failures = 0

        async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
            return Held(await super().enlist(worker, lease), self)

    class Held:
        def __init__(self, lease: Lease, store: Away) -> None:
            self._lease = lease
            self._store = store

        def renew(self, counters: str = "") -> Any:
            if self._store.is_away:
                self._store.failures += 1
                raise StoreUnavailable("away")
            return self._lease.renew(counters)

        def release(self) -> None:
            self._lease.release()

    store, begun = Away(), asyncio.Event()

    async def be_away(commit: Commit) -> None:
        if is_answer(commit) and not store.failures:
            store.is_away = True
            while store.failures < 20:  # noqa: ASYNC110 - a thread counts, every thirtieth of a lease
                await asyncio.sleep(0.01)

    @tool
    async def pay() -> str:
        begun.set()
        return "paid"

    settings = replace(FAST, lease=0.6)
    store.before_commit = be_away
    script = [call("pay"), say("done")]
    async with running(agent(script, tools=[pay]), store=store, settings=settings) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started")
        for _ in range(50):
            await asyncio.sleep(0)
        assert not begun.is_set()
        store.is_away = False

        assert (await session.wait()).output == "done"
