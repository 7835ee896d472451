"""The topic `listing` in PostgreSQL. See `outlast.store.listing` for the promises.

Owns how rows become what is listed. Everything is read on the connections that read, and nothing
here is part of a lane's commit.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from outlast.core.instant import date_of, date_or_none, milliseconds_at
from outlast.store import (
    DeliveryInfo,
    FailureFilter,
    FailureInfo,
    LaneCount,
    LaneInfo,
    OpenFilter,
    OpenLane,
    RequestInfo,
    SessionInfo,
    StoreCounts,
)
from outlast.store.listing import SessionKind, range_of
from outlast.store.work import Pin
from outlast.stores.postgres.access import PostgresAccess
from outlast.stores.postgres.claim import to_json
from outlast.stores.postgres.pipeline import Row

_decode = msgspec.json.Decoder(list[list[Any]]).decode
_tags = msgspec.json.Decoder(dict[str, str]).decode
_names = msgspec.json.Decoder(tuple[str, ...]).decode


class PostgresListing:
    """See `outlast.store.ListingStore`."""

    def __init__(self, access: PostgresAccess) -> None:
        self._access = access

    async def session(self, session_id: str) -> SessionInfo | None:
        rows = await self._access.ask("session", {"session_id": session_id})
        return describe_session(rows[0]) if rows else None

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
        first, last = range_of(kind, before)
        filters = {
            "tenant": tenant,
            "agent": agent,
            "status": status,
            "parent": parent,
            "first": first,
            "before": last,
            "limit": limit,
            **tag_filters(tags),
            **failure_filters(failed),
        }
        # A statement for each index: one with all conditions would be planned for none of them.
        name = "sessions" if tenant is None else "sessions_of_tenant"
        if tags:
            name = "sessions_of_tag" if tenant is None else "sessions_of_tag_of_tenant"
        if parent is not None:
            name = "sessions_of_parent"
        if failed is not None:
            name = "failed_sessions"
        return [describe_session(row) for row in await self._access.ask(name, filters)]

    async def pins(self, session_id: str) -> Mapping[str, Pin]:
        rows = await self._access.ask("pins_of_session", {"session_id": session_id})
        return {lane: Pin(deployment, stays) for lane, deployment, stays in rows}

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
        after_session, after_lane = after or (None, None)
        filters = {
            "session_id": session_id,
            "tenant": tenant,
            "agent": agent,
            "status": status,
            "worker": worker,
            "after": after_session,
            "after_lane": after_lane,
            "limit": limit,
            **failure_filters(failed),
        }
        name = "lanes" if failed is None else "failed_lanes"
        return [describe_lane(row) for row in await self._access.ask(name, filters)]

    async def past_failures(
        self, failed: FailureFilter, *, tenant: str | None = None, agent: str | None = None
    ) -> int:
        filters = {"tenant": tenant, "agent": agent, **failure_filters(failed)}
        [(count,)] = await self._access.ask("past_failures", filters)
        return int(count)

    async def open_lanes(
        self,
        sought: OpenFilter,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 50,
    ) -> Sequence[OpenLane]:
        filters = open_filters(sought, tenant, agent, after, limit)
        return [OpenLane(*row) for row in await self._access.ask("open_lanes", filters)]

    async def delivery(self, delivery_id: str) -> DeliveryInfo | None:
        rows = await self._access.ask("delivery", {"delivery_id": delivery_id})
        return describe_delivery(rows[0]) if rows else None

    async def deliveries(self, session_id: str) -> Sequence[DeliveryInfo]:
        rows = await self._access.ask("deliveries", {"session_id": session_id})
        return [describe_delivery(row) for row in rows]

    async def request(self, request_id: str) -> RequestInfo | None:
        rows = await self._access.ask("request", {"request_id": request_id})
        return describe_request(rows[0]) if rows else None

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
        filters = {
            "session_id": session_id,
            "tenant": tenant,
            "agent": agent,
            "kinds": None if kinds is None else to_json(list(kinds)),
            "after": after,
            "open_only": open_only,
            "limit": limit,
        }
        name = "requests" if session_id is None else "requests_of_session"
        return [describe_request(row) for row in await self._access.ask(name, filters)]

    async def find_token(self, tenant: str, token: str, *, living: bool = True) -> str | None:
        name = "find_token" if living else "find_last_token"
        rows = await self._access.ask(name, {"tenant": tenant, "token": token})
        return rows[0][0] if rows else None

    async def tokens(self, session_id: str) -> Sequence[tuple[str, bool]]:
        rows = await self._access.ask("tokens", {"session_id": session_id})
        return [(token, living) for token, living in rows]

    async def census(self) -> StoreCounts:
        rows = await self._access.ask("census", {})
        ready = [ready_at for *_, ready_at, _ in rows if ready_at is not None]
        return StoreCounts(
            tuple(
                LaneCount(status, _names(wait), count, code)
                for status, wait, count, _, _, code in rows
            ),
            queued=sum(row[3] for row in rows),
            oldest_ready_at=date_of(min(ready)) if ready else None,
        )


def open_filters(
    sought: OpenFilter,
    tenant: str | None,
    agent: str | None,
    after: tuple[str, str] | None,
    limit: int,
) -> dict[str, Any]:
    """Return which open lanes are looked for."""
    after_session, after_lane = after or (None, None)
    return {
        "tenant": tenant,
        "agent": agent,
        "status": sought.status,
        "wait": sought.wait,
        "since": milliseconds_at(sought.since) if sought.since else 0,
        "after": after_session,
        "after_lane": after_lane,
        "limit": limit,
    }


def tag_filters(tags: Mapping[str, str] | None) -> dict[str, Any]:
    """Return which tags are looked for; the first leads to the sessions."""
    name, value = next(iter((tags or {}).items()), (None, None))
    return {"tag_name": name, "tag_value": value, "tags": to_json(tags or {})}


def failure_filters(failed: FailureFilter | None) -> dict[str, Any]:
    """Return which failures are looked for."""
    since = failed.since if failed else None
    return {
        "code": failed.code if failed else None,
        "queue": failed.queue if failed else None,
        "since": milliseconds_at(since) if since else 0,
    }


def describe_session(row: Row) -> SessionInfo:
    session_id, tenant, agent, mode, status, created_at, updated_at, end, *rest = row
    over, token, parent, tags, listed, lane_count, seen_at = rest
    lanes = _decode(listed)
    return SessionInfo(
        session_id=session_id,
        tenant=tenant,
        agent=agent,
        mode=mode,
        status=status,
        created_at=date_of(created_at),
        updated_at=date_of(updated_at),
        end=end,
        over=over,
        token=token,
        parent=parent,
        tags=dict(sorted(_tags(tags).items())),
        lanes=tuple(describe_lane((session_id, tenant, agent, *lane)) for lane in lanes),
        lane_count=len(lanes) if lane_count is None else lane_count,
        seen_at=date_of(seen_at),
    )


def describe_lane(row: Sequence[Any]) -> LaneInfo:
    session_id, tenant, agent, lane, status, turn, worker, fence, ready_at, queued, *lost = row
    deaths, claimable_at, size, code, message, failed_at, failed_turn, wait = lost
    return LaneInfo(
        session_id=session_id,
        tenant=tenant,
        agent=agent,
        lane=lane,
        status=status,
        turn=turn,
        worker=worker,
        fence=fence,
        ready_at=None if ready_at is None else date_of(ready_at),
        queued=queued,
        deaths=deaths,
        claimable_at=date_of(claimable_at) if claimable_at else None,
        size=size,
        failure=FailureInfo(code, message, date_of(failed_at), failed_turn) if failed_at else None,
        wait=_names(wait),
    )


def describe_delivery(row: Row) -> DeliveryInfo:
    session_id, lane, delivery_id, kind, state, outcome, turn, offset, settled_offset = row
    return DeliveryInfo(
        session_id=session_id,
        lane=lane,
        delivery_id=delivery_id,
        kind=kind,
        state=state,
        outcome=outcome,
        turn=turn,
        offset=offset,
        settled_offset=settled_offset,
    )


def describe_request(row: Row) -> RequestInfo:
    request_id, session_id, lane, kind, state, expires_at, data, tenant, agent = row
    return RequestInfo(
        request_id=request_id,
        session_id=session_id,
        lane=lane,
        kind=kind,
        state=state,
        expires_at=date_or_none(expires_at),
        data=data,
        tenant=tenant,
        agent=agent,
    )
