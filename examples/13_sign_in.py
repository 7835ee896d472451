"""A tool in somebody's name: they sign in once, the task waits (needs the extra `connections`)."""

import asyncio
import secrets
import socket

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.responses import RedirectResponse

from outlast import Agent, Connection, ConnectionSettings, Context, Outlast, tool
from outlast.testing import ScriptedModel, call, say

port = socket.create_server(("127.0.0.1", 0))
HERE = f"http://127.0.0.1:{port.getsockname()[1]}"
web, TOKEN, KEY = FastAPI(), secrets.token_urlsafe(), secrets.token_urlsafe(32)


@web.get("/authorize")  # what GitHub does, less the page on which it asks people
def authorize(redirect_uri: str, state: str) -> RedirectResponse:
    return RedirectResponse(f"{redirect_uri}?code=c0de&state={state}")


@web.post("/access_token")
def access_token() -> dict[str, str]:
    return {"access_token": TOKEN, "token_type": "bearer"}


@tool(readonly=True)
async def list_repositories(ctx: Context) -> list[str]:
    """List the user's repositories."""
    token = await ctx.require_auth("github")  # the user's own, and never in the log
    return ["outlast"] if token == TOKEN else []  # as GitHub answers to whoever has it


urls = (f"{HERE}/authorize", f"{HERE}/access_token")
github = Connection("github", *urls, "our id", "our secret", ["repo"], allow_private=True)
sign_ins = ConnectionSettings([github], secret_key=KEY)
model = ScriptedModel([call("list_repositories"), say("You have one.")])
helper = Agent("helper", model, tools=[list_repositories])
app = Outlast([helper], store="memory://", connections=sign_ins, public_url=HERE)


async def main() -> None:
    web.mount("/", app.asgi())
    server = uvicorn.Server(uvicorn.Config(web, log_level="error"))
    async with app, asyncio.TaskGroup() as group:
        group.create_task(server.serve([port]))
        session = await app.start(helper, "Which repositories do I have?", principal="ada")
        async for event in session.events():
            if event.type == "authorization.required":  # show her the address; she clicks
                async with httpx.AsyncClient(follow_redirects=True) as browser:
                    print((await browser.get(event.data["url"])).text)
        print((await session.wait()).unwrap())
        server.should_exit = True


asyncio.run(main())
