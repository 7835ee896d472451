"""Many sessions, one workspace: a mutex lets one call in at a time, in order."""

import asyncio

from outlast import Agent, Limit, ModelOptions, Outlast, tool
from outlast.testing import ScriptedModel, calls, say

at_work = 0


@tool(mutex="workspace:{path}", idempotent=True)
async def edit(path: str) -> str:
    """Edit a file that cannot take two editors."""
    global at_work
    at_work += 1
    alone = at_work == 1
    await asyncio.sleep(0.01)
    at_work -= 1
    return "edited alone" if alone else "edited together with somebody"


editing = calls(("edit", {"path": "main.py"}))
coder = Agent(
    "coder",
    ScriptedModel(lambda asked: editing if len(asked.view.messages) == 1 else say("Done.")),
    tools=[edit],
    model_options=ModelOptions(limit=Limit(rate=600, per=60)),  # whatever the number of workers
)


async def main() -> None:
    async with Outlast([coder], store="sqlite:///limits.db") as app:
        sessions = [await app.start(coder, "Tidy up", tenant="acme") for _ in range(5)]
        for session in sessions:
            await session.wait()
            edits = [e async for e in session.events(follow=False) if e.type == "tool.completed"]
            print(edits[0].data["value"])


asyncio.run(main())
