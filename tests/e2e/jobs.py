"""An app with workflows, for tests of the command line: `outlast run jobs:app report`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from outlast import Outlast, WorkerSettings, WorkflowContext, workflow


async def upper(text: str) -> str:
    return text.upper()


@workflow
async def report(ctx: WorkflowContext, month: str) -> dict[str, str]:
    title = await ctx.step(upper, month)
    ctx.emit("written", {"title": title})
    return {"title": title}


@workflow
async def invoice(ctx: WorkflowContext) -> str:
    await ctx.step(upper, "sent", name="sent")
    return f"paid {await ctx.wait_event('paid', timeout=timedelta(days=30))}"


def climb() -> str:
    if not Path("mended").exists():
        raise ValueError("the stairs")
    return "up again"


@workflow
async def fall(ctx: WorkflowContext) -> str:
    return climb()


@workflow
async def ask(ctx: WorkflowContext) -> str:
    return (await ctx.ask("Go on?", ["yes", "no"])).option


WORKFLOWS = (report, invoice, fall, ask)
FAST = WorkerSettings(poll=0.05, watch=0.1, grace=0.1, stop_grace=0.1, flush=0.0)
app = Outlast(WORKFLOWS, worker=FAST)
