"""An editor hands work to a researcher and a writer; a human approves what the writer spends.

Each has a session of its own. The editor is parked while they work, and the writer's requests
appear in the editor's session, too.
"""

import asyncio

from outlast import Agent, Outlast, tool
from outlast.testing import ScriptedModel, call, calls, say


@tool(approval="always")
async def buy_picture(cents: int) -> str:
    """Buy a picture for the article."""
    return f"a picture for {cents} cents"


researcher = Agent("researcher", ScriptedModel([say("Limpets hold fast with 75 N.")]))
writer = Agent(
    "writer",
    ScriptedModel([call("buy_picture", cents=900), say("Limpets, by us.")]),
    tools=[buy_picture],
    description="Writes an article, with a picture.",
)
editor = Agent(
    "editor",
    ScriptedModel(
        [
            calls(
                ("researcher", {"message": "How strong are limpets?"}),
                ("writer", {"message": "Write about limpets."}),
            ),
            say("It is in print."),
        ]
    ),
    subagents=[researcher, writer],
)


async def main() -> None:
    async with Outlast([editor], store="sqlite:///delegation.db") as app:
        session = await app.start(editor, "We need an article on limpets.")
        result = await session.wait()
        [request] = result.requests
        print(f"{request.agent} asks: {request.prompt} {request.tool}({request.args})")
        await session.answer(request, "approve", principal="ada")
        async for event in session.events(children=True):
            if event.type in ("subagent.called", "subagent.completed"):
                print(event.type, event.data.get("agent") or event.data["value"])
            if event.type == "turn.completed" and event.session_id == session.id:
                break
        print((await session.wait()).unwrap())


asyncio.run(main())
