"""`app.check()` of workflows: new code compared with the runs that are open."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel
from scene import FAST, running

from outlast import Outlast, Workflow, WorkflowContext, workflow
from outlast.session import CodeFinding


class Order(BaseModel):
    number: int


class Receipt(BaseModel):
    cents: int


@workflow
async def pay(ctx: WorkflowContext, order: int) -> int:
    await ctx.wait_event("paid", timeout=timedelta(days=1))
    return order


@workflow
async def close(ctx: WorkflowContext) -> str:
    return (await ctx.ask("Close the books of May?", ["yes", "no"])).option


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


async def check(store: str, *flows: Workflow[Any, Any]) -> tuple[CodeFinding, ...]:
    async with Outlast(flows, store=store, worker=None) as app:
        return await app.check()


def run_check(directory: Path, store: str) -> str:
    """Return what `outlast check` says of `newer.py`, if it exits with 0."""
    command = [sys.executable, "-m", "outlast.cli", "check", "newer:app", "--store", store]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    return done.stdout


class Topic(Enum):
    PAID = "paid"


async def test_a_check_raises_no_alarm_for_names_that_code_puts_together(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'outlast.db'}"
    async with running(pay, store=store) as app:
        paying = await app.run(pay, 17)
        async for event in paying.events():
            if event.type == "session.waiting":
                break

    @workflow(name="pay")
    async def pay_by_member(ctx: WorkflowContext, order: int) -> int:
        await ctx.wait_event(Topic.PAID.value, timeout=timedelta(days=1))
        return order

    @workflow(name="pay")
    async def pay_by_step(ctx: WorkflowContext, order: int) -> int:
        await ctx.wait_event(await ctx.step(str, order), timeout=timedelta(days=1))
        return order

    assert await check(store, pay_by_member) == ()
    [unknown] = await check(store, pay_by_step)
    assert (unknown.kind, unknown.sessions, unknown.certain) == ("event", (paying.id,), False)
    assert unknown.text == (
        "1 run of pay wait for the event paid, for which the code does not show that it would wait"
    )

    code = (
        "from outlast import Outlast, WorkflowContext, workflow\n"
        "@workflow\n"
        "async def pay(ctx: WorkflowContext, order: int) -> int:\n"
        "    await ctx.wait_event(await ctx.step(str, order))\n"
        "    return order\n"
        "app = Outlast([pay], store='memory://')\n"
    )
    (tmp_path / "newer.py").write_text(code)
    told = run_check(tmp_path, store)
    assert told.startswith("cannot tell: 1 run of pay wait for the event paid")


async def test_a_check_foretells_what_new_code_of_workflows_lacks(store: str) -> None:
    settings = replace(FAST, deployment="v1")
    async with running(pay, close, store=store, settings=settings) as app:
        paying = await app.run(pay, 17)
        asking = await app.run(close)
        [_] = (await asking.wait()).requests
        await asking.send_event("noted", 1)
        async for event in paying.events():
            if event.type == "session.waiting":
                break
        later = await app.run(pay, 18, delay=timedelta(days=1))
        over = await app.run(close)
        await over.cancel()
        assert (await over.wait()).status == "cancelled"

    @workflow(name="close")
    async def listening(ctx: WorkflowContext) -> str:
        await ctx.wait_event("noted")
        return (await ctx.ask("Close the books of May?", ["yes", "no"])).option

    assert await check(store, pay, listening) == ()
    [unheard] = await check(store, pay, close)
    assert (unheard.kind, unheard.name, unheard.sessions) == ("event", "noted", (asking.id,))

    [gone] = await check(store, listening)
    assert (gone.kind, gone.name, gone.count) == ("workflow", "pay", 2)
    assert gone.text == (
        "2 runs of pay are not over, and the code has no workflow of that name: they wait for one"
    )
    assert set(gone.sessions) == {paying.id, later.id}

    @workflow(name="pay")
    async def pay_order(ctx: WorkflowContext, order: Order) -> int:
        await ctx.wait_event("paid", timeout=timedelta(days=1))
        return order.number

    [misfit] = await check(store, pay_order, listening)
    assert (misfit.kind, misfit.agent, misfit.count) == ("input", "pay", 2)
    assert "2 runs of pay have an input that the workflow does not take any more" in misfit.text

    @workflow(name="pay")
    async def pay_twice(ctx: WorkflowContext, order: int) -> int:
        await ctx.wait_event("settled", timeout=timedelta(days=1))
        return order

    [unawaited] = await check(store, pay_twice, listening)
    assert (unawaited.kind, unawaited.name, unawaited.sessions) == ("event", "paid", (paying.id,))
    assert unawaited.text.startswith("1 run of pay wait for the event paid")

    @workflow(name="pay")
    async def pay_out(ctx: WorkflowContext, order: int) -> Receipt:
        await ctx.wait_event("paid", timeout=timedelta(days=1))
        return Receipt(cents=order)

    [retyped] = await check(store, pay_out, listening)
    assert (retyped.kind, retyped.agent, retyped.sessions) == ("output", "pay", (paying.id,))

    @workflow(name="close")
    async def reworded(ctx: WorkflowContext) -> str:
        await ctx.wait_event("noted")
        return (await ctx.ask("Send the letters?", ["yes", "no"])).option

    [unasked] = await check(store, pay, reworded)
    assert (unasked.kind, unasked.sessions) == ("wait", (asking.id,))
    assert "Close the books of May?" in unasked.text
