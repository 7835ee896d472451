"""The topic `listing` in SQLite, and what other topics list.

See `outlast.store.listing` for the promises; the functions run on a reader's thread.
"""

from collections.abc import Mapping, Sequence

import msgspec

from outlast.core.instant import date_of, date_or_none, milliseconds_at
from outlast.core.lane import Status
from outlast.store import (
    DeliveryInfo,
    EffectClaim,
    FailureFilter,
    FailureInfo,
    LaneCount,
    LaneInfo,
    OpenFilter,
    OpenLane,
    RequestInfo,
    SessionInfo,
    StoreCounts,
    WorkerInfo,
)
from outlast.store.listing import MOST_LANES_LISTED, SessionKind, range_of
from outlast.store.work import DeploymentInfo, Pin
from outlast.stores.sqlite.access import Access
from outlast.stores.sqlite.database import (
    OFFSETS,
    Database,
    Params,
    Row,
    lane_of,
    to_json,
)

SESSION = (
    "session_id tenant agent mode status created_at updated_at end over token parent tags".split()
)
"""The columns of `session` and `sessions` behind the first."""


class SqliteListing:
    """See `outlast.store.ListingStore`."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def session(self, session_id: str) -> SessionInfo | None:
        return await self._access.read(lambda db: session(db, session_id))

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
        return await self._access.read(lambda db: sessions(db, filters))

    async def pins(self, session_id: str) -> Mapping[str, Pin]:
        rows = await self._access.read(
            lambda db: db.all("pins_of_session", {"session_id": session_id})
        )
        return {lane: Pin(deployment, bool(stays)) for lane, deployment, stays in rows}

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
        return await self._access.read(lambda db: lanes(db, filters))

    async def past_failures(
        self, failed: FailureFilter, *, tenant: str | None = None, agent: str | None = None
    ) -> int:
        filters = {"tenant": tenant, "agent": agent, **failure_filters(failed)}
        return int((await self._access.read(lambda db: db.all("past_failures", filters)))[0][0])

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
        name = of_tenant("open_lanes", filters)
        return await self._access.read(lambda db: [OpenLane(*row) for row in db.all(name, filters)])

    async def delivery(self, delivery_id: str) -> DeliveryInfo | None:
        return await self._access.read(lambda db: delivery(db, delivery_id))

    async def deliveries(self, session_id: str) -> Sequence[DeliveryInfo]:
        return await self._access.read(lambda db: deliveries(db, session_id))

    async def request(self, request_id: str) -> RequestInfo | None:
        return await self._access.read(lambda db: request(db, request_id))

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
            "kinds": None if kinds is None else to_json(kinds),
            "after": after,
            "open_only": open_only,
            "limit": limit,
        }
        return await self._access.read(lambda db: requests(db, filters))

    async def find_token(self, tenant: str, token: str, *, living: bool = True) -> str | None:
        return await self._access.read(lambda db: find_token(db, tenant, token, living=living))

    async def tokens(self, session_id: str) -> Sequence[tuple[str, bool]]:
        return await self._access.read(lambda db: tokens(db, session_id))

    async def census(self) -> StoreCounts:
        return await self._access.read(census)


def session(db: Database, session_id: str) -> SessionInfo | None:
    row = db.one("session", {"session_id": session_id})
    if row is None:
        return None
    lanes = db.all("lanes_of_session", {"sid": row[0]})
    return describe_session(db, row, lanes, len(lanes))


def sessions(db: Database, filters: Params) -> list[SessionInfo]:
    name = of_tenant("sessions", filters)
    if filters["tag_name"] is not None:
        name = of_tenant("sessions_of_tag", filters)
    if filters["parent"]:
        name = "sessions_of_parent"
    if filters["failed"]:
        name = failed_statement("failed_sessions", filters)
    return [describe_listed(db, row) for row in db.all(name, filters)]


OF_TENANT = {
    "sessions": "sessions_of_tenant",
    "sessions_of_tag": "sessions_of_tag_of_tenant",
    "failed_sessions": "failed_sessions_of_tenant",
    "lanes": "lanes_of_tenant",
    "failed_lanes": "failed_lanes_of_tenant",
    "open_lanes": "open_lanes_of_tenant",
    "open_requests": "open_requests_of_tenant",
}
"""The statement of a list of one tenant, which reads nothing of the others."""


OF_QUEUE = {
    "failed_sessions": "failed_sessions_of_queue",
    "failed_lanes": "failed_lanes_of_queue",
}
"""The statement of a list of failures in one queue, which reads nothing of the others."""


def of_tenant(name: str, filters: Params) -> str:
    return name if filters["tenant"] is None else OF_TENANT[name]


def failed_statement(name: str, filters: Params) -> str:
    """Return the statement of a list of failures: from a queue, from a tenant, or from all."""
    # A queue has few failures, a tenant may have many: those of both are picked from the queue's.
    return of_tenant(name, filters) if filters["queue"] is None else OF_QUEUE[name]


def describe_listed(db: Database, row: Row) -> SessionInfo:
    """Return a session of a list, with some of its lanes."""
    key = {"sid": row[0]}
    # Bounded: a list must not read all lanes of each session.
    lanes = db.all("lanes_of_listed_session", {**key, "most": MOST_LANES_LISTED})
    count = len(lanes)
    if count == MOST_LANES_LISTED:
        ((count,),) = db.all("count_lanes", key)
    return describe_session(db, row, lanes, count)


def describe_session(db: Database, row: Row, lanes: Sequence[Row], count: int) -> SessionInfo:
    known = dict(zip(SESSION, row[1:], strict=True))
    whose = known["session_id"], known["tenant"], known["agent"]
    instants = {name: date_of(known[name]) for name in ("created_at", "updated_at")}
    return SessionInfo(
        **{**known, **instants, "tags": in_order(known["tags"])},
        lanes=tuple(describe_lane(*whose, *lane) for lane in lanes),
        lane_count=count,
        seen_at=date_of(db.clock.now()),
    )


def tag_filters(tags: Mapping[str, str] | None) -> Params:
    """Return which tags are looked for; the first leads to the sessions."""
    # One tag leads to the sessions by an index; the others are compared.
    name, value = next(iter((tags or {}).items()), (None, None))
    return {"tag_name": name, "tag_value": value, "tags": to_json(tags or {})}


def failure_filters(failed: FailureFilter | None) -> Params:
    """Return which failures are looked for."""
    since = failed.since if failed else None
    return {
        "failed": failed is not None,
        "code": failed.code if failed else None,
        "queue": failed.queue if failed else None,
        "since": milliseconds_at(since) if since else 0,
    }


def open_filters(
    sought: OpenFilter,
    tenant: str | None,
    agent: str | None,
    after: tuple[str, str] | None,
    limit: int,
) -> Params:
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


def lanes(db: Database, filters: Params) -> list[LaneInfo]:
    name = of_tenant("lanes", filters)
    if filters["failed"]:
        name = failed_statement("failed_lanes", filters)
    return [describe_lane(*row) for row in db.all(name, filters)]


def describe_lane(
    session_id: str,
    tenant: str,
    agent: str,
    lane: str,
    status: Status,
    turn: str,
    worker: str,
    fence: int,
    ready_at: int | None,
    queued: int,
    deaths: int,
    claimable_at: int,
    size: int,
    code: str,
    message: str,
    failed_at: int,
    failed_turn: str,
    wait: str,
) -> LaneInfo:
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
        wait=names_of(wait),
    )


def delivery(db: Database, delivery_id: str) -> DeliveryInfo | None:
    row = db.one("delivery", {"delivery_id": delivery_id})
    return describe_delivery(row) if row else None


def deliveries(db: Database, session_id: str) -> list[DeliveryInfo]:
    return [describe_delivery(row) for row in db.all("deliveries", {"session_id": session_id})]


def describe_delivery(row: Row) -> DeliveryInfo:
    session_id, lane, delivery_id, kind, state, outcome, turn, key, settled_offset = row
    return DeliveryInfo(
        session_id=session_id,
        lane=lane_of(lane),
        delivery_id=delivery_id,
        kind=kind,
        state=state,
        outcome=outcome or "",
        turn=turn or "",
        offset=key & OFFSETS,
        settled_offset=settled_offset or 0,
    )


def request(db: Database, request_id: str) -> RequestInfo | None:
    row = db.one("request", {"request_id": request_id})
    return describe_request(row) if row else None


def requests(db: Database, filters: Params) -> list[RequestInfo]:
    name = of_tenant("open_requests", filters) if filters["open_only"] else "requests"
    if filters["session_id"] is not None:
        name = "requests_of_session"
    return [describe_request(row) for row in db.all(name, filters)]


def describe_request(row: Row) -> RequestInfo:
    request_id, session_id, tenant, agent, lane, kind, state, expires_at, data = row
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


def find_token(db: Database, tenant: str, token: str, *, living: bool) -> str | None:
    key = {"tenant": tenant, "token": token}
    row = db.one("find_token", key)
    # A living session first: a token may have been an older one's.
    if row is None and not living:
        row = db.one("find_dead_token", key)
    return row[0] if row else None


def tokens(db: Database, session_id: str) -> list[tuple[str, bool]]:
    rows = db.all("tokens", {"session_id": session_id})
    return [(token, bool(living)) for token, living in rows]


def effect(db: Database, scope: str, key: str) -> EffectClaim | None:
    row = db.one("effect", {"scope": scope, "key": key})
    return EffectClaim(*row) if row else None


def workers(db: Database) -> list[WorkerInfo]:
    rows = db.all("living_workers", {"now": db.clock.now()})
    return [
        WorkerInfo(
            worker=worker,
            host=host,
            pid=pid,
            started_at=date_of(started_at),
            version=version,
            concurrency=concurrency,
            agents=names_of(agents),
            lanes=names_of(patterns),
            at_once=msgspec.json.decode(at_once, type=dict[str, int]),
            counters=counters,
            seen_at=date_of(seen_at),
            lease_until=date_of(lease_until),
            held=held,
            draining=bool(draining),
            arrived_since=date_or_none(arrived_since),
            deployment=deployment,
        )
        for (
            worker,
            host,
            pid,
            started_at,
            version,
            concurrency,
            agents,
            patterns,
            at_once,
            counters,
            seen_at,
            lease_until,
            held,
            draining,
            arrived_since,
            deployment,
        ) in rows
    ]


def in_order(column: str) -> dict[str, str]:
    """Return tags that a row holds as JSON, by name."""
    return dict(sorted(msgspec.json.decode(column, type=dict[str, str]).items()))


def deployments(db: Database) -> list[DeploymentInfo]:
    current = {agent: name for agent, name, _ in db.all("current_deployments", {})}
    return [
        describe_deployment(row, current) for row in db.all("deployments", {"now": db.clock.now()})
    ]


def describe_deployment(row: Row, current: Mapping[str, str]) -> DeploymentInfo:
    name, agents, began_at, workers, pins, digests = row
    served = names_of(agents)
    turns, runs, sessions, oldest_at = msgspec.json.decode(pins)
    return DeploymentInfo(
        name=name,
        agents=served,
        current=tuple(agent for agent in served if current.get(agent) == name),
        began_at=date_of(began_at),
        workers=workers,
        turns=turns or 0,
        runs=runs or 0,
        sessions=sessions or 0,
        oldest_at=date_or_none(oldest_at),
        digests=msgspec.json.decode(digests, type=dict[str, str]),
    )


def names_of(column: str) -> tuple[str, ...]:
    """Return names that a row holds as JSON."""
    return msgspec.json.decode(column, type=tuple[str, ...])


def census(db: Database) -> StoreCounts:
    rows = db.all("census", {"now": db.clock.now()})
    ready = [ready_at for *_, ready_at, _ in rows if ready_at is not None]
    return StoreCounts(
        tuple(
            LaneCount(status, names_of(wait), count, code)
            for status, wait, count, _, _, code in rows
        ),
        queued=sum(row[3] for row in rows),
        oldest_ready_at=date_of(min(ready)) if ready else None,
    )


def find_arrivals(db: Database, heads: Sequence[tuple[str, str, int]]) -> list[tuple[str, str]]:
    return [(session, lane) for session, lane in db.all("arrived", {"heads": to_json(heads)})]


def next_ready_at(db: Database, after: int) -> int | None:
    row = db.one("next_ready_at", {"after": after})
    return row[0] if row else None
