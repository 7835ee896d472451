"""A remote agent as users define it: its name, its address, and the token for it."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from outlast.agents.agent import Agent
from outlast.agents.runtime.context import Context
from outlast.agents.runtime.json_value import from_json, to_json
from outlast.agents.subagent import FOR_EVER, AbandonedChild
from outlast.agents.tool import Tool
from outlast.agents.validation import checked_name
from outlast.core.event import Event
from outlast.integration.remote.call import RemoteCall
from outlast.integration.remote.peer import Peer, RemoteRequest
from outlast.integration.remote.proxy_agent import proxy_for


class RemoteAgent:
    """An agent behind another server; give it to `Agent(subagents=…)`.

    `agent` is what it is called there, if not by the same name; `token` is a key with the scopes
    read, send and approve. `output_type` is that of its answers. A server that is away for
    more than `timeout` seconds is tried again later, holding nothing meanwhile. The first look
    at what it does comes after `poll` seconds, the next ones after more and more.
    """

    def __init__(
        self,
        name: str,
        url: str,
        token: str | None = None,
        *,
        agent: str = "",
        description: str = "",
        output_type: type | None = None,
        timeout: float = 10.0,
        poll: float = 2.0,
    ) -> None:
        self.name = checked_name(name)
        self.description = description
        self.poll = poll
        self.peer = Peer(url, token, agent or name, timeout)
        self._key = (token or "").encode()
        self.output_type = output_type

    def __repr__(self) -> str:
        return f"RemoteAgent({self.name!r})"

    def as_tool(self) -> Tool:
        """Return the tool by which a model hands work to it."""

        async def ask(ctx: Context[Any], message: str) -> Any:
            return self.parse(await RemoteCall(self, ctx, message).run())

        return self._tool(ask)

    def as_json_tool(self) -> Tool:
        """Return the same tool with answers as JSON text, which keeps their values exactly."""

        async def ask(ctx: Context[Any], message: str) -> str:
            return to_json(self.parse(await RemoteCall(self, ctx, message).run()))

        return self._tool(ask)

    def _tool(self, ask: Callable[..., Awaitable[Any]]) -> Tool:
        made = Tool(
            ask,
            name=self.name,
            description=self.description or f"Hand work to {self.name}; say all that it needs.",
            on_interrupt="rerun",  # everything that is said to the other server can be said again
            timeout=FOR_EVER,
        )
        made._callback_secret = self._callback_secret
        return made

    def proxy(self) -> Agent[Any, Any]:
        """Return the agent of this app whose sessions ask it on behalf of tools."""
        return proxy_for(self)

    def events(self, session_id: str, after: int, *, follow: bool) -> AsyncIterator[Event]:
        """Yield the events of a session there."""
        return self.peer.events(session_id, after, follow=follow)

    async def cancel(self, child: AbandonedChild) -> None:
        """End a session there that its caller no longer waits for."""
        session_id = child.session_id
        if not session_id:
            # It may have been started all the same. Starting it again under its key finds it, or
            # takes its place, so that a start that is still on its way starts nothing.
            wanted = self.request_for(child.key, child.message, child.can_ask, depth=child.depth)
            url = self.callback_url(child.key, child.public_url)
            session_id = (await self.peer.start(wanted, url)).session_id
        await self.peer.end(session_id)

    def parse(self, output: Any) -> Any:
        """Return an answer as a value of its type."""
        return output if self.output_type is None else from_json(to_json(output), self.output_type)

    # Derived from the token, so that only both sides know it

    def request_for(
        self, key: str, message: str, can_ask: bool, deadline: int = 0, depth: int = 0
    ) -> RemoteRequest:
        """Return the start that a call sends."""
        token = self.callback_token(key)
        secret = self._callback_secret(token) if token else ""
        return RemoteRequest(key, message, can_ask, deadline, secret, depth)

    def callback_token(self, key: str) -> str:
        """Return the secret part of the address of a call's callback, the same every time.

        Without a token both sides share no secret, and there is no callback.
        """
        return self._derived("callback address", key).hex() if self._key else ""

    def callback_url(self, key: str, public_url: str) -> str:
        token = self.callback_token(key)
        return f"{public_url}/v1/callbacks/{token}" if token and public_url else ""

    def _callback_secret(self, token: str) -> str:
        return "whsec_" + b64encode(self._derived("callback secret", token)).decode()

    def _derived(self, purpose: str, text: str) -> bytes:
        return hmac.digest(self._key, f"outlast {purpose}\n{text}".encode(), "sha256")
