"""An agent asks an agent of another Outlast over HTTP, as if it were a local one.

Kill either side, cut the wire: the other waits, and nothing is started or paid for twice.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from outlast import Agent, Outlast, RemoteAgent, ask_question
from outlast.testing import ScriptedModel, call, say

pricing = Agent("pricing", ScriptedModel([say("17 crowns, until Friday.")]), tools=[ask_question])


def shop(url: str) -> Agent:
    far = RemoteAgent("pricing", url, description="Knows what everything costs.")
    script = [call("pricing", message="What is a limpet?"), say("A limpet is 17 crowns.")]
    return Agent("shop", ScriptedModel(script), subagents=[far])


@asynccontextmanager
async def serving(app: Outlast) -> AsyncIterator[str]:
    """Do in this process what `outlast dev module:app` does in one of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app.asgi(), log_level="warning"))
        running = asyncio.create_task(server.serve(sockets=[listening]))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        await running


async def main() -> None:
    there = Outlast([pricing], store="sqlite:///pricing.db")
    async with serving(there) as url, Outlast([shop(url)], store="sqlite:///shop.db") as here:
        session = await here.start("shop", "How much is a limpet?")
        async for event in session.events(children=True):  # the remote session's, too
            if event.type in ("tool.progress", "message.completed", "tool.completed"):
                print("there" if event.path else "here", event.type)
        print((await session.wait()).unwrap())


asyncio.run(main())
