"""Arrivals: what anybody may add to a lane's inbox, at most once each."""

from __future__ import annotations

from msgspec.structs import replace

from outlast.core.codec import encode
from outlast.core.record import SessionStarted
from outlast.errors import OutlastError
from outlast.store import WAIT_THEIR_TURN, Admission, AdmissionReceipt
from outlast.store.admission import dated, with_turn
from outlast.store.refusal import (
    other_content,
    queue_full,
    request_closed,
    session_erased,
    session_exists,
    session_over,
    token_taken,
    unknown_request,
    unknown_session,
)
from outlast.stores.memory import outbox
from outlast.stores.memory.table import (
    DeliveryRow,
    LaneRow,
    LogRow,
    RequestRow,
    SessionRow,
    Tables,
    append,
)


def admit(tables: Tables, admission: Admission, now: int) -> AdmissionReceipt | OutlastError:
    """Add one arrival, or say why not; then nothing was changed."""
    try:
        return find_repeated(tables, admission) or admit_new(tables, dated(admission, now), now)
    except OutlastError as refusal:
        return refusal


def find_repeated(tables: Tables, admission: Admission) -> AdmissionReceipt | None:
    known = tables.dispatches.get(dispatch_key(admission))
    if known is None:
        return None
    fingerprint, receipt = known
    if receipt.session_id not in tables.sessions:
        raise session_erased(admission.dispatch_id)
    if fingerprint != admission.fingerprint:
        raise other_content(admission.dispatch_id)
    return replace(receipt, duplicate=True)


def admit_new(tables: Tables, admission: Admission, now: int) -> AdmissionReceipt:
    session = to_be_started(tables, admission) if admission.new else existing(tables, admission)
    request = find_request(tables, admission, now) if admission.kind == "reply" else None
    check_queue(tables, session, admission)
    lane = session.lanes.get(admission.lane) or LaneRow(admission.lane)
    records = [with_turn(record, lane.turn) for record in admission.records]
    body = encode(records)

    is_shared = any(isinstance(record, SessionStarted) for record in records)
    row = append(
        tables,
        session,
        lane,
        body,
        len(records),
        admission.at,
        is_arrival=True,
        is_shared=is_shared,
    )
    tables.sessions[session.id] = session
    session.lanes[lane.name] = lane
    if admission.new and admission.token:
        session.tokens.append(admission.token)
        tables.tokens[session.tenant, admission.token] = session.id
    outbox.add(tables, session, admission.outbox)
    if request:
        request.state, request.answered_at_offset = "answered", row.last_offset
    lane.last_arrival = row.last_offset
    lane.ready_at = now if lane.ready_at is None else min(lane.ready_at, now)
    return deliver(tables, session, lane, admission, row)


def to_be_started(tables: Tables, admission: Admission) -> SessionRow:
    if admission.session_id in tables.sessions:
        raise session_exists(admission.session_id)
    if admission.token and (admission.tenant, admission.token) in tables.tokens:
        raise token_taken()
    return SessionRow(
        admission.session_id,
        admission.tenant,
        admission.agent,
        admission.mode,
        created_at=admission.at,
        last_at=admission.at,
        parent=admission.parent,
    )


def existing(tables: Tables, admission: Admission) -> SessionRow:
    session = tables.sessions.get(admission.session_id)
    if session is None or session.tenant != admission.tenant:
        raise unknown_session(admission.session_id)
    if session.over:
        raise session_over(session.id, session.over)
    return session


def find_request(tables: Tables, admission: Admission, now: int) -> RequestRow:
    request = tables.requests.get(admission.request_id)
    if request is None or request.session_id != admission.session_id:
        raise unknown_request(admission.session_id, admission.request_id)
    is_late = 0 < request.expires_at <= now
    if request.state != "open" or is_late:
        how = "expired" if is_late and request.state == "open" else request.state
        raise request_closed(request.id, how)
    return request


def check_queue(tables: Tables, session: SessionRow, admission: Admission) -> None:
    if admission.kind not in WAIT_THEIR_TURN:
        return
    if 0 < admission.most_queued <= queued(session):
        raise queue_full("session", session.id, admission.most_queued)
    of_tenant = (s for s in tables.sessions.values() if s.tenant == admission.tenant)
    if 0 < admission.most_queued_of_tenant <= sum(queued(s) for s in of_tenant):
        raise queue_full("tenant", admission.tenant, admission.most_queued_of_tenant)


def queued(session: SessionRow) -> int:
    return sum(len(lane.queued) for lane in session.lanes.values())


def deliver(
    tables: Tables, session: SessionRow, lane: LaneRow, admission: Admission, row: LogRow
) -> AdmissionReceipt:
    receipt = AdmissionReceipt(
        session_id=session.id,
        lane=lane.name,
        delivery_id=admission.delivery_id,
        offset=row.last_offset,
        position=len(lane.queued),
    )
    tables.dispatches[dispatch_key(admission)] = (admission.fingerprint, receipt)
    tables.deliveries[admission.delivery_id] = DeliveryRow(
        admission.delivery_id, session.id, lane.name, admission.kind, row.last_offset
    )
    session.deliveries.append(admission.delivery_id)
    if admission.kind in WAIT_THEIR_TURN:
        lane.queued.add(admission.delivery_id)
    return receipt


def dispatch_key(admission: Admission) -> tuple[str, str, str]:
    return admission.tenant, admission.scope, admission.dispatch_id
