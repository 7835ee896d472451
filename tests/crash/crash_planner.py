"""An agent with a plan, which goes on from its last milestone when its worker was killed."""

from __future__ import annotations

from typing import Any

from crash_book import Book
from crash_model import scripted

from outlast import Agent, Context, tool
from outlast.planning import Planning
from outlast.testing import call, calls, say


def planning(book: Book) -> Agent[Any, Any]:
    """Has two steps with an effect each, and marks them done, one together with other work."""

    @tool(idempotent=True)
    async def note(ctx: Context[Any], text: str) -> str:
        book.begin(ctx)
        book.effect(f"noted {text} under {ctx.idempotency_key}")
        return "noted"

    @tool
    async def pay(ctx: Context[Any], cents: int) -> str:
        book.begin(ctx)
        book.effect(f"paid {cents}")
        return "paid"

    model = scripted(
        "planning",
        book,
        call("planning_setup_plan", objective="milk", initial_steps=["write it down", "pay"]),
        call("note", text="milk"),
        calls(
            ("planning_update_step", {"step_id": 1, "status": "done"}), ("note", {"text": "tea"})
        ),
        call("pay", cents=5),
        call("planning_update_step", step_id=2, status="done"),
        say("Noted and paid.", chunks=2, pace=0.02),
    )
    return Agent("planning", model, tools=[note, pay], planning=Planning(), resume="milestone")
