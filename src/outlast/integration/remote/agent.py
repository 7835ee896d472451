"""A remote agent as users define it: its name, where it is, and what it shares with that place."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from outlast.agents.agent import Agent
from outlast.agents.runtime.context import Context
from outlast.agents.runtime.json_value import from_json, to_json
from outlast.agents.subagent import FOR_EVER, AbandonedCall
from outlast.agents.tool import Tool
from outlast.agents.validation import checked_name
from outlast.core.event import Event
from outlast.integration.remote.call import RemoteCall
from outlast.integration.remote.peer import Peer, RemoteRequest, RemoteStarted
from outlast.integration.remote.proxy_agent import envoy_of


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
        self.far = Peer(url, token, agent or name, timeout)
        self._key = (token or "").encode()
        self.output_type = output_type

    def __repr__(self) -> str:
        return f"RemoteAgent({self.name!r})"

    def as_tool(self) -> Tool:
        """Return the tool by which a model hands work to it."""

        async def ask(ctx: Context[Any], message: str) -> Any:
            return await RemoteCall(self, ctx, message).run()

        made = Tool(
            ask,
            name=self.name,
            description=self.description or f"Hand work to {self.name}; say all that it needs.",
            on_interrupt="rerun",
            timeout=FOR_EVER,
        )
        made.callback_secret = self._callback_secret
        return made

    def envoy(self) -> Agent[Any, Any]:
        """Return the agent here whose sessions ask it for tools."""
        return envoy_of(JsonRemoteAgent(self))

    def events(self, session_id: str, after: int, *, follow: bool) -> AsyncIterator[Event]:
        """Give the events of a session there."""
        return self.far.events(session_id, after, follow=follow)

    async def recall(self, call: AbandonedCall) -> None:
        """End what a call has started there, now that nobody waits for it."""
        known = call.steps.get("start")
        if known is None:
            # It may have been started all the same. Who starts it again finds it, or takes its
            # place, so that what is still on its way starts nothing.
            message = call.args["message"]
            commission = self.commission(call.key, message, call.can_ask, depth=call.depth)
            started = await self.far.start(commission, self.callback_url(call.key, call.url))
        else:
            started = msgspec.convert(known, RemoteStarted)
        await self.far.end(started.session_id)

    def parse(self, output: Any) -> Any:
        """Return an answer as a value of its type."""
        return output if self.output_type is None else from_json(to_json(output), self.output_type)

    # What only both sides can know

    def commission(
        self, key: str, message: str, can_ask: bool, deadline: int = 0, depth: int = 0
    ) -> RemoteRequest:
        """Return what a call wants done there."""
        token = self.callback_token(key)
        secret = self._callback_secret(token) if token else ""
        return RemoteRequest(key, message, can_ask, deadline, secret, depth)

    def callback_token(self, key: str) -> str:
        """Return the secret part of the address at which a call is told, the same every time.

        Without a token nothing is secret between both sides: then nobody is told anything.
        """
        return self._derived("callback address", key).hex() if self._key else ""

    def callback_url(self, key: str, public_url: str) -> str:
        token = self.callback_token(key)
        return f"{public_url}/v1/callbacks/{token}" if token and public_url else ""

    def _callback_secret(self, token: str) -> str:
        return "whsec_" + b64encode(self._derived("callback secret", token)).decode()

    def _derived(self, purpose: str, text: str) -> bytes:
        return hmac.digest(self._key, f"outlast {purpose}\n{text}".encode(), "sha256")


class JsonRemoteAgent(RemoteAgent):
    """The same agent, whose answers are JSON text of their values, so that nothing is lost."""

    def __init__(self, remote: RemoteAgent) -> None:
        vars(self).update(vars(remote))

    def parse(self, output: Any) -> Any:
        return to_json(super().parse(output))
