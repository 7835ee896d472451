"""Sessions watched from outside, beyond the point where they rest."""

from collections.abc import AsyncIterator

from outlast.core.event import Event, cursor_of
from outlast.errors import UnknownSession
from outlast.log.reader import EventReader, Wakeups
from outlast.store import SessionInfo, Store


async def follow(
    store: Store, session_id: str, after: int | str = 0, *, internals: bool = False
) -> AsyncIterator[Event]:
    """Give all events after a cursor, and new ones for ever."""
    reader = EventReader(store, session_id, cursor_of(after), internals)
    with Wakeups(store, session_id) as wakeups:
        while True:
            wakeups.clear()
            end = (await find_session(store, session_id)).end
            reader.check(end)
            while reader.is_behind(end):
                for event in await reader.next_page():
                    yield event
            await wakeups.wait()


async def until_moved(store: Store, session_id: str, end: int) -> None:
    """Wait until the log goes on beyond an offset."""
    with Wakeups(store, session_id) as wakeups:
        while True:
            wakeups.clear()
            if (await find_session(store, session_id)).end > end:
                return
            await wakeups.wait()


async def find_session(store: Store, session_id: str) -> SessionInfo:
    info = await store.listing.session(session_id)
    if info is None:
        raise UnknownSession(f"there is no session {session_id}", session=session_id)
    return info
