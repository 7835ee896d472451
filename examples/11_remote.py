"""The same code runs here and over the wire: it gets an app or a client."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from outlast import Agent, Client, Outlast, tool
from outlast.testing import ScriptedModel, call, say


@tool(approval="always")
async def refund(order: int) -> str:
    """Give the money back."""
    return f"refunded order {order}"


model = ScriptedModel([call("refund", order=17), say("Your money is on its way.")])
support = Agent("support", model, tools=[refund])


async def get_refund(place: Outlast | Client) -> str:
    session = await place.start(support, "Refund order 17")
    [request] = (await session.wait()).requests
    receipt = await session.answer(request, "approve")
    print((await receipt.result()).unwrap())
    return session.id


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
    async with Outlast([support], store="sqlite:///here.db") as app:
        await get_refund(app)
    served = Outlast([support], store="sqlite:///there.db")
    async with serving(served) as url, Client(url) as client:
        session = client.session(await get_refund(client))
        async for event in session.events():
            if event.type == "request.opened":
                break  # the day is over
        kept = session.bookmark  # small and plain: a file, a cookie, a row will do
        async for event in client.resume(kept).events():
            print(event.offset, event.type)


asyncio.run(main())
