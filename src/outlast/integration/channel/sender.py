"""Channels as a consumer of the outbox: each sends events, as text, to its sessions' threads.

Owns which thread an event is told in: the one that its session was anchored in when it happened.
When an event is sent, and sent again, is the affair of `integration/outbox/`.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from outlast.agents.subscription import StartingSession
from outlast.clock import Clock
from outlast.core.event import Event
from outlast.core.instant import date_of
from outlast.core.name import OF_CHANNEL, storable_key
from outlast.core.record import Entry, NewOutboxCursor, SessionRekeyed, SessionStarted
from outlast.errors import DispatchConflict, InvalidName, SessionOver, Unreachable
from outlast.integration.channel.channel import Channel
from outlast.integration.channel.outgoing import compose
from outlast.integration.outbox.consumer import FunctionReceiver
from outlast.integration.outbox.webhook import Subscriber, output_of
from outlast.store import OutboxCursor, Store

log = logging.getLogger("outlast.channel")


class Anchor(Protocol):
    """Has a session told in a thread of a channel from then on."""

    async def __call__(
        self, session_id: str, channel: str, thread: str, *, dispatch_id: str
    ) -> Any: ...


class ChannelSenders:
    """Sends what the sessions of an app's channels answer. A `Consumer` of the outbox."""

    def __init__(
        self,
        channels: Mapping[str, Channel],
        agents: Mapping[str, Subscriber],
        store: Store,
        clock: Clock,
        anchor: Anchor,
    ) -> None:
        self._channels = channels
        self._anchor = anchor
        self._agents = agents
        self._store = store
        self._clock = clock

    @property
    def is_empty(self) -> bool:
        return not self._channels

    def cursors(self, start: StartingSession) -> tuple[NewOutboxCursor, ...]:
        """Return the cursor of the channel that a new session's first token belongs to."""
        return self.of_token(start.token)

    def of_token(self, token: str) -> tuple[NewOutboxCursor, ...]:
        """Return the cursor of the channel that a token belongs to."""
        for name, channel in self._channels.items():
            if channel.thread(token) is not None:
                return (NewOutboxCursor(OF_CHANNEL + name, channel.events),)
        return ()

    def find(self, cursor: OutboxCursor) -> FunctionReceiver | None:
        if not cursor.name.startswith(OF_CHANNEL):
            return None
        name = cursor.name.removeprefix(OF_CHANNEL)
        channel = self._channels.get(name)
        tell = partial(self._send, channel) if channel else partial(tell_nobody, name)
        return FunctionReceiver(cursor.name, tell)

    async def _send(self, channel: Channel, event: Event) -> None:
        info = await self._store.listing.session(event.session_id)
        thread = await self._thread(channel, event)
        if info is None or thread is None:
            return  # the session was erased meanwhile, or is anchored in another channel
        output = None
        if event.type == "turn.completed":
            agent = self._agents.get(info.agent)
            wraps = agent is not None and agent.wraps_output
            output = await output_of(self._store, event, wraps_output=wraps)
        outgoing = compose(event, info, output, date_of(self._clock.now()))
        moved = await channel.send(outgoing, thread)
        if moved and moved != thread:
            await self._move(channel, event, moved)

    async def _move(self, channel: Channel, event: Event, thread: str) -> None:
        """Anchor a session where the other side goes on with it; told again, it moves once."""
        dispatch_id = storable_key(f"{OF_CHANNEL}{channel.name}:moved:{event.offset}")
        try:
            await self._anchor(event.session_id, channel.name, thread, dispatch_id=dispatch_id)
        except (DispatchConflict, SessionOver):
            return  # it has moved already, or is over
        except InvalidName as error:
            # The event has been posted: a failure here would have it posted again for a day.
            facts = {"session": event.session_id, "channel": channel.name, "code": error.code}
            log.warning("a channel returned what cannot be a thread: %s", error, extra=facts)

    async def _thread(self, channel: Channel, event: Event) -> str | None:
        """Return the thread of a channel in which a session's event is told, if it is.

        That is where the session was anchored when it happened: whatever has moved the session
        since, and however often it is told, a thread is told what happened while it was the one.
        """
        tokens = await self._store.listing.tokens(event.session_id)
        known = [(token, leads) for token, leads in tokens if token.startswith(OF_CHANNEL)]
        if not known:
            return None
        # Of a session that has moved, the log says where it was. One that never did is looked up.
        if len(known) > 1 and await self._moved_later(event):
            return channel.thread(await self._anchored_before(event))
        living = [token for token, leads in known if leads] or [token for token, _ in known]
        return channel.thread(living[-1])

    async def _moved_later(self, event: Event) -> bool:
        """Say whether a session was anchored in a channel after something happened in it."""
        position = event.offset
        while entries := (await self._store.log.read(event.session_id, position)).entries:
            if any(anchor_in(entry) for entry in entries):
                return True
            position = entries[-1].offset
        return False

    async def _anchored_before(self, event: Event) -> str:
        """Return the token by which a session was last anchored before something happened.

        A session may have begun in a thread.
        """
        position = event.offset
        while entries := (await self._store.log.read_back(event.session_id, position)).entries:
            if found := [anchor for entry in entries if (anchor := anchor_in(entry))]:
                return found[-1]
            position = entries[0].offset
        return ""


def anchor_in(entry: Entry) -> str:
    """Return the token of a channel's thread with which a record anchors a session, if it does."""
    match entry.record:
        case SessionStarted(token=token) if token.startswith(OF_CHANNEL):
            return token
        case SessionRekeyed(token=token, outbox=outbox) if outbox:
            return token
    return ""


async def tell_nobody(channel: str, event: Event) -> None:
    """Say of a session that is anchored in a channel which this app does not have."""
    raise Unreachable(
        f"this app has no channel {channel}: nobody is told. Add the channel, or anchor the"
        " session elsewhere: outlast anchor"
    )
