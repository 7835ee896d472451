"""The protocol of everything that tells events from the log.

Webhooks, hooks, channels and the cancelling of remote sessions are the four consumers of an app.
A consumer says which cursors a new session needs, and finds the receiver of a cursor later, in
the code of that day. It knows neither positions nor retries: `delivery.py` does.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from msgspec import Struct

from outlast.agents.subscription import StartingSession
from outlast.core.event import Event
from outlast.core.record import NewOutboxCursor
from outlast.store import OutboxCursor

Deliver = Callable[[Event], Awaitable[Any]]
"""Tells one event. If it raises, the event is told again, later each time.

`Unreachable` may carry `retry_after`, as in the header of that name, and `gone=True` if no further
try can succeed."""


class Receiver(Protocol):
    """Where the events of one cursor go."""

    @property
    def name(self) -> str:
        """The name under which simultaneous deliveries to one receiver are counted."""
        ...

    def open(self) -> AbstractAsyncContextManager[Deliver]:
        """Connect, if that is needed, for a series of events."""
        ...


class Consumer(Protocol):
    """One reason for which events are told. With `is_empty` nothing of this app needs it."""

    @property
    def is_empty(self) -> bool: ...

    def cursors(self, start: StartingSession) -> Sequence[NewOutboxCursor]:
        """Return the cursors that a new session needs for this consumer.

        Raises InvalidInput if the session asks for something that this app does not do.
        """
        ...

    def find(self, cursor: OutboxCursor) -> Receiver | None:
        """Return the receiver of a cursor; None if it is not this consumer's, or no longer."""
        ...


class FunctionReceiver(Struct, frozen=True):
    """A function of this process that events are told to."""

    name: str
    function: Deliver

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Deliver]:
        yield self.function


class OutboxRoutes:
    """All consumers of an app. `agents` are those whose sessions this app tells of."""

    def __init__(self, agents: Mapping[str, Any], consumers: Sequence[Consumer]) -> None:
        self._agents = agents
        self._consumers = consumers

    @property
    def is_empty(self) -> bool:
        return all(consumer.is_empty for consumer in self._consumers)

    def cursors(self, start: StartingSession) -> tuple[NewOutboxCursor, ...]:
        """Return all outbox cursors that a new session needs."""
        return tuple(new for consumer in self._consumers for new in consumer.cursors(start))

    def knows(self, agent: str) -> bool:
        """Say whether this app has an agent. If not, another app on the same store may."""
        return agent in self._agents

    def find(self, cursor: OutboxCursor) -> Receiver | None:
        """Return the receiver of a cursor; None if nothing in this app's code receives it."""
        for consumer in self._consumers:
            if found := consumer.find(cursor):
                return found
        return None
