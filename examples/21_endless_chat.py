"""An endless chat: what the model is sent stays bounded, and the log stays whole."""

import asyncio

from outlast import Agent, ContextPolicy, Outlast, tool
from outlast.agents.model import ModelRequest
from outlast.testing import ScriptedModel, ScriptedReply, call, say


@tool(readonly=True)
async def look_up(word: str) -> str:
    return f"{word}: " + "a long explanation, " * 40


def reply(request: ModelRequest) -> ScriptedReply:
    if request.is_summary:
        return say("The user asked for words, and was told what they mean.")
    is_told = hasattr(request.view.messages[-1], "results")
    return say("There it is.") if is_told else call("look_up", word="anchor")


sizes: list[int] = []
model = ScriptedModel(reply, on_request=lambda request: sizes.append(len(request.view.messages)))
policy = ContextPolicy(max_result=500)
chat = Agent("chat", model, tools=[look_up], context=policy)


async def main() -> None:
    async with Outlast([chat], store="sqlite:///endless.db") as app:
        session = await app.start(chat, "Be brief.")
        for _ in range(10):
            await (await session.send("And another word?")).result()
        await (await session.compact()).result()
        await (await session.send("And the last one?")).result()

        print("messages in a request:", sizes[0], "…", max(sizes), "…", sizes[-1])
        print("messages in the history:", len(await session.history()))
        assert sizes[-1] < max(sizes)


asyncio.run(main())
