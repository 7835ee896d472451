"""Sessions, deliveries, requests, tokens and workers, as they are listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from outlast.store import (
    DeliveryInfo,
    EffectClaim,
    LaneCount,
    LaneInfo,
    PermitInfo,
    RequestInfo,
    SessionInfo,
    StoreCounts,
    WorkerInfo,
)
from outlast.stores.postgres.pipeline import Row, Rows
from outlast.stores.postgres.reader import Readers
from outlast.stores.postgres.statement import Params, Query

_decode = msgspec.json.Decoder(list[list[Any]]).decode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_numbers = msgspec.json.Decoder(dict[str, int]).decode


class Listing:
    """Answers about what is beside the log."""

    def __init__(self, readers: Readers, queries: Mapping[str, Query]) -> None:
        self._readers = readers
        self._queries = queries

    async def _all(self, name: str, params: Params) -> Rows:
        return await self._readers.ask(self._queries[name].bind(params))

    async def session(self, session_id: str) -> SessionInfo | None:
        rows = await self._all("session", {"session_id": session_id})
        return describe_session(rows[0]) if rows else None

    async def sessions(self, filters: Params) -> list[SessionInfo]:
        if filters["parent"] is not None:
            name = "sessions_of_parent"
        else:
            name = "sessions" if filters["tenant"] is None else "sessions_of_tenant"
        return [describe_session(row) for row in await self._all(name, filters)]

    async def doomed(self, limit: int) -> list[str]:
        return [session_id for (session_id,) in await self._all("doomed", {"limit": max(0, limit)})]

    async def lanes(self, filters: Params) -> list[LaneInfo]:
        return [describe_lane(row) for row in await self._all("lanes", filters)]

    async def permits(
        self, session_id: str | None, name: str | None, limit: int
    ) -> list[PermitInfo]:
        params = {"session_id": session_id, "name": name, "limit": limit}
        return [describe_permit(row) for row in await self._all("permits", params)]

    async def delivery(self, delivery_id: str) -> DeliveryInfo | None:
        rows = await self._all("delivery", {"delivery_id": delivery_id})
        return describe_delivery(rows[0]) if rows else None

    async def deliveries(self, session_id: str) -> list[DeliveryInfo]:
        rows = await self._all("deliveries", {"session_id": session_id})
        return [describe_delivery(row) for row in rows]

    async def request(self, request_id: str) -> RequestInfo | None:
        rows = await self._all("request", {"request_id": request_id})
        return describe_request(rows[0]) if rows else None

    async def requests(self, filters: Params) -> list[RequestInfo]:
        name = "requests" if filters["session_id"] is None else "requests_of_session"
        return [describe_request(row) for row in await self._all(name, filters)]

    async def find_token(self, tenant: str, token: str, *, living: bool) -> str | None:
        name = "find_token" if living else "find_last_token"
        rows = await self._all(name, {"tenant": tenant, "token": token})
        return rows[0][0] if rows else None

    async def tokens(self, session_id: str) -> list[tuple[str, bool]]:
        rows = await self._all("tokens", {"session_id": session_id})
        return [(token, living) for token, living in rows]

    async def effect(self, scope: str, key: str) -> EffectClaim | None:
        rows = await self._all("effect", {"scope": scope, "key": key})
        return EffectClaim(*rows[0]) if rows else None

    async def census(self) -> StoreCounts:
        rows = await self._all("census", {})
        ready = [ready_at for *_, ready_at in rows if ready_at is not None]
        return StoreCounts(
            tuple(LaneCount(status, wait, count) for status, wait, count, *_ in rows),
            queued=sum(queued for *_, queued, _ in rows),
            oldest_ready_at=min(ready, default=None),
        )

    async def find_arrivals(self, heads: Sequence[tuple[str, str, int]]) -> list[tuple[str, str]]:
        rows = await self._all("arrived", {"heads": msgspec.json.encode(heads).decode()})
        return [(session, lane) for session, lane in rows]

    async def next_ready_at(self, after: int) -> int | None:
        [(ready_at,)] = await self._all("next_ready_at", {"after": after})
        return ready_at if ready_at is None else int(ready_at)


def describe_session(row: Row) -> SessionInfo:
    session_id, tenant, agent, mode, status, created_at, updated_at, end, *rest = row
    over, token, parent, lanes, seen_at = rest
    return SessionInfo(
        session_id=session_id,
        tenant=tenant,
        agent=agent,
        mode=mode,
        status=status,
        created_at=created_at,
        updated_at=updated_at,
        end=end,
        over=over,
        token=token,
        parent=parent,
        lanes=tuple(describe_lane((session_id, tenant, agent, *lane)) for lane in _decode(lanes)),
        seen_at=seen_at,
    )


def describe_lane(row: Sequence[Any]) -> LaneInfo:
    session_id, tenant, agent, lane, status, turn, worker, fence, ready_at, queued = row
    return LaneInfo(
        session_id=session_id,
        tenant=tenant,
        agent=agent,
        lane=lane,
        status=status,
        turn=turn,
        worker=worker,
        fence=fence,
        ready_at=ready_at,
        queued=queued,
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
        expires_at=expires_at,
        data=data,
        tenant=tenant,
        agent=agent,
    )


WORKER = (
    "worker host pid started_at version concurrency agents lanes at_once tally seen_at"
    " lease_until held draining"
).split()


def describe_worker(row: Row) -> WorkerInfo:
    fields = dict(zip(WORKER, row, strict=True))
    named = {name: _decode_names(fields[name]) for name in ("agents", "lanes")}
    at_once = _decode_numbers(fields["at_once"])
    return WorkerInfo(**{**fields, **named, "at_once": at_once})


def describe_permit(row: Row) -> PermitInfo:
    name, session_id, lane, call_id, held, ahead = row
    return PermitInfo(
        name=name, session_id=session_id, lane=lane, call_id=call_id, held=held, ahead=ahead
    )
