"""All channels of an app: brings what comes in to sessions, and events to who tells them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.admission import OF_CHANNEL
from holdfast.channel.channel import Channel
from holdfast.channel.inbound import Inbound, InboundRequest, Received, Reply
from holdfast.channel.speaker import Speaker
from holdfast.clock import Clock
from holdfast.core.message import Said
from holdfast.core.name import check_id, storable_key
from holdfast.core.record import NewOutlet
from holdfast.errors import (
    InvalidDefinition,
    SessionOver,
    TokenTaken,
    UnknownChannel,
    UnknownRequest,
    UnknownSession,
)
from holdfast.session import Receipt, Session
from holdfast.store import Store
from holdfast.webhook.book import Subscriber

TRIES = 3
"""How often a message looks for its session, if that ends while it is on its way."""


class Deliver(Protocol):
    """Sends a message to where a token leads, and starts a session there if need be."""

    async def __call__(
        self,
        token: str,
        message: Said,
        /,
        *,
        agent: str,
        dispatch_id: str,
        tenant: str,
        principal: str,
    ) -> Receipt[Any]: ...


class Switchboard:
    """Knows the channels by name."""

    def __init__(
        self,
        channels: Sequence[Channel],
        agents: Mapping[str, Subscriber],
        store: Store,
        clock: Clock,
        deliver: Deliver,
        handle: Callable[[str], Session[Any]],
    ) -> None:
        self._channels = by_name(channels, agents)
        self._speakers = {
            OF_CHANNEL + name: Speaker(channel, agents, store, clock)
            for name, channel in self._channels.items()
        }
        self._store = store
        self._deliver = deliver
        self._handle = handle

    # In

    async def receive(self, name: str, request: InboundRequest) -> Received:
        """Verify what came in, and bring it to its session. Refused, it has changed nothing."""
        channel = self._channels.get(name)
        if channel is None:
            raise UnknownChannel(f"this app has no channel {name}", channel=name)
        channel.verify(request)
        found = channel.read(request)
        if not isinstance(found, Inbound):
            return Received(answer=found)
        take = self._send if found.reply is None else self._answer
        return Received(await take(channel, found), found.answer)

    async def _send(self, channel: Channel, found: Inbound) -> Receipt[Any]:
        assert found.message is not None
        tries = TRIES
        while True:
            tries -= 1
            try:
                return await self._deliver(
                    channel.token(found.thread),
                    found.message,
                    agent=channel.agent,
                    dispatch_id=dispatch_of(channel, found),
                    tenant=tenant_of(channel, found),
                    principal=found.principal,
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
            by=found.principal,
        )

    async def _asker(self, channel: Channel, found: Inbound, reply: Reply) -> Session[Any]:
        """Return whose request it is: only in the thread where it was asked it is answered."""
        request = await self._store.request(check_id("request_id", reply.request_id))
        info = await self._store.session(request.session_id) if request else None
        if info and info.tenant == tenant_of(channel, found):
            token = channel.token(found.thread)
            for known, leads in await self._store.tokens(info.session_id):
                if known == token and (leads or info.over):
                    return self._handle(info.session_id)
        raise UnknownRequest("nothing of this name was asked here", request=reply.request_id)

    # Out: what the outbox asks

    @property
    def is_empty(self) -> bool:
        return not self._channels

    def outlets_at(self, token: str) -> tuple[NewOutlet, ...]:
        """Return who is to be told of a session that is started at a token."""
        for name, channel in self._channels.items():
            if channel.thread(token) is not None:
                return (NewOutlet(OF_CHANNEL + name, channel.events),)
        return ()

    def find(self, outlet: str) -> Speaker | None:
        """Return who tells what an outlet is for; None if the channel is gone from the code."""
        return self._speakers.get(outlet)


def by_name(channels: Sequence[Channel], agents: Mapping[str, Subscriber]) -> dict[str, Channel]:
    found: dict[str, Channel] = {}
    for channel in channels:
        if not isinstance(channel, Channel):
            raise InvalidDefinition(f"a {type(channel).__name__} is not a Channel")
        if channel.name in found:
            raise InvalidDefinition(f"two channels are named {channel.name}", channel=channel.name)
        if channel.agent not in agents:
            raise InvalidDefinition(
                f"channel {channel.name} is for the agent {channel.agent}, which this app has not",
                channel=channel.name,
            )
        found[channel.name] = channel
    return found


def tenant_of(channel: Channel, found: Inbound) -> str:
    return check_id("tenant", found.tenant or channel.tenant)


def dispatch_of(channel: Channel, found: Inbound) -> str:
    """Return what makes the same thing that comes in again the same; no other sender's is."""
    return storable_key(f"{OF_CHANNEL}{channel.name}:{check_id('id', found.id)}")
