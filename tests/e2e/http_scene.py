"""A bank whose agent does what it is told, its server, and callers of several kinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
from fastapi import FastAPI

from outlast import (
    Agent,
    Context,
    Outlast,
    WorkerSettings,
    WorkflowContext,
    ask_question,
    tool,
    workflow,
)
from outlast.agents.model.client import ModelRequest
from outlast.core.message import UserMessage, text_of
from outlast.server import ServerSettings
from outlast.server.asgi import create
from outlast.server.key import add_key, mint
from outlast.server.principal import SCOPES
from outlast.server.serve import listen, open_socket
from outlast.store import Store
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, calls, say

FAST = WorkerSettings(poll=0.05, watch=0.1, grace=0.1, stop_grace=0.1, flush=0.0)
HERE = "http://127.0.0.1:8000"
OUTSIDE = "https://bank.example"

Json = dict[str, Any]

OF_OTHERS = {
    ("get", "/v1/connections/{name}/callback"): "people come back here from signing in",
    ("post", "/v1/channels/{name}"): "a channel knows its caller by what that signed",
}
"""Routes without a key that have tests and a page of their own."""


@tool(approval="always")
async def refund(order: int, cents: int) -> str:
    """Give the money back."""
    return f"gave back {cents} for {order}"


@tool
async def order_from_bank(ctx: Context) -> str:
    """Tell where to call back, as one would the bank, then wait for it."""
    hook = await ctx.callback("done", timeout=timedelta(days=1))
    await ctx.step(HOOKS.append, hook.url, name="order")
    return str((await hook.wait()).json())


HOOKS: list[str] = []
"""The addresses that the bank was told."""


@tool
async def wait_for_ever() -> str:
    """Never return."""
    await asyncio.Event().wait()
    return ""


def follow(request: ModelRequest) -> ScriptedReply:
    last = request.view.messages[-1]
    if not isinstance(last, UserMessage):
        return say("That is done.")
    text = text_of(last.content)
    match text.partition(" ")[0]:
        case "refund":
            return call("refund", order=17, cents=500)
        case "two":
            return calls(*(("refund", {"order": n, "cents": 500}) for n in (1, 2)))
        case "ask":
            return call("ask_question", question="Which colour?", options=["red", "blue"])
        case "bank":
            return call("order_from_bank")
        case "hang":
            return call("wait_for_ever")
        case "fail":
            raise ScriptedError("recoverable", "the bank is closed")
    return say(f"You said: {text}")


teller: Agent[Any, Any] = Agent(
    "teller",
    ScriptedModel(follow),
    tools=[refund, order_from_bank, wait_for_ever, ask_question],
)


@workflow
async def hold(ctx: WorkflowContext, text: str) -> str:
    """Take a step, then wait for a word."""
    said = await ctx.step(repeat, text)
    return said + str(await ctx.wait_event("word"))


async def repeat(text: str) -> str:
    return text


class Caller(httpx.AsyncClient):
    """Somebody who calls the server: with a key, or from this machine without one."""

    async def ask(self, method: str, path: str, expect: int = 200, **given: Any) -> Any:
        """Send a request below /v1, and return the body of its answer."""
        response = await self.request(method, f"/v1{path}", **given)
        assert response.status_code == expect, (method, path, response.status_code, response.text)
        return response.json() if response.content else None

    async def refused(self, method: str, path: str, expect: int, **given: Any) -> str:
        """Send a request that is refused, and return the code of the error."""
        error = (await self.ask(method, path, expect, **given))["error"]
        assert set(error) == {"code", "message", "hint", "details"}
        assert error["message"]
        return str(error["code"])

    async def start(self, message: str = "hello", **given: Any) -> Json:
        """Start a session, and wait until it rests."""
        body = {"agent": "teller", "message": message, **given}
        started: Json = await self.ask("POST", "/sessions", 202, json=body)
        await self.result(started["session_id"])
        return started

    async def result(self, session: str, delivery: str | None = None) -> Json:
        query: Json = {"wait": 10, **({"delivery_id": delivery} if delivery else {})}
        found: Json = await self.ask("GET", f"/sessions/{session}/result", params=query)
        return found

    async def events(self, session: str) -> list[Json]:
        found: list[Json] = await self.ask("GET", f"/streams/sessions/{session}?offset=-1")
        return found


class Scene:
    """An app that works and its server, in this process and without a socket."""

    def __init__(self, app: Outlast, api: FastAPI) -> None:
        self.app = app
        self.api = api

    def caller(self, headers: Any = None, *, peer: str = "127.0.0.1", url: str = HERE) -> Caller:
        transport = httpx.ASGITransport(self.api, client=(peer, 4711))
        return Caller(transport=transport, base_url=url, headers=headers, timeout=60)

    async def until(self, session_id: str, kind: str) -> None:
        """Wait for an event of a type in a session's log."""
        session = await self.app.session(session_id)
        async with asyncio.timeout(60):
            async for event in session.events():
                if event.type == kind:
                    return

    async def hooked(self, caller: Caller) -> tuple[str, str]:
        """Start a session that waits for a callback; return it and the path of that."""
        body = {"agent": "teller", "message": "bank"}
        session = (await caller.ask("POST", "/sessions", 202, json=body))["session_id"]
        await self.until(session, "session.waiting")
        return session, HOOKS[-1].removeprefix(f"{OUTSIDE}/v1")

    async def key(
        self, *scopes: str, tenant: str = "default", name: str = "test"
    ) -> tuple[str, dict[str, str]]:
        """Make a key, by default for everything; return its id and the header it goes into."""
        text, info = mint(self.app.clock, tenant=tenant, name=name, scopes=scopes or tuple(SCOPES))
        await add_key(self.app.store, info)
        return info.key_id, {"Authorization": f"Bearer {text}"}

    async def keyed(self, *scopes: str, tenant: str = "default", name: str = "test") -> Caller:
        """Return somebody from elsewhere who has a key."""
        _, header = await self.key(*scopes, tenant=tenant, name=name)
        return self.caller(header, peer="203.0.113.9")


@asynccontextmanager
async def scene(
    settings: ServerSettings | None = None, store: str | Store = "memory://", **given: Any
) -> AsyncIterator[Scene]:
    options = {"public_url": OUTSIDE, "worker": FAST, **given}
    async with Outlast([teller, hold], store=store, **options) as app:
        made = Scene(app, create(app, settings))
        yield made
        made.api.state.backend.feeds.close()


@asynccontextmanager
async def on_a_socket(
    app: Outlast, settings: ServerSettings | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Serve an app that is open on a real socket, as `outlast serve` does."""
    settings = settings or ServerSettings(port=0)
    ready, stop = asyncio.Event(), asyncio.Event()
    with open_socket(settings) as to:
        task = asyncio.create_task(listen(app, settings, to, stop, ready.set))
        try:
            await ready.wait()
            host, port = to.getsockname()[:2]
            yield host, port
        finally:
            stop.set()
            await task
