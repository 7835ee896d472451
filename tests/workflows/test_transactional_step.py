"""A transactional step: its statements and the record of its result are one commit."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scene import agent, log_of, results_of, running

from outlast import Context, Outlast, Run, WorkflowContext, tool, workflow
from outlast.errors import InvalidInput, NotInTransaction, StepError
from outlast.log.verify import verify
from outlast.store import Commit, Committed, Refused, Transaction
from outlast.stores.sqlite import SqliteStore
from outlast.testing import Ledger, crash_everywhere
from outlast.testing.scripted import call, say
from outlast.testing.wrapped_store import WrappedStore

MAKE = "CREATE TABLE IF NOT EXISTS booking (room INTEGER)"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'outlast.db'}"


async def book(tx: Transaction, room: int) -> int:
    await tx.execute(MAKE)
    await tx.execute(f"INSERT INTO booking VALUES ({room})")  # noqa: S608 - for both dialects
    [[count]] = await tx.fetch("SELECT count(*) FROM booking")
    return int(count)


async def booked(app: Outlast) -> list[int]:
    async with app.store.log.transaction() as tx:
        await tx.execute(MAKE)
        return [room for [room] in await tx.fetch("SELECT room FROM booking ORDER BY room")]


async def recorded(app: Outlast, run: Run[Any], kind: str) -> int:
    log = await log_of(await app.session(run.id), internals=True)
    return sum(event.type == kind for event in log)


async def test_what_a_transactional_step_writes_and_its_result_are_one_commit(url: str) -> None:
    @workflow
    async def trip(ctx: WorkflowContext) -> list[int]:
        first = await ctx.step(book, 1, transactional=True)
        await ctx.sleep(0.001)
        return [first, await ctx.step(book, 2, transactional=True)]

    async with running(trip, store=url) as app:
        run = await app.run(trip)

        assert (await run.wait(timeout=30)).unwrap() == [1, 2]
        assert await booked(app) == [1, 2]
        assert await recorded(app, run, "tool.step_started") == 0
        assert await verify(app.store, run.id) == []


async def test_a_transactional_step_that_fails_leaves_nothing_and_is_tried_again(url: str) -> None:
    tries = 0

    async def moody(tx: Transaction, room: int) -> int:
        nonlocal tries
        tries += 1
        await book(tx, room)
        if tries < 2:
            raise ConnectionError("away")
        return tries

    async def in_vain(tx: Transaction, room: int) -> object:
        await book(tx, room)
        return object()

    @workflow
    async def trip(ctx: WorkflowContext) -> int:
        tried = await ctx.step(moody, 1, max_attempts=2, transactional=True)
        with pytest.raises(StepError, match="cannot be stored"):
            await ctx.step(in_vain, 2, transactional=True)
        with pytest.raises(StepError, match="took too long"):
            await ctx.step(hang, 3, timeout=0.05, transactional=True)
        return tried

    async def hang(tx: Transaction, room: int) -> None:
        await book(tx, room)
        while True:
            await tx.fetch("SELECT 1")

    async with running(trip, store=url) as app:
        run = await app.run(trip)

        assert (await run.wait(timeout=30)).unwrap() == 2
        assert await booked(app) == [1]


async def test_branches_may_each_do_a_transactional_step(url: str) -> None:
    async def note(room: int) -> int:
        return room

    @workflow
    async def trip(ctx: WorkflowContext) -> list[int]:
        async def both(room: int) -> int:
            await ctx.step(note, room)
            return await ctx.step(book, room, transactional=True)

        return sorted(await ctx.map(both, [1, 2, 3]))

    async with running(trip, store=url) as app:
        run = await app.run(trip)

        assert (await run.wait(timeout=30)).unwrap() == [1, 2, 3]
        assert await booked(app) == [1, 2, 3]
        assert await verify(app.store, run.id) == []


async def test_nothing_waits_or_is_recorded_within_a_transactional_step() -> None:
    refused: list[str] = []

    @workflow
    async def trip(ctx: WorkflowContext) -> None:
        async def wait(tx: Transaction) -> None:
            await tx.execute(MAKE)
            forbidden: list[Callable[[], Awaitable[Any]]] = [
                lambda: ctx.sleep(1),
                lambda: ctx.step(str, 1),
                lambda: ctx.wait_event("go"),
                lambda: ctx.run("trip"),
                lambda: ctx.gather(),
                lambda: ctx.progress(1, 2),
            ]
            for what in forbidden:
                try:
                    await what()
                except NotInTransaction as error:
                    refused.append(error.message)

        await ctx.step(wait, transactional=True)
        assert await ctx.step(str, 1) == "1"
        with pytest.raises(InvalidInput, match="leave out readonly and on_interrupt"):
            await ctx.step(str, 1, on_interrupt="ask", transactional=True)  # type: ignore[call-overload]

    async with running(trip) as app:
        (await (await app.run(trip)).wait(timeout=30)).unwrap()

        assert len(refused) == 6
        assert {said.split(" cannot ")[1] for said in refused} == {
            "be used in a transactional step"
        }


async def test_a_constraint_that_is_checked_at_the_commit_fails_the_step(postgres_url: str) -> None:
    async def twice(tx: Transaction) -> None:
        await tx.execute("CREATE TABLE once (n INT UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        await tx.execute("INSERT INTO once VALUES (1), (1)")

    @workflow
    async def trip(ctx: WorkflowContext) -> int:
        with pytest.raises(StepError, match="duplicate key"):
            await ctx.step(twice, transactional=True)
        return await ctx.step(book, 1, transactional=True)

    async with running(trip, store=postgres_url) as app:
        assert (await (await app.run(trip)).wait(timeout=30)).unwrap() == 1


class OnceUndone(WrappedStore):
    """A database in which the first of these commits is stopped by another transaction."""

    undone = 0

    @asynccontextmanager
    async def transaction(self, limit: float = 5.0) -> AsyncIterator[Any]:
        async with self.inner.log.transaction(limit) as transaction:
            yield UndoneAtCommit(self, transaction)


class UndoneAtCommit:
    def __init__(self, store: OnceUndone, inner: Transaction) -> None:
        self._store = store
        self.execute, self.fetch, self._inner = inner.execute, inner.fetch, inner

    async def commit(self, commit: Commit) -> Committed | Refused:
        self._store.undone += 1
        return Refused("undone") if self._store.undone == 1 else await self._inner.commit(commit)


async def test_a_step_whose_transaction_is_undone_by_the_database_is_done_again(
    tmp_path: Path,
) -> None:
    @workflow
    async def trip(ctx: WorkflowContext) -> int:
        return await ctx.step(book, 1, transactional=True)

    store = OnceUndone(SqliteStore(tmp_path / "outlast.db"))
    await store.migrate()
    async with running(trip, store=store) as app:
        assert (await (await app.run(trip)).wait(timeout=30)).unwrap() == 1
        assert store.undone == 2
        assert await booked(app) == [1]


async def test_a_step_of_a_tool_is_transactional_too() -> None:
    @tool
    async def travel(ctx: Context) -> int:
        first = await ctx.step(book, 1, transactional=True)
        await ctx.sleep(0.001)
        return first

    async with running(agent([call("travel"), say("done")], tools=[travel])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ["1"]
        assert await booked(app) == [1]


async def test_an_undo_can_be_transactional() -> None:
    async def leave(tx: Transaction, room: int) -> None:
        await tx.execute("DELETE FROM booking WHERE room = ?", [room])

    @workflow
    async def trip(ctx: WorkflowContext) -> None:
        for room in (1, 2):
            ctx.on_undo(leave, room, transactional=True)
            await ctx.step(book, room, transactional=True)
        raise ValueError("rain")

    async with running(trip) as app:
        run = await app.run(trip)

        assert (await run.wait(timeout=30)).status == "errored"
        assert await booked(app) == []


async def test_a_crash_at_any_commit_leaves_one_row_for_each_transactional_step() -> None:
    @workflow
    async def trip(ctx: WorkflowContext) -> int:
        await ctx.gather(*(ctx.step(book, room, transactional=True) for room in (1, 2)))
        return await ctx.step(book, 3, transactional=True)

    async def scenario(app: Outlast) -> Any:
        run: Run[Any] = await app.run("trip")
        return (await run.wait()).unwrap(), await booked(app), await verify(app.store, run.id)

    report = await crash_everywhere(scenario, agents=[trip], ledger=Ledger())

    assert report.undisturbed.output == (3, [1, 2, 3], [])
    report.assert_same_output()
    written = [run.point.writing for run in report.runs if run.point]
    assert any("tool.step_recorded" in each for each in written)
