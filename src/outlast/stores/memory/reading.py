"""What can be read: the log, and listings of what is in it. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from outlast.core.lane import FOLD
from outlast.core.record import Entry
from outlast.store import (
    DeliveryInfo,
    LaneCount,
    LaneInfo,
    Loaded,
    LogPage,
    RequestInfo,
    SessionInfo,
    Snapshot,
    StoreCounts,
)
from outlast.store.log import concerns
from outlast.store.refusal import cursor_ahead, unknown_session
from outlast.stores.memory.table import (
    DeliveryRow,
    LaneRow,
    RequestRow,
    SessionRow,
    Tables,
    entries_of,
    rows_after,
    size_of,
)
from outlast.stores.page import PageFiller

LIVELIEST_FIRST = ("running", "queued", "waiting", "sleeping", "idle")


def find_session(tables: Tables, session_id: str) -> SessionRow:
    session = tables.sessions.get(session_id)
    if session is None:
        raise unknown_session(session_id)
    return session


def load(tables: Tables, session: SessionRow, lane: str, after: int | None) -> Loaded:
    snapshot = slices = None
    if after is None:
        row = session.lanes.get(lane)
        snapshot, slices = of_today(row.snapshot if row else None), of_today(session.slices)
        after = snapshot.offset if snapshot else 0
        slices_after = slices.offset if slices else 0
    else:
        slices_after = after
    start = min(after, slices_after)
    entries: list[Entry] = []
    tail_bytes = 0
    for log in rows_after(session, start):
        if log.lane == lane or log.is_shared:
            found = entries_of(tables, session, log, start)
            entries += (e for e in found if concerns(e, lane, after, slices_after))
            tail_bytes += len(log.data) if log.last_offset > after else 0
    return Loaded(snapshot, slices, tuple(entries), tail_bytes, session.last_at)


def of_today(snapshot: Snapshot | None) -> Snapshot | None:
    return snapshot if snapshot and snapshot.fold == FOLD else None


def read(tables: Tables, session: SessionRow, after: int, limit: int) -> LogPage:
    if after > session.end:
        raise cursor_ahead(session.id, after, session.end)
    entries: list[Entry] = []
    page = PageFiller(limit)
    for row in rows_after(session, after):
        found = entries_of(tables, session, row, after)
        entries += found
        page.add(len(found), size_of(tables, session, row))
        if page.is_full:
            break
    return LogPage(tuple(entries), entries[-1].offset if entries else after, session.end)


def read_back(tables: Tables, session: SessionRow, before: int, limit: int) -> LogPage:
    parts: list[list[Entry]] = []
    page = PageFiller(limit)
    for row in reversed(session.rows):
        if row.first_offset >= before:
            continue
        parts.append([e for e in entries_of(tables, session, row) if e.offset < before])
        page.add(len(parts[-1]), size_of(tables, session, row))
        if page.is_full:
            break
    entries = tuple(entry for part in reversed(parts) for entry in part)
    return LogPage(entries, entries[0].offset if entries else before, session.end)


def describe_session(tables: Tables, session: SessionRow, now: int) -> SessionInfo:
    lanes = tuple(describe_lane(session, lane) for lane in session.lanes.values())
    living = [token for token, leads in tokens_of(tables, session) if leads]
    return SessionInfo(
        session_id=session.id,
        tenant=session.tenant,
        agent=session.agent,
        mode=session.mode,
        status=session.over or liveliest(lanes),
        created_at=session.created_at,
        updated_at=session.last_at,
        end=session.end,
        over=session.over,
        token=living[-1] if living else "",
        parent=session.parent,
        lanes=lanes,
        seen_at=now,
    )


def liveliest(lanes: tuple[LaneInfo, ...]) -> str:
    found = {lane.status for lane in lanes}
    return next((status for status in LIVELIEST_FIRST if status in found), "idle")


def describe_lane(session: SessionRow, lane: LaneRow) -> LaneInfo:
    return LaneInfo(
        session_id=session.id,
        tenant=session.tenant,
        agent=session.agent,
        lane=lane.name,
        status=status_of(lane),
        turn=lane.turn,
        worker=lane.worker,
        fence=lane.fence,
        ready_at=lane.ready_at,
        queued=len(lane.queued),
    )


def status_of(lane: LaneRow) -> str:
    return "queued" if lane.status == "idle" and lane.queued else lane.status


def list_lanes(tables: Tables) -> Iterator[LaneInfo]:
    """Yield all lanes, those of the newest session first."""
    for session in sorted(tables.sessions.values(), key=lambda s: s.id, reverse=True):
        for lane in sorted(session.lanes.values(), key=lambda lane: lane.name):
            yield describe_lane(session, lane)


def tokens_of(tables: Tables, session: SessionRow) -> list[tuple[str, bool]]:
    return [
        (token, tables.tokens.get((session.tenant, token)) == session.id)
        for token in session.tokens
    ]


def describe_delivery(delivery: DeliveryRow) -> DeliveryInfo:
    return DeliveryInfo(
        session_id=delivery.session_id,
        lane=delivery.lane,
        delivery_id=delivery.id,
        kind=delivery.kind,
        state=delivery.state,
        outcome=delivery.outcome,
        turn=delivery.turn,
        offset=delivery.offset,
        settled_offset=delivery.settled_offset,
    )


def list_requests(tables: Tables, after: str | None) -> Iterator[RequestInfo]:
    """Yield requests, oldest first, those behind another."""
    names = list(tables.requests)
    start = names.index(after) + 1 if after in tables.requests else 0
    for name in names[start:]:
        yield describe_request(tables, tables.requests[name])


def take_census(tables: Tables, now: int) -> StoreCounts:
    living = [session for session in tables.sessions.values() if not session.over]
    lanes = [lane for session in living for lane in session.lanes.values()]
    counts = Counter((status_of(lane), lane.wait) for lane in lanes)
    free = [lane.ready_at for lane in lanes if lane.ready_at is not None and not lane.worker]
    return StoreCounts(
        tuple(LaneCount(*what, count) for what, count in sorted(counts.items())),
        queued=sum(len(lane.queued) for lane in lanes),
        oldest_ready_at=min((at for at in free if at <= now), default=None),
    )


def describe_request(tables: Tables, request: RequestRow) -> RequestInfo:
    session = tables.sessions[request.session_id]
    return RequestInfo(
        request_id=request.id,
        session_id=request.session_id,
        lane=request.lane,
        kind=request.kind,
        state=request.state,
        expires_at=request.expires_at,
        data=request.data,
        tenant=session.tenant,
        agent=session.agent,
    )
