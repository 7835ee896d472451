"""All channels of an app as receivers: what is posted to one goes to its session.

Owns how a thread finds its session, how a session is anchored in a thread, and the dispatch id by
which a post that comes twice counts once. Refuses to know signatures and shapes of posts: the
channel itself does (`channel.py`).
"""

from collections.abc import Mapping
from typing import Any

from outlast.clock import Clock
from outlast.core.instant import date_of
from outlast.core.name import OF_CHANNEL, check_id, storable_key
from outlast.core.record import NewOutboxCursor
from outlast.errors import (
    SessionOver,
    TokenTaken,
    UnknownChannel,
    UnknownRequest,
    UnknownSession,
)
from outlast.integration.channel.channel import Channel
from outlast.integration.channel.inbound import (
    Inbound,
    InboundAnswer,
    InboundRequest,
    ReceivedRequest,
)
from outlast.session import Receipt, Session
from outlast.session.router import SessionRouter
from outlast.store import Store

TRIES = 3
"""How often a message is routed, if its session ends at that moment."""


class ChannelReceiver:
    """The channels of an app, as messages come in through them: `app.channels`."""

    def __init__(
        self, channels: Mapping[str, Channel], store: Store, clock: Clock, router: SessionRouter
    ) -> None:
        self._channels = channels
        self._store = store
        self._clock = clock
        self._router = router

    def check(self, name: str) -> Channel:
        """Return a channel, or raise UnknownChannel: before what was posted to it is read."""
        channel = self._channels.get(name)
        if channel is None:
            raise unknown_channel(name)
        return channel

    async def receive(self, name: str, headers: Mapping[str, str], body: bytes) -> ReceivedRequest:
        """Bring a post to its session, and return the receipt or the channel's own answer.

        The server does this at `/v1/channels/{name}`. A post that the channel cannot verify raises
        InvalidSignature and changes nothing; the same post again returns the first receipt.
        """
        channel = self.check(name)
        lower = {name.lower(): value for name, value in headers.items()}
        request = InboundRequest(headers=lower, body=body, at=date_of(self._clock.now()))
        channel.verify(request)
        found = channel.read(request)
        if not isinstance(found, Inbound):
            return ReceivedRequest(answer=found)
        take = self._send if found.reply is None else self._answer
        return ReceivedRequest(await take(channel, found), found.answer)

    async def anchor(
        self,
        session_id: str,
        channel: str,
        thread: str,
        *,
        dispatch_id: str | None = None,
        principal: str = "",
    ) -> Receipt[Any]:
        """Have a session told in a thread of a channel from now on, wherever it began.

        Its answers, requests and sign-ins go there, and messages from there to the session; those
        to its old address are forwarded. The owner of its lane `main` does it between two steps;
        the receipt's `result()` waits for that, and is "refused" where the thread has a session of
        its own. The same `dispatch_id` again is the same change.

        Raises:
            UnknownChannel: The app has no such channel: nobody could be told.
            SessionOver: Nothing more happens in the session.
        """
        known = self.check(channel)
        session: Session[Any] = self._router.handle(check_id("session", session_id))
        outbox = (NewOutboxCursor(OF_CHANNEL + known.name, known.events),)
        return await session._rekey(known.token(thread), outbox, dispatch_id, principal)

    async def _send(self, channel: Channel, found: Inbound) -> Receipt[Any]:
        assert found.message is not None
        tries = TRIES
        while True:
            tries -= 1
            try:
                return await self._router.deliver(
                    channel.token(found.thread),
                    found.message,
                    agent=channel.agent,
                    dispatch_id=dispatch_of(channel, found),
                    scope=f"{OF_CHANNEL}{channel.name}",
                    tenant=tenant_of(channel, found),
                    principal=found.principal,
                    tags=found.tags,
                )
            except (TokenTaken, SessionOver, UnknownSession):
                if not tries:
                    raise

    async def _answer(self, channel: Channel, found: Inbound) -> Receipt[Any]:
        assert found.reply is not None
        session = await self._asker(channel, found, found.reply)
        return await session.answer(
            found.reply.request_id,
            found.reply.option,
            text=found.reply.text,
            args=found.reply.args,
            dispatch_id=dispatch_of(channel, found),
            principal=found.principal,
        )

    async def _asker(self, channel: Channel, found: Inbound, reply: InboundAnswer) -> Session[Any]:
        """Return the session of a request, which can be answered only in its own thread."""
        request = await self._store.listing.request(check_id("request_id", reply.request_id))
        info = await self._store.listing.session(request.session_id) if request else None
        if info and info.tenant == tenant_of(channel, found):
            token = channel.token(found.thread)
            for known, leads in await self._store.listing.tokens(info.session_id):
                if known == token and (leads or info.over):
                    return self._router.handle(info.session_id)
        raise UnknownRequest("there is no such request in this thread", request=reply.request_id)


def unknown_channel(name: str) -> UnknownChannel:
    return UnknownChannel(f"this app has no channel {name}", channel=name)


def tenant_of(channel: Channel, found: Inbound) -> str:
    return check_id("tenant", found.tenant or channel.tenant)


def dispatch_of(channel: Channel, found: Inbound) -> str:
    """Return the dispatch id of an inbound request; no two channels share one."""
    return storable_key(f"{OF_CHANNEL}{channel.name}:{check_id('id', found.id)}")
