"""The steps of a run, read page by page: each once, in order, with as little as that needs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scene import running

from outlast import Run, WorkflowContext, workflow
from outlast.clock import Clock
from outlast.errors import InvalidCursor, InvalidInput, StepError, StepInterrupted
from outlast.session.run_history import RunStep
from outlast.store import LogPage
from outlast.stores.url import open_store
from outlast.testing.wrapped_store import WrappedStore

MANY = 300


class CountedStore(WrappedStore):
    """A store that counts which entries of logs are read."""

    read_entries = 0

    async def read(self, session_id: str, after: int, *args: Any, **options: Any) -> LogPage:
        page = await super().read(session_id, after, *args, **options)
        self.read_entries += len(page.entries)
        return page


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CountedStore:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    if request.param == "postgres":
        url = str(request.getfixturevalue("postgres_url"))
    return CountedStore(open_store(url, Clock()))


async def pages(run: Run[Any], limit: int) -> list[list[RunStep]]:
    found: list[list[RunStep]] = []
    after = ""
    while page := await run.steps(after=after, limit=limit):
        found.append(list(page))
        after = page[-1].cursor
    return found


def double(number: int) -> int:
    return 2 * number


@workflow
async def long(ctx: WorkflowContext) -> None:
    for number in range(MANY):
        await ctx.step(double, number, name=f"number {number}", readonly=number % 2 == 0)


async def test_a_page_of_steps_costs_as_much_at_the_end_of_a_run_as_at_its_beginning(
    store: CountedStore,
) -> None:
    async with running(long, store=store) as app:
        run = await app.run(long)
        await run.wait()
        whole = await run.steps()
        costs = []
        after = ""
        for _ in range(MANY // 10):
            before = store.read_entries
            page = await run.steps(after=after, limit=10)
            costs.append(store.read_entries - before)
            assert list(page) == list(whole[len(costs) * 10 - 10 : len(costs) * 10])
            after = page[-1].cursor

        assert [step.value for step in whole] == [2 * n for n in range(MANY)]
        assert await run.steps(after=after, limit=10) == []
        assert max(costs) <= 60


async def test_pages_of_steps_are_the_whole_where_steps_go_on_at_once_fail_and_come_again(
    store: CountedStore,
) -> None:
    tries: dict[int, int] = {}

    async def moody(number: int) -> int:
        tries[number] = tries.get(number, 0) + 1
        await asyncio.sleep(0.001 * (number % 3))
        if number % 4 == 0 or (number % 4 == 1 and tries[number] == 1):
            raise ValueError(f"{number} is bad")
        return number

    @workflow
    async def mixed(ctx: WorkflowContext, again: bool = True) -> None:
        async def one(number: int) -> None:
            try:
                await ctx.step(
                    moody, number, name="moody", max_attempts=2, readonly=number % 2 == 0
                )
            except StepError:
                await ctx.step(double, number, name="after all")

        async def slow() -> None:
            await ctx.step(asyncio.sleep, 0.05, name="slow")

        await ctx.gather(slow=slow(), quick=ctx.map(one, range(12), concurrency=4))
        if again:
            ctx.restart(False)

    async with running(mixed, store=store) as app:
        run = await app.run(mixed, True)
        await run.wait()
        whole = list(await run.steps())

        # Those of before and after the restart are different steps of the same names.
        assert [step.status for step in whole if "slow" in step.name] == ["completed"] * 2
        assert sum(step.status == "failed" for step in whole) == 6
        assert sum("after all" in step.name for step in whole) == 6
        for step in whole:
            assert step.ended_at is not None
            assert step.started_at is None or step.started_at <= step.ended_at
        for limit in (1, 2, 5, 7, 100):
            assert [step for page in await pages(run, limit) for step in page] == whole, limit


async def test_what_is_no_cursor_of_a_step_is_refused(store: CountedStore) -> None:
    async with running(long, store=store) as app:
        run = await app.run(long)
        for made_up in ("x", "1-", "-1", "1" * 30):
            with pytest.raises(InvalidCursor):
                await run.steps(after=made_up)
        with pytest.raises(InvalidInput):
            await run.steps(limit=0)


@pytest.mark.parametrize("has_undo", [False, True])
async def test_a_step_that_was_cut_off_is_not_running_once_its_run_has_ended(
    has_undo: bool,
) -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    @workflow
    async def stuck(ctx: WorkflowContext) -> None:
        await ctx.step(double, 1)
        if has_undo:
            ctx.on_undo(double, 1)
        await ctx.step(hang)

    async with running(stuck) as app:
        run = await app.run(stuck)
        await begun.wait()
        assert [step.status for step in await run.steps()] == ["completed", "running"]
        await run.cancel()
        await run.wait()

        first, cut, *undone = await run.steps()
        assert (first.status, cut.status) == ("completed", "interrupted")
        assert cut.ended_at is not None
        assert [step.status for step in undone] == ["completed"] * has_undo
        again = await run.steps(after=first.cursor, limit=1)
        assert [step.status for step in again] == ["interrupted"]


async def test_a_step_that_was_cut_off_is_not_repeated_by_a_retry_of_its_run() -> None:
    begun, times = asyncio.Event(), 0

    async def pay() -> str:
        nonlocal times
        times += 1
        begun.set()
        await asyncio.Event().wait()
        return "paid"

    @workflow
    async def order(ctx: WorkflowContext) -> str:
        try:
            return await ctx.step(pay)
        except StepInterrupted:
            return "nobody knows"

    async with running(order) as app:
        run = await app.run(order)
        await begun.wait()
        await run.cancel()
        await run.wait()
        again = await run.retry()

        assert (await again.wait(timeout=5)).output == "nobody knows"
        assert times == 1
