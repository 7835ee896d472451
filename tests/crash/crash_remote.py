"""Two apps that are killed while one asks the other: what they are, and what their processes do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from crash_job import Say

from outlast import Agent, Context, Outlast, WorkerSettings, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.message import UserMessage, text_of
from outlast.integration.outbox import WebhookSettings
from outlast.integration.remote.agent import RemoteAgent
from outlast.server import ServerSettings
from outlast.server.serve import listen, open_socket
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say

WORKER = WorkerSettings(poll=0.05, watch=0.1)
HOOKS = WebhookSettings(secret="0123456789abcdef", allow_private=True, poll=0.1)
READY = "ready"


@tool(approval="always", transactional=True)
async def pay(ctx: Context, cents: int) -> str:
    """Pay, in the transaction that records it."""
    await ctx.tx.execute("INSERT INTO paid (cents) VALUES (?)", (cents,))
    return f"paid {cents}"


def clerk() -> Agent[Any, Any]:
    return Agent("clerk", ScriptedModel(first(call("pay", cents=5), "It is paid.")), tools=[pay])


@tool
async def order(ctx: Context) -> str:
    """Ask the clerk; an interruption of this is reported, and what it came to is unknown."""
    return str(await ctx.agent("clerk").ask("Pay five."))


def shop(url: str, token: str) -> Agent[Any, Any]:
    """Return the agent that asks: its model itself, or by a tool if it is told to order."""
    remote = RemoteAgent("clerk", url, token, timeout=0.2, poll=0.1)

    def reply(request: ModelRequest) -> ScriptedReply:
        message = request.view.messages[-1]
        if not isinstance(message, UserMessage):
            return say("Done.")
        by_tool = text_of(message.content) == "order"
        return call("order") if by_tool else call("clerk", message="Pay five.")

    return Agent("shop", ScriptedModel(reply), tools=[order], subagents=[remote])


def first(reply: ScriptedReply, then: str) -> Callable[[ModelRequest], ScriptedReply]:
    """Say one thing to a user, and another to the result of that."""
    return lambda request: (
        reply if isinstance(request.view.messages[-1], UserMessage) else say(then)
    )


def app_of(side: str, store: str, **given: Any) -> Outlast:
    """Return one of both apps: `near` asks, `far` is asked."""
    if side == "far":
        return Outlast([clerk()], store=store, webhooks=HOOKS, **given)
    agent = shop(given.pop("url"), given.pop("token"))
    return Outlast([agent], store=store, webhooks=HOOKS, **given)


async def serve(say: Say, *, port: int, **app: Any) -> None:
    """Work and serve until killed."""
    settings = ServerSettings(port=port)
    with open_socket(settings) as to:
        async with app_of(**app, worker=WORKER) as opened:
            await listen(opened, settings, to, asyncio.Event(), lambda: say(READY))


JOBS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"serve": serve}
