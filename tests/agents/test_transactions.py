"""Transactional tools whose time is up: while they commit, and while they hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rival import ask
from scene import agent, results_of, running, the, until

from outlast import Context, Limits, tool
from outlast.errors import StoreUnavailable
from outlast.log.verify import verify
from outlast.store import Commit, Committed, Refused, Store, Transaction
from outlast.stores.sqlite import SqliteStore
from outlast.testing.scripted import call, calls, say
from outlast.testing.wrapped_store import WrappedStore

PAY = "INSERT INTO paid VALUES (1)"


async def store_with_table(path: Path) -> SqliteStore:
    store = SqliteStore(path / "outlast.db")
    await store.migrate()
    async with running(agent([call("prepare"), say("done")], tools=[prepare]), store=store) as app:
        await (await app.start("a", "go")).wait()
    return SqliteStore(path / "outlast.db")


@tool(transactional=True)
async def prepare(ctx: Context) -> None:
    await ctx.tx.execute("CREATE TABLE paid (times)")


async def payments(store: Store) -> int:
    async with store.log.transaction() as tx:
        return len(await tx.fetch("SELECT * FROM paid"))


class SlowTransaction:
    def __init__(self, inner: Transaction, seconds: float) -> None:
        self._inner = inner
        self._seconds = seconds

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        return await self._inner.execute(sql, params)

    async def commit(self, commit: Commit) -> Committed | Refused:
        result = await self._inner.commit(commit)
        await asyncio.sleep(self._seconds)
        return result


class SlowToCommit(WrappedStore):
    """A store whose transactions take longer to commit than the tool may."""

    @asynccontextmanager
    async def transaction(self, limit: float = 5.0) -> AsyncIterator[Any]:
        async with self.inner.log.transaction(limit) as transaction:
            yield SlowTransaction(transaction, 2.5)


async def test_a_tool_whose_time_is_up_while_it_commits_has_its_effect_once(
    tmp_path: Path,
) -> None:
    @tool(transactional=True, timeout=2)
    async def pay(ctx: Context) -> str:
        await ctx.tx.execute(PAY)
        return "paid"

    store = SlowToCommit(await store_with_table(tmp_path))
    async with running(agent([call("pay"), say("done")], tools=[pay]), store=store) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ["paid"]
        assert await the(session, "tool.interrupted") == []
        assert await verify(app.store, session.id) == []
        assert await payments(store.inner) == 1


async def test_a_tool_that_hangs_in_its_transaction_is_cancelled_when_that_was_undone(
    tmp_path: Path,
) -> None:
    may_end, ended = asyncio.Event(), asyncio.Event()

    @tool(transactional=True)
    async def pay(ctx: Context) -> str:
        await ctx.tx.execute(PAY)
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue
        ended.set()
        return "too late"

    store = await store_with_table(tmp_path)
    async with running(agent([call("pay")], tools=[pay]), store=store) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started")
        await session.cancel()
        async with asyncio.timeout(60):
            assert (await session.wait()).status == "cancelled"

        may_end.set()
        await ended.wait()
        assert await payments(store) == 0
        assert await the(session, "tool.completed") == []
        assert await verify(app.store, session.id) == []


@pytest.mark.parametrize("params", [{"times": 1}, "1", b"1", 7])
async def test_parameters_that_are_in_no_order_are_refused(tmp_path: Path, params: Any) -> None:
    store = await store_with_table(tmp_path)

    @tool(transactional=True)
    async def pay(ctx: Context) -> None:
        await ctx.tx.execute("INSERT INTO paid VALUES (:times)", params)

    async with running(agent([call("pay"), say("well")], tools=[pay]), store=store) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "well"
        [told] = await results_of(session)
        assert "parameters of a statement are given in their order" in told
        assert await payments(app.store) == 0


async def test_a_transaction_that_is_cut_off_leaves_the_calls_beside_it_alone(
    postgres_url: str,
) -> None:
    told: list[str] = []
    is_paid = asyncio.Event()

    @tool()
    async def charge() -> str:
        told.append("charge")
        await is_paid.wait()
        return "charged"

    @tool(transactional=True)
    async def pay(ctx: Context) -> str:
        told.append("pay")
        await ctx.tx.execute("INSERT INTO contract_notes VALUES (1)")
        if told.count("pay") > 1:
            is_paid.set()
            return "paid"
        row = await ctx.tx.fetch_one("SELECT pg_backend_pid()")
        await ask(postgres_url, "SELECT pg_terminate_backend(%s, 10000)", *(row or ()))
        return "lost"

    both = agent([calls(("charge", {}), ("pay", {})), say("done")], tools=[charge, pay])
    async with running(both, store=postgres_url) as app:
        await ask(postgres_url, "CREATE TABLE contract_notes (note integer)")
        session = await app.start("a", "go")
        async with asyncio.timeout(60):
            await session.wait()

        assert sorted(told) == ["charge", "pay", "pay"]
        assert await results_of(session) == ["charged", "paid"]
        [undone] = await the(session, "tool.interrupted")
        assert undone.data["reason"] == "undone"
        assert await verify(app.store, session.id) == []
        assert await ask(postgres_url, "SELECT * FROM contract_notes") == [(1,)]


class Crowded(WrappedStore):
    """A store that has no room for a tool's transaction."""

    is_crowded = True

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.refusals: asyncio.Queue[str] = asyncio.Queue()

    @asynccontextmanager
    async def transaction(self, limit: float = 5.0) -> AsyncIterator[Transaction]:
        if self.is_crowded:
            self.refusals.put_nowait("full")
            raise StoreUnavailable("there are too many clients already")
        async with self.inner.log.transaction(limit) as transaction:
            yield transaction


