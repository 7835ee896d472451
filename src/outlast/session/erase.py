"""Erasing a session for good: first whoever has to do with it is told, then it is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from outlast.agents.runtime.json_value import to_json
from outlast.core.record import DeliveryQueued, Failure, SessionStarted
from outlast.core.result import ChildEnd
from outlast.engine.maintenance import erase_orphans
from outlast.errors import Conflict, UnknownRequest, UnknownSession
from outlast.session.inbox import Inbox
from outlast.store import Store


class SessionEraser:
    """Erases sessions with their children, unless what they have going elsewhere goes on."""

    def __init__(
        self, store: Store, inbox: Inbox, recall: Callable[[str], Awaitable[None]]
    ) -> None:
        self._store = store
        self._inbox = inbox
        self._recall = recall

    async def erase(self, session_id: str, *, recall: bool) -> None:
        """Erase a session; with `recall`, end first what it has started elsewhere."""
        if recall:
            await self._recall(session_id)
        await self._tell_parent(session_id)
        if not await self._store.log.erase(session_id):
            raise UnknownSession(f"there is no session {session_id}", session=session_id)
        await erase_orphans(self._store)

    async def _tell_parent(self, session_id: str) -> None:
        info = await self._store.listing.session(session_id)
        if info is None or not info.parent or info.over:
            return
        started = (await self._store.log.read(session_id, 0, 1)).entries[0].record
        assert isinstance(started, SessionStarted)
        assert started.parent is not None
        reply = DeliveryQueued(
            delivery_id="",
            kind="reply",
            request_id=started.parent.request_id,
            args=to_json(ChildEnd(error=Failure("ERASED", "the session was erased"))),
        )
        with suppress(Conflict, UnknownSession, UnknownRequest):  # nobody waits for it any more
            await self._inbox.add(
                info.parent,
                info.tenant,
                started.parent.lane,
                reply,
                scope=f"request:{reply.request_id}",
                dispatch_id=None,
            )
