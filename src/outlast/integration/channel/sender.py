"""Channels as a consumer of the outbox: each sends events, as text, to its sessions' threads."""

from collections.abc import Mapping
from functools import partial

from outlast.agents.subscription import StartingSession
from outlast.clock import Clock
from outlast.core.event import Event
from outlast.core.instant import date_of
from outlast.core.name import OF_CHANNEL
from outlast.core.record import NewOutboxCursor
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
        for name, channel in self._channels.items():
            if channel.thread(start.token) is not None:
                return (NewOutboxCursor(OF_CHANNEL + name, channel.events),)
        return ()

    def find(self, cursor: OutboxCursor) -> FunctionReceiver | None:
        if not cursor.name.startswith(OF_CHANNEL):
            return None
        channel = self._channels.get(cursor.name.removeprefix(OF_CHANNEL))
        return FunctionReceiver(cursor.name, partial(self._send, channel)) if channel else None

    async def _send(self, channel: Channel, event: Event) -> None:
        info = await self._store.listing.session(event.session_id)
        thread = await self._thread(channel, event.session_id)
        if info is None or thread is None:
            return  # the session was erased meanwhile
        output = None
        if event.type == "turn.completed":
            agent = self._agents.get(info.agent)
            wraps = agent is not None and agent.wraps_output
            output = await output_of(self._store, event, wraps_output=wraps)
        await channel.send(compose(event, info, output, date_of(self._clock.now())), thread)

    async def _thread(self, channel: Channel, session_id: str) -> str | None:
        """Return the thread of the newest token that leads to the session.

        A session that is over has no such token any more; then it is the newest of all.
        """
        living, last = None, None
        for token, leads in await self._store.listing.tokens(session_id):
            if (thread := channel.thread(token)) is not None:
                last = thread
                living = thread if leads else living
        return living or last
