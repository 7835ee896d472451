"""Calls from outside to the tools that wait for them.

The address is the authorization, good for one call. That of a remote agent's server may be used
again, and takes signed calls only: each says no more than that there is something to look at.
"""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import msgspec

from outlast.agents.agent import Agents, find_remote
from outlast.clock import Clock
from outlast.core.name import callback_name, is_id, round_token
from outlast.core.record import CallbackOpened, DeliveryQueued
from outlast.errors import Conflict, UnknownCallback, UnknownRequest, UnknownSession
from outlast.net.signature import TOLERANCE, check_signature
from outlast.session.handle import Receipt, Session
from outlast.session.inbox import Inbox, callback_value
from outlast.store import RequestInfo, Store

NOTHING = "null"
NO_HEADERS: Mapping[str, str] = {}
UNKNOWN_CALLBACK = "this address leads nowhere: it was never given out, was used, or has expired"


class Callbacks:
    """The callbacks that tools of an app wait for: `app.callbacks`."""

    def __init__(
        self,
        agents: Agents,
        store: Store,
        clock: Clock,
        inbox: Inbox,
        handle: Callable[[str], Session[Any]],
    ) -> None:
        self._agents = agents
        self._store = store
        self._clock = clock
        self._inbox = inbox
        self._handle = handle

    async def check(self, token: str) -> None:
        """Raise UnknownCallback unless the address was given out, used or not.

        The server asks this before it reads what was posted.
        """
        if await self._find(token) is None:
            raise UnknownCallback(UNKNOWN_CALLBACK)

    async def receive(
        self,
        token: str,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Receipt[Any] | None:
        """Hand over what was posted to the address of a waiting tool.

        The server does this at `/v1/callbacks/{token}`. The same body again returns the first
        receipt. To an address that was never given out, has been used or has expired,
        UnknownCallback is raised. At the address of a remote agent's server, what it has not signed
        raises InvalidSignature, and the address stays open; what it has signed and comes later does
        nothing, and has no receipt.
        """
        request = await self._find(token)
        info = await self._store.listing.session(request.session_id) if request else None
        if request is None or info is None:
            raise UnknownCallback(UNKNOWN_CALLBACK)
        opened = msgspec.json.decode(request.data, type=CallbackOpened)
        if opened.signer:
            secret, now = self._secret(info.agent, opened, token), self._clock.now() // 1000
            check_signature(secret, headers, body, TOLERANCE, now)
        reply = DeliveryQueued(
            delivery_id="",
            kind="reply",
            request_id=request.request_id,
            # What it says is not believed: it is a reason to look, and what is there is asked for.
            args=NOTHING if opened.signer else callback_value(body, content_type),
        )
        try:
            receipt = await self._inbox.reply(request, reply)
        # In the same words, whatever the reason: a stranger learns nothing of what is at an
        # address.
        except (Conflict, UnknownSession, UnknownRequest):
            if opened.signer:
                return None
            raise UnknownCallback(UNKNOWN_CALLBACK) from None
        return Receipt(self._handle(info.session_id), receipt)

    async def _find(self, token: str) -> RequestInfo | None:
        """Return what an address leads to: the wait that is open there, or else the last one."""
        found: RequestInfo | None = None
        if not is_id(token):
            return None
        for rounds in count(1):
            request = await self._store.listing.request(callback_name(round_token(token, rounds)))
            # Rounds are used up in their order: the first that is open is the address of now.
            if request is None or request.state == "open":
                return request or found
            found = request
        return None

    def _secret(self, agent: str, opened: CallbackOpened, token: str) -> str:
        """Return what has to sign what comes in at an address, by the code of today."""
        remote = find_remote(self._agents, agent, opened.signer)
        if remote is None:
            raise UnknownCallback(UNKNOWN_CALLBACK)
        return remote.callback_secret(token)
