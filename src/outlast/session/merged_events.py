"""One stream of the events of a session and of all that it started, in this app and behind others.

`MergedEvents` reads many sessions at once. A source yields the events of sessions, and says which
other session an event is the start of: `LocalSource` for this app's store, `RemoteSource` for the
server of a remote agent. The client has a source for one server (`client/session.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from outlast.agents.agent import Agent, find_remote
from outlast.agents.subagent import AgentHost
from outlast.core.event import Event
from outlast.core.name import is_id
from outlast.errors import OutlastError, ServerUnavailable, UnknownSession
from outlast.log_context import get_logger
from outlast.store import Store

log = get_logger("outlast")

QUEUE_SIZE = 100
POLL = 1.0
"""Seconds after which a session that rests is read again while its caller goes on."""
MOST_REMOTE = 1000
"""Sessions of one server that are read at once: it may name any number."""
OVER = ("session.completed", "session.failed", "session.ended")

EventsOf = Callable[[str, int | str], AsyncIterator[Event]]
"""Yields the events of a session after a cursor."""


class EventSource(Protocol):
    """`is_remote`: it can be out of reach while all is well in this app, and is not trusted.

    `place` tells its sessions from those of other sources, which may have the same ids.
    """

    @property
    def is_remote(self) -> bool: ...

    @property
    def place(self) -> str: ...

    def events(self, session_id: str, after: int | str) -> AsyncIterator[Event]:
        """Yield the events of a session after a cursor."""
        ...

    async def child(self, session_id: str, event: Event) -> ChildSession | None:
        """Return the session that an event of another one says was started, if it does."""
        ...


class ChildSession(Struct, frozen=True):
    """A session that another one has started, and the source of its events."""

    session_id: str
    source: EventSource


def child_of(event: Event) -> str:
    """Return the child in the same store that an event says was started; empty if it does not."""
    is_local = event.type == "subagent.called" and not event.data.get("url")
    child = event.data.get("child")
    return str(child) if is_local and is_id(child) else ""


class LocalSource:
    """The app's own store."""

    is_remote = False
    place = ""

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

    def events(self, session_id: str, after: int | str) -> AsyncIterator[Event]:
        return self._events_of(session_id, after)

    async def child(self, session_id: str, event: Event) -> ChildSession | None:
        if local := child_of(event):
            return ChildSession(local, self)
        if event.type != "subagent.started":
            return None
        # The token for that server is not in the log: the session's agent has it in its code.
        info = await self._store.listing.session(session_id)
        remote = find_remote(self._agents, info.agent, event.data["agent"]) if info else None
        source = RemoteSource(remote, self._follow) if remote else None
        return ChildSession(event.data["child"], source) if source else None


class RemoteSource:
    """The server of a remote agent. What that one asks of other servers is not read."""

    is_remote = True

    def __init__(self, remote: AgentHost, follow: bool) -> None:
        self._remote = remote
        self._follow = follow
        self.place = remote.place

    def events(self, session_id: str, after: int | str) -> AsyncIterator[Event]:
        return self._remote.events(session_id, after, follow=self._follow)

    async def child(self, _: str, event: Event) -> ChildSession | None:
        return ChildSession(found, self) if (found := child_of(event)) else None


class MergedReader:
    """How far one session is read. `path` leads to it from the first one.

    Nothing more is read of a session that is over.
    """

    def __init__(
        self, session: ChildSession, caller: MergedReader | None, after: int | str = 0
    ) -> None:
        self.source = session.source
        self.caller = caller
        self.path: tuple[str, ...] = (*(caller.path if caller else ()), session.session_id)
        self.cursor = after
        self.is_over = False
        self.task: asyncio.Task[None] | None = None

    @property
    def is_reading(self) -> bool:
        return self.task is not None and not self.task.done()


def key_of(child: ChildSession) -> tuple[str, str]:
    return child.source.place, child.session_id


