"""A remote agent as users define it: its name, its address, and the token for it."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

from outlast.agents.runtime.context import Context, subagent_of
from outlast.agents.runtime.environment import AgentRef
from outlast.agents.runtime.json_value import from_json
from outlast.agents.subagent import AbandonedChild, asking_tool
from outlast.agents.tool import Tool
from outlast.agents.validation import checked_name
from outlast.core.event import Event
from outlast.core.instant import Span
from outlast.core.lane import Lane, OpenRequest
from outlast.core.result import ChildContact
from outlast.core.setting import seconds_of
from outlast.integration.remote.contact import RemoteContact
from outlast.integration.remote.peer import Peer, RemoteRequest


class RemoteAgent:
    """An agent behind another server; give it to `Agent(subagents=…)`.

    `agent` is what it is called there, if not by the same name; `token` is a key with the scopes
    read, send and approve. `output_type` is that of its answers. A server that is away for
    more than `timeout` is tried again later, holding nothing meanwhile. The first look
    at what it does comes after `poll`, the next ones after more and more.
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
        timeout: Span = 10.0,
        poll: Span = 2.0,
    ) -> None:
        self.name = checked_name(name)
        self.description = description
        self.poll = seconds_of("poll", poll)
        self.peer = Peer(url, token, agent or name, seconds_of("timeout", timeout))
        self._key = (token or "").encode()
        self.output_type = output_type

    def __repr__(self) -> str:
        return f"RemoteAgent({self.name!r})"

    def as_tool(self) -> Tool:
        """Return the tool by which a model hands work to it."""

        async def ask(ctx: Context[Any], message: str) -> Any:
            return await subagent_of(ctx, self.ref()).ask(message)

        return asking_tool(ask, self.name, self.description)

    def ref(self) -> AgentRef:
        """Return the reference by which tools ask it."""
        return AgentRef(self.name, self.parse, url=self.peer.url)

    async def contact(self, lane: Lane, child: OpenRequest, public_url: str) -> ChildContact:
        """Start a child there, send it answers, and look how it stands."""
        return await RemoteContact(self, lane, child, public_url).make()

    def events(self, session_id: str, after: int | str, *, follow: bool) -> AsyncIterator[Event]:
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

    def parse(self, value: str) -> Any:
        """Return an answer, given as JSON text, as a value of its type."""
        return from_json(value, self.output_type) if self.output_type else from_json(value)

    # Derived from the token, so that only both sides know it

    def request_for(
        self, key: str, message: str, can_ask: bool, deadline: int = 0, depth: int = 0
    ) -> RemoteRequest:
        """Return the start that is sent for a child; `key` makes repeats one."""
        token = self.callback_token(key)
        secret = self.callback_secret(token) if token else ""
        return RemoteRequest(key, message, can_ask, deadline, secret, depth)

    def callback_token(self, key: str) -> str:
        """Return the secret part of the address for a child's news, the same every time.

        Without a token both sides share no secret, and there is no callback.
        """
        return self._derived("callback address", key).hex() if self._key else ""

    def callback_url(self, key: str, public_url: str) -> str:
        token = self.callback_token(key)
        return f"{public_url}/v1/callbacks/{token}" if token and public_url else ""

    def callback_secret(self, token: str) -> str:
        """Return what the other server signs its posts to an address with."""
        return "whsec_" + b64encode(self._derived("callback secret", token)).decode()

    def _derived(self, purpose: str, text: str) -> bytes:
        return hmac.digest(self._key, f"outlast {purpose}\n{text}".encode(), "sha256")
