"""Agents that hand work on, three levels deep, and every way in which such a tree waits.

The owner asks the manager, who asks the clerk, and a tool of the owner asks the scout. A human
is asked twice at the bottom and answers once at the top: the other request runs out.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from crash_book import Book
from crash_model import scripted

from outlast import Agent, Approval, Context, tool
from outlast.testing import call, calls, say

NAP = timedelta(milliseconds=150)
IN_TIME = 0.6
"""Seconds in which nobody answers."""

DONE = "All is done, as far as anybody allowed it."


def family(book: Book) -> list[Agent[Any, Any]]:
    """Return the one that is talked to, and the one that only its tool knows."""
    return [owner(book), scout(book)]


def owner(book: Book) -> Agent[Any, Any]:
    @tool(on_interrupt="rerun")
    async def prepare(ctx: Context[Any]) -> str:
        book.begin(ctx)
        await ctx.step(book.effect, "prepared", name="prepare")
        found = await ctx.agent("scout").ask("Is the way clear?")
        return f"prepared; the scout said: {found}"

    both = calls(("manager", {"message": "Do it"}), ("prepare", {}))
    model = scripted("owner", book, both, say(DONE, chunks=2, pace=0.01))
    return Agent("owner", model, tools=[prepare], subagents=[manager(book)])


def manager(book: Book) -> Agent[Any, Any]:
    @tool(approval=Approval("always", timeout=IN_TIME))
    async def burn(ctx: Context[Any]) -> str:
        book.begin(ctx)
        book.effect("burned")
        return "burned"

    both = calls(("clerk", {"message": "Pay"}), ("burn", {}))
    model = scripted("manager", book, both, say("managed"))
    return Agent("manager", model, tools=[burn], subagents=[clerk(book)])


def clerk(book: Book) -> Agent[Any, Any]:
    @tool(approval="always")
    async def settle(ctx: Context[Any], cents: int) -> str:
        book.begin(ctx)
        book.effect(f"settled {cents}")
        return "settled"

    @tool(idempotent=True)
    async def rest(ctx: Context[Any]) -> str:
        book.begin(ctx)
        await ctx.step(book.effect, "rested", name="lie down")
        await ctx.sleep(NAP)
        return "rested"

    model = scripted("clerk", book, calls(("settle", {"cents": 500}), ("rest", {})), say("settled"))
    return Agent("clerk", model, tools=[settle, rest])


def scout(book: Book) -> Agent[Any, Any]:
    @tool(readonly=True)
    async def watch(ctx: Context[Any]) -> str:
        book.begin(ctx)
        return "nobody in sight"

    model = scripted("scout", book, call("watch"), say("all clear"))
    return Agent("scout", model, tools=[watch])
