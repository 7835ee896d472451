"""An endless chat: what the model is sent stays bounded, and the log stays whole.

Whenever the next request would be too long, the model sums up the oldest messages; the first one
is in every request.

    python examples/21_endless_chat.py
"""

import asyncio

from outlast import Agent, ContextPolicy, Outlast, tool
from outlast.agents.model import ModelRequest
from outlast.testing import ScriptedModel, ScriptedReply, call, say

TURNS = 40


@tool(readonly=True)
async def look_up(word: str) -> str:
    return f"{word}: " + "a long explanation, " * 40


def reply(request: ModelRequest) -> ScriptedReply:
    if request.is_summary:
        return say("The user asked for words, and was told what they mean.")
    sizes.append(len(request.view.messages))
    is_told = hasattr(request.view.messages[-1], "results")
    return say("There it is.") if is_told else call("look_up", word="anchor")


sizes: list[int] = []
policy = ContextPolicy(max_tokens=500, summarize=True, clear=False)
chat = Agent("chat", ScriptedModel(reply), tools=[look_up], context=policy)


async def main() -> None:
    async with Outlast([chat], store="memory://") as app:
        session = await app.start(chat, "Be brief.")
        for _ in range(TURNS - 1):
            await (await session.send("And another word?")).result()

        events = [event.type async for event in session.events(follow=False)]
        print("summed up:", events.count("compaction.completed"), "times")
        print("messages in a request, at most:", max(sizes))
        print("messages in the history:", len(await session.history()))
        assert max(sizes[len(sizes) // 2 :]) <= max(sizes[: len(sizes) // 2])


if __name__ == "__main__":
    asyncio.run(main())
