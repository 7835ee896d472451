"""Transactional tools whose time is up: while they commit, and while they hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scene import agent, results_of, running, the, until

from holdfast import Context, tool
from holdfast.store import Commit, Committed, Refused, Transaction
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.scripted import call, say
from holdfast.testing.wrapped import WrappedStore
from holdfast.verify import verify

PAY = "INSERT INTO paid VALUES (1)"


async def store_with_table(path: Path) -> SqliteStore:
    store = SqliteStore(path / "holdfast.db")
    await store.migrate()
    async with running(agent([call("prepare"), say("done")], tools=[prepare]), store=store) as app:
        await (await app.start("a", "go")).wait()
    return SqliteStore(path / "holdfast.db")


@tool(transactional=True)
async def prepare(ctx: Context) -> None:
    await ctx.tx.execute("CREATE TABLE paid (times)")


async def payments(store: WrappedStore | SqliteStore) -> int:
    async with store.transaction() as tx:
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
        async with self.inner.transaction(limit) as transaction:
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
