"""The host of a remote agent: all that the engine, callbacks, streams and cancelling ask of it.

Owns the requests that are sent for a child, and the secrets of its callbacks. `peer.py` speaks to
the other server; `contact.py` makes one contact.
"""

import hmac
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

from outlast.agents.runtime.environment import AgentRef
from outlast.agents.runtime.json_value import from_json
from outlast.agents.subagent import AbandonedChild
from outlast.core.event import Event
from outlast.core.lane import Lane, OpenRequest
from outlast.core.result import ChildContact
from outlast.integration.remote.contact import RemoteContact
from outlast.integration.remote.peer import Peer, RemoteRequest


class RemoteHost:
    """One agent of another server. `poll` is the first pause between two looks, in seconds."""

    def __init__(
        self, name: str, peer: Peer, token: str | None, output_type: type | None, poll: float
    ) -> None:
        self.name = name
        self.peer = peer
        self.poll = poll
        self._key = (token or "").encode()
        self._output_type = output_type

    @property
    def place(self) -> str:
        return self.peer.url

    def __repr__(self) -> str:
        return f"RemoteHost({self.name!r})"

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
        return from_json(value, self._output_type) if self._output_type else from_json(value)

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
        # Derived, and stored nowhere: any worker that has the token comes to the same address.
        return self._derived("callback address", key).hex() if self._key else ""

    def callback_url(self, key: str, public_url: str) -> str:
        token = self.callback_token(key)
        return f"{public_url}/v1/callbacks/{token}" if token and public_url else ""

    def callback_secret(self, token: str) -> str:
        """Return what the other server signs its posts to an address with."""
        return "whsec_" + b64encode(self._derived("callback secret", token)).decode()

    def _derived(self, purpose: str, text: str) -> bytes:
        return hmac.digest(self._key, f"outlast {purpose}\n{text}".encode(), "sha256")
