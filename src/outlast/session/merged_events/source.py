"""Where sessions are: in this app's store, or behind the server of a remote agent.

A place gives the events of its sessions, and says which other session an event is the beginning
of, and where that is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from outlast.agents.agent import Agent
from outlast.agents.subagent import RemotelyHosted
from outlast.core import record as r
from outlast.core.event import Event
from outlast.log.reader import EntriesBefore
from outlast.store import Store

EventsOf = Callable[[str, int], AsyncIterator[Event]]
"""Gives the events of a session after a cursor."""


class EventSource(Protocol):
    """`is_far`: what is there can be out of reach while all is well here."""

    @property
    def is_far(self) -> bool: ...

    def events(self, session_id: str, after: int) -> AsyncIterator[Event]:
        """Give the events of a session after a cursor."""
        ...

    async def called(self, session_id: str, event: Event) -> CalledSession | None:
        """Return the session that an event of another says was started, if it says so."""
        ...


class CalledSession(Struct, frozen=True):
    """A session that another has started, and where it is."""

    session_id: str
    place: EventSource


class LocalSource:
    """The app's own store."""

    is_far = False

    def __init__(
        self,
        store: Store,
        agents: Mapping[str, Agent[Any, Any]],
        events_of: EventsOf,
        *,
        follow: bool,
    ) -> None:
        self._store = store
        self._agents = agents
        self._events_of = events_of
        self._follow = follow

    def events(self, session_id: str, after: int) -> AsyncIterator[Event]:
        return self._events_of(session_id, after)

    async def called(self, session_id: str, event: Event) -> CalledSession | None:
        if event.type == "subagent.called":
            return CalledSession(event.data["child"], self)
        if event.type == "tool.progress" and (child := remote_session(event)):
            remote = await self._asked(session_id, event)
            return CalledSession(child, RemoteSource(remote, self._follow)) if remote else None
        return None

    async def _asked(self, session_id: str, event: Event) -> RemotelyHosted | None:
        """Return the remote agent that a call asks; what other tools say means nothing."""
        info = await self._store.session(session_id)
        agent = self._agents.get(info.agent) if info else None
        async for entry in EntriesBefore(self._store, session_id, event.offset):
            e = entry.record
            if agent and isinstance(e, r.ToolRequested) and e.call_id == event.call_id:
                return agent.elsewhere.get(e.tool)
        return None


class RemoteSource:
    """The server of a remote agent, which may ask others of its own side."""

    is_far = True

    def __init__(self, remote: RemotelyHosted, follow: bool) -> None:
        self._remote = remote
        self._follow = follow

    def events(self, session_id: str, after: int) -> AsyncIterator[Event]:
        return self._remote.events(session_id, after, follow=self._follow)

    async def called(self, _: str, event: Event) -> CalledSession | None:
        return CalledSession(event.data["child"], self) if event.type == "subagent.called" else None


def remote_session(event: Event) -> str:
    """Return the session elsewhere that a call says it has started."""
    progress = event.data.get("progress")
    found = progress.get("session_id") if isinstance(progress, dict) else None
    return found if isinstance(found, str) else ""
