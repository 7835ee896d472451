"""Two apps on real sockets, one of which asks the other, and a wire between that can be bad."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from client_scene import BadWire, planner
from free_port import free_port
from http_scene import FAST, on_a_socket, teller

from outlast import Agent, Outlast, Session
from outlast.integration.outbox import WebhookSettings
from outlast.integration.remote.agent import RemoteAgent
from outlast.log.reader import Wakeups
from outlast.server import ServerSettings
from outlast.server.key import add_key, mint
from outlast.server.principal import SCOPES
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say

HOOKS = WebhookSettings(secret="0123456789abcdef", allow_private=True, poll=0.05)


class Pair:
    """Two apps: `near` asks, `peer` is asked over `url`."""

    def __init__(self, near: Outlast, peer: Outlast, wire: BadWire) -> None:
        self.near, self.peer, self.wire = near, peer, wire

    async def child(self) -> Session[Any]:
        """Return the only session there."""
        [session_id] = await self.children()
        return await self.peer.session(session_id)

    async def children(self) -> list[str]:
        return [info.session_id for info in await self.peer.sessions()]


def boss(url: str, message: str, **options: Any) -> Agent[Any, Any]:
    remote = RemoteAgent("teller", url, **options)
    script: list[ScriptedReply] = [call("teller", message=message), say("done")]
    return Agent("boss", ScriptedModel(script), subagents=[remote])


@asynccontextmanager
async def two_apps(
    message: str,
    *,
    calls_back: bool = True,
    asked: Agent[Any, Any] = teller,
    there: Mapping[str, Any] | None = None,
    hooks: WebhookSettings = HOOKS,
    **options: Any,
) -> AsyncIterator[Pair]:
    """Give both; `there` are more options of the app that is asked, `options` of the agent."""
    port = free_port()
    async with AsyncExitStack() as stack:
        given: dict[str, Any] = {"store": "memory://", "worker": FAST, "webhooks": hooks}
        peer = await stack.enter_async_context(Outlast([asked, planner], **given, **(there or {})))
        wire = BadWire("http://%s:%s" % await stack.enter_async_context(on_a_socket(peer)))
        wired = await stack.enter_async_context(wire.opened())
        token = await token_for(peer)
        near = Outlast(
            [boss(f"http://127.0.0.1:{wired}", message, token=token, **options)],
            store="memory://",
            worker=FAST,
            public_url=f"http://127.0.0.1:{port}" if calls_back else "",
        )
        await stack.enter_async_context(near)
        await stack.enter_async_context(on_a_socket(near, ServerSettings(port=port)))
        yield Pair(near, peer, wire)


@asynccontextmanager
async def peer_app(
    asked: Agent[Any, Any] = teller, **options: Any
) -> AsyncIterator[tuple[Outlast, str, str]]:
    """Give an app that is asked, its address, and a token for it."""
    async with (
        Outlast([asked], store="memory://", worker=FAST, webhooks=HOOKS, **options) as peer,
        on_a_socket(peer) as (host, port),
    ):
        yield peer, f"http://{host}:{port}", await token_for(peer)


async def token_for(app: Outlast) -> str:
    token, key = mint(app.clock, tenant="default", name="near", scopes=tuple(SCOPES))
    await add_key(app.store, key)
    return token


async def output_of(session: Session[Any]) -> str | None:
    return (await session.wait()).output


async def until(app: Outlast, session: Session[Any], kind: str) -> Any:
    """Wait for an event of a type, however often the session rests before."""
    with Wakeups(app.store, session.id) as wakeups:
        while True:
            wakeups.clear()
            if found := await the(session, kind):
                return found[0]
            await wakeups.wait()


async def told(session: Session[Any]) -> list[str]:
    return [
        result.text
        for message in await session.history()
        for result in getattr(message, "results", ())
    ]


async def the(session: Session[Any], kind: str) -> list[Any]:
    return [e async for e in session.events(follow=False) if e.type == kind]
