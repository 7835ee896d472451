"""The agent of the chaos runs: a tool of every manner, and a model that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from chaos.ledger import Ledger
from chaos.plan import read_plan
from outlast import Agent, Context, NotDone, Tool, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.message import UserMessage, text_of
from outlast.core.name import turn_and_step
from outlast.core.view import GO_ON
from outlast.testing import ScriptedModel, ScriptedReply, calls, say

NAME = "porter"
EFFECTS = "chaos_effects"
"""The table of the transactional tool: one row for each call that it did."""

INSERT = f"INSERT INTO {EFFECTS} (session, call) VALUES "  # noqa: S608 - a name of ours
Run = Callable[..., Awaitable[None]]


def porter(ledger: Ledger, url: str = "") -> Agent[Any, Any]:
    """Return the agent; all that it does is in the ledger, before and after."""
    tools = [*plain_tools(ledger), *special_tools(ledger, url)]
    return Agent(NAME, obedient(ledger), tools=tools)


def obedient(ledger: Ledger) -> ScriptedModel:
    """A model whose answer depends on the conversation alone: asked again, it says the same."""

    def script(request: ModelRequest) -> ScriptedReply:
        ledger.mark("begun", call=request.call_id, attempt=request.attempt)
        plan = read_plan(last_message(request))
        turn, step = turn_and_step(request.call_id)
        if step <= len(plan):
            return calls(*plan[step - 1])
        return say(f"All of {turn} is done: " + "and so on, " * 10, chunks=8, pace=0.05)

    return ScriptedModel(script)


def last_message(request: ModelRequest) -> str:
    messages = (m for m in reversed(request.view.messages) if isinstance(m, UserMessage))
    return next(text for m in messages if (text := text_of(m.content)) != GO_ON)


def runner(ledger: Ledger) -> Run:
    """Return what tools do: note their begin, take their time, note their end."""

    async def run(ctx: Context[Any], ms: int, key: str = "") -> None:
        facts = {"call": ctx.call_id, "attempt": ctx.attempt, "tool": ctx.tool, "key": key}
        ledger.mark("begun", **facts)
        try:
            await asyncio.sleep(ms / 1000)
        except asyncio.CancelledError:
            ledger.mark("stopped", **facts)
            raise
        ledger.mark("ended", **facts)

    return run


def plain_tools(ledger: Ledger) -> list[Tool]:
    """The four manners in which an interruption is dealt with."""
    run = runner(ledger)

    @tool(readonly=True)
    async def look(ctx: Context[Any], item: str, ms: int) -> str:
        await run(ctx, ms)
        return f"saw {item}"

    @tool(idempotent=True)
    async def note(ctx: Context[Any], item: str, ms: int) -> str:
        await run(ctx, ms)
        return f"noted {item}"

    @tool
    async def pay(ctx: Context[Any], item: str, ms: int) -> str:
        await run(ctx, ms)
        return f"paid {item}"

    def find_parcel(ctx: Context[Any], args: dict[str, Any]) -> Any:
        """Ask the outside world whether the parcel has left."""
        sent = (m for m in ledger.read() if m.what == "shipped")
        return "shipped" if any(m.key == args["item"] for m in sent) else NotDone

    @tool(on_interrupt=find_parcel)
    async def ship(ctx: Context[Any], item: str, ms: int) -> str:
        await run(ctx, ms)
        ledger.mark("shipped", call=ctx.call_id, attempt=ctx.attempt, tool=ctx.tool, key=item)
        return "shipped"

    return [look, note, pay, ship]


def special_tools(ledger: Ledger, url: str) -> list[Tool]:
    """An approval, a step and a timer, a tool lane, and a transaction."""
    run = runner(ledger)
    values = "(?, ?)" if url.startswith("sqlite") else "(%s, %s)"

    @tool(approval="always")
    async def refund(ctx: Context[Any], item: str, ms: int) -> str:
        await run(ctx, ms)
        return f"refunded {item}"

    @tool(idempotent=True)
    async def nap(ctx: Context[Any], item: str, ms: int) -> str:
        await run(ctx, ms // 4)
        facts = {"call": ctx.call_id, "attempt": ctx.attempt, "tool": ctx.tool}
        await ctx.step(lambda: ledger.mark("stepped", **facts), name="lie down")
        await ctx.sleep(timedelta(milliseconds=ms))
        ledger.mark("woke", key=str(ms), **facts)
        return f"slept on {item}"

    @tool(idempotent=True, mutex="dock {dock}")
    async def haul(ctx: Context[Any], item: str, dock: str, ms: int) -> str:
        await run(ctx, ms // 4, dock)
        return f"hauled {item}"

    @tool(transactional=True)
    async def book(ctx: Context[Any], item: str, ms: int) -> str:
        await ctx.tx.execute(INSERT + values, (ctx.session.id, ctx.call_id))
        await run(ctx, ms // 10)
        return f"booked {item}"

    return [refund, nap, haul, book]
