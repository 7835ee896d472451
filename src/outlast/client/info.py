"""Sessions as the server shows them, whole or in a list.

Fields that callers may not see are empty: the tenant, and a lane's owner.
"""

from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from outlast.client.decode import WireRequest, WireWait
from outlast.core.lane import SessionEnd, SessionMode, Status
from outlast.core.usage import TreeUsage
from outlast.session import Request, WaitingFor
from outlast.store import FailureInfo, LaneInfo, SessionInfo


class RemoteFailure(Struct):
    code: str
    message: str
    since: datetime
    turn: str | None = None

    def value(self) -> FailureInfo:
        return FailureInfo(self.code, self.message, self.since, self.turn or "")


class RemoteLane(Struct):
    lane: str
    status: Status
    turn: str | None = None
    queued: int = 0
    failure: RemoteFailure | None = None
    wait: tuple[str, ...] = ()


class RemoteWait(Struct, frozen=True, kw_only=True):
    """A wait of a lane: for what, since when, and until when if it ends by itself."""

    lane: str
    status: Status
    wait: tuple[str, ...]
    since: datetime | None = None
    until: datetime | None = None


class RemoteInfo(SessionInfo, frozen=True, gc=False, kw_only=True):
    """A session as it is listed, what it waits for and what it has cost.

    `lineage` are the sessions that it comes from, its parent first.
    """

    waits: tuple[RemoteWait, ...] = ()
    waiting_for: WaitingFor | None = None
    requests: tuple[Request, ...] = ()
    usage: TreeUsage = TreeUsage()
    deadline_at: datetime | None = None
    lineage: tuple[str, ...] = ()


class WireSession(Struct):
    """A session: of those in a list, the last eight fields are not told.

    Lanes and waits are those of a page; `next_lane` is where the next one begins.
    """

    session_id: str
    agent: str
    mode: SessionMode
    status: Status
    created_at: datetime
    updated_at: datetime
    offset: int
    lanes: tuple[RemoteLane, ...]
    lane_count: int = 0
    over: SessionEnd | None = None
    tags: dict[str, str] = {}
    continuation_token: str | None = None
    waits: tuple[RemoteWait, ...] = ()
    waiting_for: WireWait | None = None
    requests: tuple[WireRequest, ...] = ()
    usage: TreeUsage = TreeUsage()
    deadline: datetime | None = None
    lineage: tuple[str, ...] = ()
    next_lane: str | None = None

    def joined(self, page: "WireSession") -> "WireSession":
        """Return a session with the lanes of one more page."""
        return replace(
            page,
            lanes=self.lanes + page.lanes,
            waits=self.waits + page.waits,
            deadline=min(filter(None, (self.deadline, page.deadline)), default=None),
        )

    def item(self) -> SessionInfo:
        return SessionInfo(**self._fields())

    def whole(self) -> RemoteInfo:
        return RemoteInfo(
            **self._fields(),
            waits=self.waits,
            waiting_for=self.waiting_for.value() if self.waiting_for else None,
            requests=tuple(request.value() for request in self.requests),
            usage=self.usage,
            deadline_at=self.deadline,
            lineage=self.lineage,
        )

    def _fields(self) -> dict[str, Any]:
        return {
            "session_id": self.session_id,
            "tenant": "",
            "agent": self.agent,
            "mode": self.mode,
            "status": self.status,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "end": self.offset,
            "over": self.over or "",
            "tags": self.tags,
            "token": self.continuation_token or "",
            "parent": self.lineage[0] if self.lineage else "",
            "lanes": tuple(self._lane(lane) for lane in self.lanes),
            "lane_count": self.lane_count,
        }

    def _lane(self, lane: RemoteLane) -> LaneInfo:
        return LaneInfo(
            session_id=self.session_id,
            agent=self.agent,
            lane=lane.lane,
            status=lane.status,
            turn=lane.turn or "",
            worker="",
            fence=0,
            ready_at=None,
            queued=lane.queued,
            failure=lane.failure.value() if lane.failure else None,
            wait=lane.wait,
        )
