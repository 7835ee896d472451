"""What chaos has found, made small."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chaos.agent import EFFECTS
from chaos.flow import Runner, errands
from chaos.ledger import Ledger
from chaos.place import SqlitePlace
from chaos.run import read_log
from chaos.user import Diary
from outlast import Agent, Context, Outlast, OutlastError, Session, WorkerSettings, tool
from outlast.core import record as r
from outlast.errors import NotInTransaction, StoreUnavailable
from outlast.log.verify import verify
from outlast.store import Commit, Committed, Refused
from outlast.stores.sqlite import SqliteStore
from outlast.testing import CrashingStore, ScriptedModel, calls, say
from outlast.testing.wrapped_store import WrappedStore


class LosesTransaction(CrashingStore):
    """Fails the first commit of a tool's transaction, before or after it was written."""

    def __init__(self, store: SqliteStore, error: OutlastError, *, lands: bool) -> None:
        super().__init__(store)
        self._error: OutlastError | None = error
        self._lands = lands

    async def count(
        self, commit: Commit, write: Callable[[Commit], Awaitable[Committed | Refused]]
    ) -> Committed | Refused:
        booked = any(getattr(e, "value", "") == '"booked"' for e in commit.records)
        error, self._error = (self._error, None) if booked else (None, self._error)
        if error is None:
            return await write(commit)
        if self._lands:
            await write(commit)
        raise error


def shop() -> Agent[Any, Any]:
    ended = asyncio.Event()

    @tool
    async def pay(ctx: Context[Any]) -> str:
        ended.set()
        return "paid"

    @tool(transactional=True)
    async def book(ctx: Context[Any]) -> str:
        await ended.wait()
        await ctx.tx.execute(f"INSERT INTO {EFFECTS} VALUES (?, ?)", (ctx.session.id, ctx.call_id))  # noqa: S608 - ours
        await asyncio.sleep(0.05)  # the other's outcome is about to be written
        return "booked"

    model = ScriptedModel([calls(("pay", {}), ("book", {})), say("All is done.")])
    return Agent("shop", model, tools=[pay, book])


@pytest.mark.parametrize(
    ("error", "lands", "rows", "outcome"),
    [
        (StoreUnavailable("cut before"), False, 1, r.ToolCompleted),
        (StoreUnavailable("cut after"), True, 1, r.ToolCompleted),
        (NotInTransaction("undone"), False, 0, r.ToolFailed),
    ],
    ids=["cut before it landed", "cut after it landed", "undone"],
)
async def test_a_transaction_that_cannot_be_committed_leaves_log_and_memory_as_one(
    tmp_path: Path, error: OutlastError, lands: bool, rows: int, outcome: type
) -> None:
    place = SqlitePlace(tmp_path)
    store = LosesTransaction(SqliteStore(tmp_path / "chaos.db"), error, lands=lands)
    async with Outlast([shop()], store=store) as app:
        place.create_effects()
        session: Session[Any] = await app.start("shop", "Go!")

        async with asyncio.timeout(30):
            result = await session.wait()

        log = await read_log(store, session.id)
        ends = [e.record for e in log if getattr(e.record, "call_id", "") == "t1.s1.c2"]
        assert result.output == "All is done."
        assert await verify(store, session.id) == []
        assert len(place.effects()) == rows
        assert isinstance(ends[-1], outcome)


async def test_a_connection_that_is_lost_inside_a_transaction_is_no_failure_of_the_tool(
    tmp_path: Path,
) -> None:
    @tool(transactional=True)
    async def book(ctx: Context[Any]) -> str:
        if ctx.attempt == 1:
            raise StoreUnavailable("cut")  # as `ctx.tx` does
        return "booked"

    agent: Agent[Any, Any] = Agent(
        "shop", ScriptedModel([calls(("book", {})), say("All is done.")]), tools=[book]
    )
    async with Outlast([agent], store=SqliteStore(tmp_path / "chaos.db")) as app:
        session: Session[Any] = await app.start("shop", "Go!")

        result = await session.wait()

        ends = [e.type async for e in session.events() if e.call_id == "t1.s1.c1"][-4:]
        assert result.output == "All is done."
        assert ends == ["tool.started", "tool.interrupted", "tool.started", "tool.completed"]
        assert await verify(app.store, session.id) == []


class NotesStep(WrappedStore):
    """Sets `began` once a step of this name was recorded to have begun."""

    def __init__(self, store: SqliteStore, name: str) -> None:
        super().__init__(store)
        self.began = asyncio.Event()
        self._name = name

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        found = await super().commit(commits)
        steps = (
            e for commit in commits for e in commit.records if isinstance(e, r.ToolStepStarted)
        )
        if any(self._name in step.name for step in steps):
            self.began.set()
        return found


async def test_an_errand_whose_cut_off_step_is_given_up_by_its_user_goes_on(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'chaos.db'}"
    ledger, diary = Ledger(tmp_path / "ledger"), Diary()
    store = NotesStep(SqliteStore(tmp_path / "chaos.db"), "asked")
    async with Outlast(errands(ledger, url), store=url, worker=None) as app:
        SqlitePlace(tmp_path).create_effects()
        user = asyncio.create_task(Runner("one", app, diary, Random(7)).live(1))
        async with Outlast(errands(ledger, url), store=store, worker=WorkerSettings(grace=0)):
            await store.began.wait()
        async with Outlast(errands(ledger, url), store=url):
            await user

    assert diary.complaints == []
