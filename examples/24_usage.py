"""What a tree of agents has used and cost: by agent, and for whom."""

import asyncio

from outlast import Agent, ModelOptions, Outlast
from outlast.testing import ScriptedModel, call, calls, say
from outlast.usage import ModelPrice, Prices

# Models that genai-prices knows need none of this: the scripted ones are on no list.
prices = Prices(
    known={
        "small": ModelPrice(input=0.5, output=2),
        "large": ModelPrice(input=5, output=20),
    },
    version="2026-11",
)
priced = ModelOptions(prices=prices)

reader = Agent("reader", ScriptedModel([say("Page 7.")], name="small"), model_options=priced)
writer = Agent(
    "writer",
    ScriptedModel([call("reader", message="Where is it?"), say("See page 7.")], name="large"),
    subagents=[reader],
    model_options=priced,
)
desk = Agent(
    "desk",
    ScriptedModel(
        [
            calls(("reader", {"message": "Read it."}), ("writer", {"message": "Write it."})),
            say("Here it is."),
        ],
        name="small",
    ),
    subagents=[reader, writer],
    model_options=priced,
)


async def main() -> None:
    async with Outlast([desk], store="sqlite:///usage.db") as app:
        session = await app.start(desk, "Write about limpets.", principal="ada")
        usage = (await session.wait()).usage
        print(f"own: {usage.own.model_calls} calls; in all: {usage.total.model_calls} calls")

        for line in await app.usage.by("agent"):
            print(f"{line.key:8} {line.total.tokens:4} tokens  ${line.total.usd}")
        await app.erase(session.id)
        [ada] = await app.usage.by("principal")
        print(f"{ada.key} has used ${ada.total.usd}, also after the session is erased")


asyncio.run(main())
