"""What the model is sent of an endless conversation: is it flat after the first compaction?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec.structs import replace

from benchmarks.place import Database
from benchmarks.workload import Bench, Measure, Workload
from outlast import Agent, ContextPolicy, Outlast, tool
from outlast.agents.model.client import FinishedAnswer, ModelRequest
from outlast.core.message import ModelAnswer, ToolOutputs, UserMessage, text_of
from outlast.core.result import Usage
from outlast.testing import ScriptedModel, ScriptedReply, call, say

FIRST = "Be kind, and never forget this."
MAX_TOKENS = 20_000


class CountingModel(ScriptedModel):
    """Looks once in every turn, and reports what it was sent as tokens of four characters."""

    can_stream = False

    def __init__(self) -> None:
        super().__init__(answer)
        self.sizes: list[int] = []
        self.forgot = 0

    async def request(self, request: ModelRequest) -> FinishedAnswer:
        size = sum(map(size_of, request.view.messages)) // 4
        if not request.is_summary:
            self.sizes.append(size)
            first = request.view.messages[0]
            self.forgot += not (isinstance(first, UserMessage) and text_of(first.content) == FIRST)
        return replace(await super().request(request), usage=Usage(size, 10))


def size_of(message: UserMessage | ModelAnswer | ToolOutputs) -> int:
    if isinstance(message, UserMessage):
        return len(text_of(message.content))
    if isinstance(message, ToolOutputs):
        return sum(len(result.text) for result in message.results)
    return len(text_of(message.parts))


def answer(request: ModelRequest) -> ScriptedReply:
    if request.is_summary:
        return say("The user asked, and was answered. " * 10)
    is_told = isinstance(request.view.messages[-1], ToolOutputs)
    return say("There it is. " * 20) if is_told else call("look")


@tool(readonly=True)
async def look() -> str:
    return "What there is to see. " * 50


async def converse(database: Database, model: CountingModel, turns: int) -> tuple[int, int]:
    """Return how many compactions there were, and how many turns the history has."""
    policy = ContextPolicy(max_tokens=MAX_TOKENS, summarize=True)
    agent: Agent[None, str] = Agent("talker", model, tools=[look], context=policy)
    async with Outlast([agent], store=database.url) as app:
        session = await app.start(agent, FIRST)
        await session.wait()
        for _ in range(turns - 1):
            result = await (await session.send("And another question? " * 10)).result()
            assert result.status == "completed", result
        types = [event.type async for event in session.events(follow=False)]
        history = await session.history()
    asked = sum(isinstance(message, UserMessage) for message in history)
    return types.count("compaction.completed"), asked


def once(bench: Bench) -> Mapping[str, float]:
    turns = bench.size(1000, 120)
    model = CountingModel()
    compactions, asked = asyncio.run(converse(bench.database("endless"), model, turns))
    peak = next(n for n, size in enumerate(model.sizes) if size > model.sizes[n + 1])
    later = model.sizes[peak + 1 :]
    return {
        "largest request": max(model.sizes),
        "last tenth ÷ before": max(later[-len(later) // 10 :]) / max(model.sizes[: peak + 1]),
        "requests without the first message": model.forgot,
        "compactions": compactions,
        "turns lost from the history": turns - asked,
    }


WORKLOAD = Workload(
    "endless",
    "one conversation of 1,000 turns with a tool call in each; the view is compacted at"
    f" {MAX_TOKENS:,} tokens",
    (
        Measure("largest request", "tokens", at_most=MAX_TOKENS * 1.05),
        Measure("last tenth ÷ before", "largest request", at_most=1.05),
        Measure("requests without the first message", "", at_most=0),
        Measure("compactions", ""),
        Measure("turns lost from the history", "", at_most=0),
    ),
    once,
)
