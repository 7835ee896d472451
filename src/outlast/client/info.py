"""Sessions as the server shows them, whole or in a list.

Fields that callers may not see are empty: the tenant, and a lane's owner.
"""

from datetime import datetime
from typing import Any

from msgspec import Struct

from outlast.client.decode import WireRequest, milliseconds
from outlast.core.record import Tokens
from outlast.session import Request
from outlast.store import LaneInfo, SessionInfo


class RemoteLane(Struct):
    lane: str
    status: str
    turn: str | None = None
    queued: int = 0


class RemoteWait(Struct, frozen=True, kw_only=True):
    """A wait of a lane: for what, since when, and until when if it ends by itself."""

    lane: str
    status: str
    wait: tuple[str, ...]
    since: datetime | None = None
    until: datetime | None = None


class RemoteInfo(SessionInfo, frozen=True, gc=False, kw_only=True):
    """A session as it is listed, what it waits for and what it has cost.

    `lineage` are the sessions that it comes from, its parent first.
    """

    waits: tuple[RemoteWait, ...] = ()
    requests: tuple[Request, ...] = ()
    usage: Tokens = Tokens()
    deadline_at: int = 0
    lineage: tuple[str, ...] = ()


class WireSession(Struct):
    """A session: of those in a list, the last six fields are not told."""

    session_id: str
    agent: str
    mode: str
    status: str
    created_at: datetime
    updated_at: datetime
    offset: int
    lanes: tuple[RemoteLane, ...]
    over: str | None = None
    continuation_token: str | None = None
    waits: tuple[RemoteWait, ...] = ()
    requests: tuple[WireRequest, ...] = ()
    usage: Tokens = Tokens()
    deadline: datetime | None = None
    lineage: tuple[str, ...] = ()

    def item(self) -> SessionInfo:
        return SessionInfo(**self._fields())

    def whole(self) -> RemoteInfo:
        return RemoteInfo(
            **self._fields(),
            waits=self.waits,
            requests=tuple(request.value() for request in self.requests),
            usage=self.usage,
            deadline_at=milliseconds(self.deadline),
            lineage=self.lineage,
        )

    def _fields(self) -> dict[str, Any]:
        return {
            "session_id": self.session_id,
            "tenant": "",
            "agent": self.agent,
            "mode": self.mode,
            "status": self.status,
            "created_at": milliseconds(self.created_at),
            "updated_at": milliseconds(self.updated_at),
            "end": self.offset,
            "over": self.over or "",
            "token": self.continuation_token or "",
            "parent": self.lineage[0] if self.lineage else "",
            "lanes": tuple(self._lane(lane) for lane in self.lanes),
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
        )
