"""Channels as a consumer of the outbox: each sends events, as text, to its sessions' threads."""

from collections.abc import Mapping
from functools import partial

from outlast.agents.subscription import StartingSession
from outlast.clock import Clock
from outlast.core.event import Event
from outlast.core.instant import date_of
from outlast.core.name import OF_CHANNEL
from outlast.core.record import NewOutboxCursor, SessionRekeyed
from outlast.integration.channel.channel import Channel
from outlast.integration.channel.outgoing import compose
from outlast.integration.outbox.consumer import FunctionReceiver
from outlast.integration.outbox.webhook import Subscriber, output_of
from outlast.store import OutboxCursor, Store


class ChannelSenders:
    """Sends what the sessions of an app's channels answer. A `Consumer` of the outbox."""

    def __init__(
        self,
        channels: Mapping[str, Channel],
        agents: Mapping[str, Subscriber],
        store: Store,
        clock: Clock,
    ) -> None:
        self._channels = channels
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
        channel = self._channels.get(cursor.name.removeprefix(OF_CHANNEL))
        return FunctionReceiver(cursor.name, partial(self._send, channel)) if channel else None

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
        await channel.send(compose(event, info, output, date_of(self._clock.now())), thread)

    async def _thread(self, channel: Channel, event: Event) -> str | None:
        """Return the thread of a channel in which a session's event is told, if it is.

        That is where the session is anchored: the newest token of a thread that leads to it. A
        session that is over has no such token any more; then it is the newest of all. What
        happened before it was anchored in another channel is still told here.
        """
        anchor, ours, living = "", "", ""
        for token, leads in await self._store.listing.tokens(event.session_id):
            if not token.startswith(OF_CHANNEL):
                continue
            if leads or not living:
                anchor, living = token, token if leads else ""
            ours = token if channel.thread(token) is not None else ours
        if channel.thread(anchor) is None and ours and not await self._moved_later(event):
            return None
        return channel.thread(anchor) or (channel.thread(ours) if ours else None)

    async def _moved_later(self, event: Event) -> bool:
        """Say whether a session was anchored in a channel after something happened in it."""
        position = event.offset
        while entries := (await self._store.log.read(event.session_id, position)).entries:
            for entry in entries:
                if isinstance(entry.record, SessionRekeyed) and entry.record.outbox:
                    return True
            position = entries[-1].offset
        return False
