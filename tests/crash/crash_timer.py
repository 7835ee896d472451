"""An agent that waits for a time: whatever the message names, in each of the ways there are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from crash_book import Book
from crash_model import obedient

from outlast import Agent, Approval, Context, tool

HOUR = 3_600_000


def patient(book: Book) -> Agent[Any, Any]:
    @tool(idempotent=True)
    async def doze(ctx: Context[Any], gate: str) -> str:
        book.begin(ctx)
        await ctx.sleep(timedelta(hours=1))
        book.effect("woke")
        return "woke"

    @tool(idempotent=True)
    async def meet(ctx: Context[Any], gate: str) -> str:
        """Wait for the instant that stands where others have their gate."""
        book.begin(ctx)
        await ctx.wait_until(datetime.fromtimestamp(int(gate) / 1000, UTC))
        book.effect("woke")
        return "woke"

    @tool(idempotent=True)
    async def inquire(ctx: Context[Any], gate: str) -> str:
        book.begin(ctx)
        return (await ctx.ask("Well?", timeout=timedelta(hours=1))).text

    @tool(idempotent=True, approval=Approval("always", timeout=3600))
    async def pay(ctx: Context[Any], gate: str) -> str:
        book.begin(ctx)
        return "paid"

    return Agent("patient", obedient("patient", book), tools=[doze, meet, inquire, pay])
