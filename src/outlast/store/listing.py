"""The topic `listing`: sessions, lanes, deliveries, requests and tokens, as indexes know them.

The indexes are written by `log.admit` and `log.commit`; nothing here changes them.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class LaneInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A lane as it is listed. `worker` owns it, or did until its lease ran out."""

    session_id: str
    tenant: str = ""
    agent: str = ""
    lane: str
    status: str
    turn: str
    worker: str
    fence: int
    ready_at: int | None
    queued: int


class SessionInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A session as it is listed. `status` is that of its liveliest lane, or how it ended.

    `seen_at` is the store's own time at which it was so: what its lanes are due by.
    """

    session_id: str
    tenant: str
    agent: str
    mode: str
    status: str
    created_at: int
    updated_at: int
    end: int
    over: str = ""
    token: str = ""
    parent: str = ""
    lanes: tuple[LaneInfo, ...] = ()
    seen_at: int = 0


class DeliveryInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A delivery: queued, running, joined or settled. Offsets say where in the log."""

    session_id: str
    lane: str
    delivery_id: str
    kind: str
    state: str
    outcome: str
    turn: str
    offset: int
    settled_offset: int


class RequestInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A request to a human. `data` is its `request.opened` record as JSON text."""

    request_id: str
    session_id: str
    lane: str
    kind: str
    state: str
    expires_at: int
    data: str
    tenant: str = ""
    agent: str = ""


class LaneCount(Struct, frozen=True, gc=False):
    """How many lanes have a status, and wait for the same, if they rest within a turn."""

    status: str
    wait: tuple[str, ...]
    count: int


class StoreCounts(Struct, frozen=True, gc=False):
    """The lanes of living sessions by status, the messages that wait in all of them, and since
    when the lane has been ready that has waited longest for a worker."""

    lanes: tuple[LaneCount, ...]
    queued: int
    oldest_ready_at: int | None


class ListingStore(Protocol):
    """Sessions, lanes, deliveries, requests and tokens, found without reading a log."""

    async def session(self, session_id: str) -> SessionInfo | None:
        """Return a session with its lanes, or None."""
        ...

    async def sessions(
        self,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        parent: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[SessionInfo]:
        """List sessions, newest first, those older than the session `before`."""
        ...

    async def lanes(
        self,
        *,
        session_id: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        worker: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 50,
    ) -> Sequence[LaneInfo]:
        """List lanes: those of the newest session first, and by name within a session.

        `after` is the session and the name of the lane to go on behind.
        """
        ...

    async def delivery(self, delivery_id: str) -> DeliveryInfo | None:
        """Return a delivery, or None."""
        ...

    async def deliveries(self, session_id: str) -> Sequence[DeliveryInfo]:
        """Return all deliveries of a session in the order of their arrival."""
        ...

    async def request(self, request_id: str) -> RequestInfo | None:
        """Return a request to a human, open or closed, or None."""
        ...

    async def requests(
        self,
        session_id: str | None = None,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        kinds: Sequence[str] | None = None,
        after: str | None = None,
        open_only: bool = True,
        limit: int = 500,
    ) -> Sequence[RequestInfo]:
        """List requests, oldest first, those behind the request `after`."""
        ...

    async def find_token(self, tenant: str, token: str, *, living: bool = True) -> str | None:
        """Return the living session that a continuation token leads to.

        Without `living`, the last session that had it, over or not.
        """
        ...

    async def tokens(self, session_id: str) -> Sequence[tuple[str, bool]]:
        """Return a session's tokens, oldest first, and whether each still leads to it."""
        ...

    async def census(self) -> StoreCounts:
        """Count the lanes of all sessions that are not over, by what they do now."""
        ...
