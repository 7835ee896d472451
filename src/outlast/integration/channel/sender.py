"""Channels as they speak: each is told of events in words, at the newest address of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlast.clock import Clock
from outlast.core.event import Event
from outlast.core.name import OF_CHANNEL
from outlast.core.record import NewOutboxCursor
from outlast.integration.channel.channel import Channel
from outlast.integration.channel.outgoing import compose
from outlast.integration.outbox.payload import output_of
from outlast.integration.outbox.route import Subscriber
from outlast.log.reader import read_outcome
from outlast.store import SessionInfo, Store


class ChannelSender:
    """What the outbox calls for each event that a channel wants to know of."""

    def __init__(
        self, channel: Channel, agents: Mapping[str, Subscriber], store: Store, clock: Clock
    ) -> None:
        self._channel = channel
        self._agents = agents
        self._store = store
        self._clock = clock

    async def __call__(self, event: Event) -> None:
        info = await self._store.session(event.session_id)
        thread = await self._thread(event.session_id)
        if info is None or thread is None:
            return  # it was erased meanwhile: there is nothing to tell any more
        output = await self._output(event, info) if event.type == "turn.completed" else None
        outgoing = compose(event, info, output, self._clock.now() // 1000)
        await self._channel.send(outgoing, thread)

    async def _thread(self, session_id: str) -> str | None:
        """Return where the conversation is now; when it is over, where it was last."""
        living, last = None, None
        for token, leads in await self._store.tokens(session_id):
            if (thread := self._channel.thread(token)) is not None:
                last = thread
                living = thread if leads else living
        return living or last

    async def _output(self, event: Event, info: SessionInfo) -> Any:
        found = await read_outcome(
            self._store, info.session_id, event.offset + 1, lambda turn: turn == event.turn
        )
        agent = self._agents.get(info.agent)
        wraps = agent is not None and agent.wraps_output
        return output_of(found, wraps) if found else ""


class ChannelSenders:
    """All channels of an app: see `outlast.integration.outbox.route.Threads`."""

    def __init__(
        self,
        channels: Mapping[str, Channel],
        agents: Mapping[str, Subscriber],
        store: Store,
        clock: Clock,
    ) -> None:
        self._channels = channels
        self._speakers = {
            OF_CHANNEL + name: ChannelSender(channel, agents, store, clock)
            for name, channel in channels.items()
        }

    @property
    def is_empty(self) -> bool:
        return not self._channels

    def cursors_at(self, token: str) -> tuple[NewOutboxCursor, ...]:
        """Return who is to be told of a session that is started at a token."""
        for name, channel in self._channels.items():
            if channel.thread(token) is not None:
                return (NewOutboxCursor(OF_CHANNEL + name, channel.events),)
        return ()

    def find(self, cursor: str) -> ChannelSender | None:
        """Return the sender of a cursor; None if its channel is gone from the code."""
        return self._speakers.get(cursor)
