"""An agent whose context is compacted, with a plan, an approval and effects."""

from __future__ import annotations

from typing import Any

from crash_book import Book
from msgspec.structs import replace

from outlast import Agent, Context, ContextPolicy, tool
from outlast.agents.model.client import FinishedAnswer, ModelRequest
from outlast.core.result import Usage
from outlast.planning import Planning
from outlast.testing import ScriptedModel, ScriptedReply, call, say

STEPS = 6


class SizedModel(ScriptedModel):
    """Reports what it was sent as about so many tokens."""

    can_stream = False

    async def request(self, request: ModelRequest) -> FinishedAnswer:
        sent = sum(len(repr(message)) for message in request.view.messages)
        return replace(await super().request(request), usage=Usage(sent // 4, 10))


def endless(book: Book) -> Agent[Any, Any]:
    """Pays once in each step, and has its view summed up on the way."""

    @tool
    async def pay(ctx: Context[Any], cents: int) -> str:
        book.begin(ctx)
        book.effect(f"paid {cents}")
        return "paid " + "x" * 900

    def reply(request: ModelRequest) -> ScriptedReply:
        book.start("endless", request.call_id, request.attempt)
        if request.is_summary:
            return say("Some was paid.")
        step = int(request.call_id.rpartition("s")[2])
        if step == 1:
            return call("planning_setup_plan", objective="pay", initial_steps=["all"])
        return call("pay", cents=step) if step <= STEPS else say("All is paid.")

    return Agent(
        "endless",
        SizedModel(reply),
        tools=[pay],
        planning=Planning(),
        context=ContextPolicy(max_tokens=700, summarize=True, clear=False),
    )
