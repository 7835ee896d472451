"""Two models: if the first is not available, the turn goes on with the second."""

import asyncio

from outlast import Agent, Outlast
from outlast.agents.model import ModelRequest
from outlast.testing import ScriptedError, ScriptedModel, ScriptedReply, say

is_down = True


def answer(request: ModelRequest) -> ScriptedReply:
    if is_down:  # as a provider does that rejects the key, or is overloaded
        raise ScriptedError("blocked", "the key has expired")
    return say("Hello from the first.")


# Names do as well: Agent("helper", ["anthropic:claude-sonnet-4-5", "openai:gpt-5.2"])
first = ScriptedModel(answer, name="first")
second = ScriptedModel([say("Hello from the second.")] * 2, name="second")
helper = Agent("helper", [first, second])


async def main() -> None:
    global is_down
    async with Outlast([helper], store="sqlite:///fallback.db") as app:
        session = await app.start(helper, "Hello?")
        result = await session.wait()
        print(result.output)
        assert result.output == "Hello from the second."

        async for event in session.events(follow=False):
            if event.type == "model.switched":  # which model was left, why, and for which
                print(event.data["left"], "->", event.data["model"], event.data["error"])

        is_down = False  # every turn begins with the first model
        receipt = await session.send("And now?")
        answered = (await receipt.result()).unwrap()
        print(answered)
        assert answered == "Hello from the first."


asyncio.run(main())
