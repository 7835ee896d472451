"""The topic `listing`: sessions, lanes, deliveries, requests and tokens, as indexes know them.

The indexes are written by `log.admit` and `log.commit`; nothing here changes them. Most of this is
handed to users as it is: its instants are datetimes, where records and commits have milliseconds.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol

from msgspec import Struct

from outlast.core.lane import SessionEnd, SessionMode, Status
from outlast.store.work import Pin


class FailureInfo(Struct, frozen=True, gc=False):
    """Why and since when a lane's last turn has failed; `message` is cut off after 500 characters.

    `turn` can be retried. It is empty where the session itself has failed, and is over.
    """

    code: str
    message: str
    since: datetime
    turn: str = ""


MOST_LANES_LISTED = 100
"""Lanes that a list shows of each session."""


class LaneInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A lane as it is listed. `worker` owns it, or did until its lease ran out.

    `deaths` counts the owners that it lost without getting on; no worker is given it before
    `claimable_at`. `size` is how many bytes its records have. `failure` is there from a failed turn
    until the next one begins. `wait` is what it rests for: provider, request, timer, …
    """

    session_id: str
    tenant: str = ""
    agent: str = ""
    lane: str
    status: Status
    turn: str
    worker: str
    fence: int
    ready_at: datetime | None
    queued: int
    deaths: int = 0
    claimable_at: datetime | None = None
    size: int = 0
    failure: FailureInfo | None = None
    wait: tuple[str, ...] = ()


SessionKind = Literal["session", "run"]
"""What a list can be of: conversations and tasks with agents, or runs of workflows."""


class SessionInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A session as it is listed. `status` is that of its liveliest lane, or how it ended.

    `seen_at` is the store's own time at which it was so: what its lanes are due by. A server does
    not tell it. `lane_count` is how many lanes there are: of one session all are in `lanes`, in a
    list of sessions at most 100 of each, in any case the one that failed last.
    """

    session_id: str
    tenant: str
    agent: str
    mode: SessionMode
    status: Status
    created_at: datetime
    updated_at: datetime
    end: int
    over: SessionEnd = ""
    token: str = ""
    parent: str = ""
    tags: dict[str, str] = {}
    lanes: tuple[LaneInfo, ...] = ()
    lane_count: int = 0
    seen_at: datetime | None = None

    @property
    def failure(self) -> FailureInfo | None:
        """Why its last turn failed: of several lanes, the newest failure."""
        if self.over not in ("", "failed"):
            return None
        found = [lane.failure for lane in self.lanes if lane.failure]
        return max(found, key=lambda failure: failure.since, default=None)


def range_of(kind: SessionKind | None, before: str | None) -> tuple[str, str | None]:
    """Return between which two ids, both left out, the sessions of a kind are listed."""
    if kind is None:
        return "", before
    prefix = {"session": "ses_", "run": "run_"}[kind]
    end = f"{prefix}~"  # no id has a `~`: it is behind all that begin so
    return prefix, end if before is None else min(before, end)


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
    expires_at: datetime | None
    data: str
    tenant: str = ""
    agent: str = ""


class LaneCount(Struct, frozen=True, gc=False):
    """How many lanes have a status, and wait for the same, if they rest within a turn.

    `code` is that of their failure, if they rest after a failed turn.
    """

    status: Status
    wait: tuple[str, ...]
    count: int
    code: str = ""


class StoreCounts(Struct, frozen=True, gc=False):
    """The lanes of living sessions by status, the messages that wait in all of them, and since
    when the lane has been ready that has waited longest for a worker."""

    lanes: tuple[LaneCount, ...]
    queued: int
    oldest_ready_at: datetime | None


class FailureFilter(Struct, frozen=True, gc=False):
    """Which failures are looked for: all, those with a code, those at an instant or after it.

    With a `queue`, only those of sessions that stand in it.
    """

    code: str | None = None
    since: datetime | None = None
    queue: str | None = None


class OpenFilter(Struct, frozen=True, gc=False):
    """Which open lanes are looked for: all, those with a status, those that wait for something,
    those of sessions that were started at an instant or after it."""

    status: str | None = None
    wait: str | None = None
    since: datetime | None = None


class OpenLane(Struct, frozen=True, gc=False):
    """A lane with something to stop: its open `turn`, or else the `message` that is next."""

    session_id: str
    tenant: str
    lane: str
    turn: str
    message: str


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
        tags: Mapping[str, str] | None = None,
        failed: FailureFilter | None = None,
        kind: SessionKind | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[SessionInfo]:
        """List sessions, newest first, those older than the session `before`.

        A list of both kinds has sessions before runs: it is in the order of the ids, which begin
        with what they are of. A list of one kind reads nothing of the other.

        Of each, at most `MOST_LANES_LISTED` lanes are read: `lanes` has all of them, page by page.

        With `tags`, those that were started with all of them: the newest are found without
        reading sessions that have none.

        With `failed`, those with a lane whose last turn failed so, unless they are over in another
        way than by failing. It costs nothing where nothing has failed.
        """
        ...

    async def pins(self, session_id: str) -> Mapping[str, Pin]:
        """Return what the lanes of a session are pinned to, without those that are to nothing."""
        ...

    async def lanes(
        self,
        *,
        session_id: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        worker: str | None = None,
        failed: FailureFilter | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 50,
    ) -> Sequence[LaneInfo]:
        """List lanes: those of the newest session first, and by name within a session.

        `after` is the session and the name of the lane to go on behind. With `failed`, those whose
        last turn failed so, of sessions that are not over in another way.
        """
        ...

    async def past_failures(
        self, failed: FailureFilter, *, tenant: str | None = None, agent: str | None = None
    ) -> int:
        """Count failed turns of living sessions behind which their lane took another message.

        Those that failed so. A turn that was retried is not counted.
        """
        ...

    async def open_lanes(
        self,
        sought: OpenFilter,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 50,
    ) -> Sequence[OpenLane]:
        """List the lanes of living sessions that have an open turn or a message that is next.

        In the order of `lanes`, behind the session and the lane `after`.
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
