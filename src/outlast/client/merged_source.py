"""The sessions of a server, for readers of one session and of all that it started there.

What those have going at remote agents is behind other servers, whose keys the client does not have.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from outlast.core.event import Event
from outlast.session.merged_events import CalledSession


class ServerSource:
    """A place: one server, read with one key."""

    is_far = False

    def __init__(self, events_of: Callable[[str, int], AsyncIterator[Event]]) -> None:
        self._events_of = events_of

    def events(self, session_id: str, after: int) -> AsyncIterator[Event]:
        return self._events_of(session_id, after)

    async def called(self, _: str, event: Event) -> CalledSession | None:
        return CalledSession(event.data["child"], self) if event.type == "subagent.called" else None
