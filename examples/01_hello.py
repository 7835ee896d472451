"""An agent, a session, an answer.

The model follows a script, so this needs no key and no network. For a real one, say
`model="openai:gpt-5.2"` or `model="anthropic:claude-sonnet-4-5"` and install its extra.
"""

import asyncio

from outlast import Agent, Outlast, tool
from outlast.testing import ScriptedModel, call, say


@tool(readonly=True)
async def weather(city: str) -> str:
    """Say what the weather is like.

    Args:
        city: Where.
    """
    return f"It rains in {city}."


model = ScriptedModel([call("weather", city="Bergen"), say("Take an umbrella to Bergen.")])
guide = Agent("guide", model, instructions="You help travellers.", tools=[weather])
app = Outlast([guide], store="sqlite:///hello.db")


async def main() -> None:
    async with app:  # this process works, too
        session = await app.start(guide, "What do I need in Bergen?", dispatch_id="trip-1")
        result = await session.wait()
        print(result.unwrap())
        assert result.status == "completed"

        # Accepted is accepted: the same dispatch again is the same session, and nothing runs twice.
        again = await app.start(guide, "What do I need in Bergen?", dispatch_id="trip-1")
        assert again.id == session.id
        print(f"{session.id} used {result.usage.own.output_tokens} output tokens, once.")


asyncio.run(main())
