"""The workflows that are measured, the same in every process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from benchmarks.work import text
from outlast import Workflow, WorkflowContext, workflow

Steps = Callable[[int], None]


def ignore(step: int) -> None:
    """Do nothing at a step."""


async def put_down(number: int) -> str:
    """Return a text of 1 KB, and maybe have changed something."""
    return text(number)


async def wait_a_little(number: int) -> str:
    """Return a text of 1 KB after 50 ms."""
    await asyncio.sleep(0.05)
    return text(number)


def flows(on_step: Steps = ignore) -> list[Workflow[Any, Any]]:
    """Return workflows that make as many steps as they are told; `on_step` is told of each."""

    async def told(number: int) -> str:
        on_step(number)
        return text(number)

    @workflow
    async def with_effect(ctx: WorkflowContext, steps: int) -> None:
        for number in range(steps):
            await ctx.step(told, number)

    @workflow
    async def that_reads(ctx: WorkflowContext, steps: int) -> None:
        for number in range(steps):
            await ctx.step(told, number, readonly=True)

    @workflow
    async def slow(ctx: WorkflowContext, steps: int) -> None:
        for number in range(steps):
            await ctx.step(wait_a_little, number)

    @workflow
    async def slow_reads(ctx: WorkflowContext, steps: int) -> None:
        for number in range(steps):
            await ctx.step(wait_a_little, number, readonly=True)

    @workflow
    async def parked(ctx: WorkflowContext) -> str:
        await ctx.step(put_down, 1)
        await ctx.wait_event("go")
        return await ctx.step(put_down, 2)

    return [with_effect, that_reads, slow, slow_reads, parked]
