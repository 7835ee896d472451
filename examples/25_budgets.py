"""A tree of agents under one budget, which asks for more when it is spent.

The desk may make ten steps with all that it starts. Its researcher gets a share of that, needs more
and asks; the question appears in the desk's session, and the answer extends both budgets.

    python examples/25_budgets.py
"""

import asyncio

from outlast import Agent, Budget, Outlast, tool
from outlast.testing import ScriptedModel, call, say


@tool
async def look_up(page: int) -> str:
    """Read one page of the archive."""
    return f"page {page} of the archive"


READS = [call("look_up", page=number) for number in range(1, 6)]
researcher = Agent("researcher", ScriptedModel([*READS, say("It is on page 5.")]), tools=[look_up])
desk = Agent(
    "desk",
    ScriptedModel([call("researcher", message="Find it."), say("Page 5.")]),
    subagents=[researcher],
    budget=Budget(steps=10, on_end="ask"),
)


async def main() -> None:
    async with Outlast([desk, researcher], store="memory://") as app:
        session = await app.start(desk, "Where is it?")
        result = await session.wait()
        while result.requests:
            [request] = result.requests
            print(f"{request.agent} asks: {request.prompt}")
            await session.answer(request, "extend", principal="ada")
            result = await session.wait()
        print("answer:", result.output)
        async for event in session.events(follow=False):
            if event.type == "budget.extended":
                print("allowed:", event.data["by"])


if __name__ == "__main__":
    asyncio.run(main())