async def test_a_tool_waits_until_there_is_room_for_its_transaction_and_holds_nobody_up(
    tmp_path: Path,
) -> None:
    runs: list[str] = []

    @tool(transactional=True)
    async def pay(ctx: Context) -> str:
        runs.append("pay")
        await ctx.tx.execute(PAY)
        return "paid"

    @tool()
    async def make_room(ctx: Context) -> str:
        for _ in range(3):
            await store.refusals.get()
        await ctx.step(lambda: "written", name="write to the lane")
        store.is_crowded = False
        return "made"

    store = Crowded(await store_with_table(tmp_path))
    script = [calls(("pay", {}), ("make_room", {})), say("done")]
    both = agent(script, tools=[pay, make_room], limits=Limits(max_crashes=2))
    async with running(both, store=store) as app:
        session = await app.start("a", "go")
        async with asyncio.timeout(60):
            await session.wait()

        assert runs == ["pay"]
        assert await results_of(session) == ["paid", "made"]
        assert await the(session, "tool.interrupted") == []
        assert await payments(store.inner) == 1


async def test_a_tool_waits_for_its_transaction_no_longer_than_it_may_run(tmp_path: Path) -> None:
    @tool(transactional=True, timeout=0.3, on_interrupt="report")
    async def pay(ctx: Context) -> None:
        await ctx.tx.execute(PAY)

    store = Crowded(await store_with_table(tmp_path))
    async with running(agent([call("pay"), say("done")], tools=[pay]), store=store) as app:
        session = await app.start("a", "go")
        async with asyncio.timeout(60):
            await session.wait()

        [late] = await the(session, "tool.interrupted")
        assert late.data["reason"] == "timeout"


async def test_a_transaction_whose_result_cannot_be_stored_is_undone_and_the_model_is_told_why(
    tmp_path: Path,
) -> None:
    ran: list[int] = []

    @tool(transactional=True)
    async def pay(ctx: Context) -> object:
        ran.append(1)
        await ctx.tx.execute(PAY)
        return {"price": float("nan")}

    store = await store_with_table(tmp_path)
    async with running(agent([call("pay"), say("sorry")], tools=[pay]), store=store) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == "sorry"
        assert (await payments(store), len(ran)) == (0, 1)
        [told] = await results_of(session)
        assert told.startswith("NOT_ENCODABLE: ")
        assert "JSON has no word for nan" in told
