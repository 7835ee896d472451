"""Erasing a session for good, with its children.

First what it has started at remote agents is ended and a parent that waits for it is told; then the
store erases it. What the store keeps of an erased session is in `store/contract.py`.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from outlast.agents.runtime.json_value import to_json
from outlast.core.record import DeliveryQueued, Failure, SessionStarted
from outlast.core.result import ChildEnd
from outlast.engine.maintenance import erase_orphans
from outlast.errors import Conflict, UnknownRequest, UnknownSession
from outlast.session.inbox import Inbox
from outlast.store import Store

ERASED = Failure("ERASED", "the session was erased")


class SessionEraser:
    """Erases sessions. `cancel_remote` ends what one and its descendants do at remote agents."""

    def __init__(
        self, store: Store, inbox: Inbox, cancel_remote: Callable[[str], Awaitable[None]]
    ) -> None:
        self._store = store
        self._inbox = inbox
        self._cancel_remote = cancel_remote

    async def erase(self, session_id: str, *, cancel_remote: bool) -> None:
        """Erase a session; with `cancel_remote`, only after its remote sessions have ended."""
        if cancel_remote:
            await self._cancel_remote(session_id)
        # While the session is there to be read: it says who its parent is. A crash behind this
        # leaves a parent that goes on, and a session that can be erased again.
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
        used = await self._store.usage.tree(session_id)
        reply = DeliveryQueued(
            delivery_id="",
            kind="reply",
            request_id=started.parent.request_id,
            args=to_json(ChildEnd(error=ERASED, usage=used.total)),
        )
        with suppress(
            Conflict, UnknownSession, UnknownRequest
        ):  # the parent no longer waits for it
            await self._inbox.add(
                info.parent,
                info.tenant,
                started.parent.lane,
                reply,
                scope=f"request:{reply.request_id}",
                dispatch_id=None,
            )