class MergedEvents:
    """Reads sessions at once: each in its own order, a child not before it was called."""

    def __init__(self, source: EventSource, *, follow: bool) -> None:
        self._source = source
        self._follows = follow
        # Bounded: a reader that is slow holds up the reading, and not the memory.
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue(QUEUE_SIZE)
        self._readers: dict[tuple[str, str], MergedReader] = {}

    async def read(self, session_id: str, after: int | str) -> AsyncGenerator[Event, None]:
        """Yield all events after a cursor, and all of the sessions that were called since."""
        first = ChildSession(session_id, self._source)
        self._readers[key_of(first)] = MergedReader(first, None, after)
        try:
            is_new = True
            while is_new:
                is_new = False
                self._begin_all()
                async for event in self._until_all_rest():
                    yield event
                    # The caller may have answered the event meanwhile: when all rest, read again.
                    is_new = self._follows
        finally:
            tasks = [reader.task for reader in self._readers.values() if reader.task]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_all_rest(self) -> AsyncIterator[Event]:
        """Yield what the readers find, until all of them have ended."""
        while any(reader.is_reading for reader in self._readers.values()) or self._queue.qsize():
            if event := await self._queue.get():
                yield event
            # After each event: a reader that has failed must not be waited for until all the others
            # rest.
            self._raise_failures()

    def _begin_all(self) -> None:
        for reader in self._readers.values():
            if not reader.is_over:
                self._begin(reader)

    def _begin(self, reader: MergedReader) -> None:
        reader.task = asyncio.create_task(self._follow(reader))

    async def _follow(self, reader: MergedReader) -> None:
        """Read a session until it rests and its caller does not go on either."""
        try:
            while not reader.is_over:
                caller = reader.caller
                is_last = caller is None or not caller.is_reading
                is_away = await self._read_on(reader)
                if is_last and is_away:
                    reader.is_over = True
                if is_last or caller is None or caller.task is None:
                    return
                if not (is_away or reader.is_over):
                    await asyncio.wait({caller.task}, timeout=POLL)
        finally:
            # Whoever waits for the next event has to look whether any reader is left.
            await self._queue.put(None)

    async def _read_on(self, reader: MergedReader) -> bool:
        """Read a session up to where it rests; return whether its server is away.

        A failure of another server does not stop those who read this app's events, nor does a
        child that was erased.
        """
        try:
            async for event in reader.source.events(reader.path[-1], reader.cursor):
                await self._put(reader, event)
        except OutlastError as error:
            if not reader.source.is_remote:
                if reader.caller is None or not isinstance(error, UnknownSession):
                    raise
                reader.is_over = True
                return False
            extra = {"remote": reader.path[-1], "code": error.code, "cursor": reader.cursor}
            log.warning("a remote session cannot be read", extra=extra)
            reader.is_over = not isinstance(error, ServerUnavailable)
            return True
        return False

    async def _put(self, reader: MergedReader, event: Event) -> None:
        session_id = reader.path[-1]
        # Noted before it is given: a session that is read again goes on behind it.
        reader.cursor = event.cursor or event.offset
        reader.is_over = reader.is_over or event.type in OVER
        await self._queue.put(replace(event, session_id=session_id, path=reader.path[1:]))
        child = await reader.source.child(session_id, event)
        if child and key_of(child) not in self._readers and not self._is_too_much(child):
            self._readers[key_of(child)] = found = MergedReader(child, reader)
            self._begin(found)

    def _is_too_much(self, child: ChildSession) -> bool:
        """Whether a server has named so many sessions that no more of it are read."""
        if not child.source.is_remote:
            return False
        known = sum(place == child.source.place for place, _ in self._readers)
        if known == MOST_REMOTE:
            extra = {"remote": child.session_id, "most": MOST_REMOTE}
            log.warning("a remote session is not read: there are too many", extra=extra)
        return known >= MOST_REMOTE

    def _raise_failures(self) -> None:
        for reader in self._readers.values():
            if reader.task and reader.task.done():
                reader.task.result()
