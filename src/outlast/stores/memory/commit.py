"""What a lane's owner writes: checked whole, then written whole."""

from __future__ import annotations

from outlast.core.index import ClosedRequest, DeliveryChange, Index, change_offset, end_offset
from outlast.core.record import AnyRecord, DeliverySettled
from outlast.store import Commit, Committed, EffectClaim, Refused, Snapshot
from outlast.stores.memory import outbox
from outlast.stores.memory.permit import permits_of, should_ask
from outlast.stores.memory.table import (
    Landed,
    LaneRow,
    RequestRow,
    SessionRow,
    Tables,
    append,
    arrivals_after,
)

LEASE_LOST = Refused("lease_lost")


def commit(tables: Tables, wanted: Commit, now: int) -> Committed | Refused:
    """Write one commit, or say why not; then nothing was changed."""
    session = tables.sessions.get(wanted.session_id)
    lane = session.lanes.get(wanted.lane) if session else None
    if session is None or lane is None or lane.fence != wanted.fence:
        return LEASE_LOST
    if landed := find_landed(tables, session, lane, wanted):
        return landed
    if lane.worker != wanted.worker or lane.number != wanted.number:
        return LEASE_LOST
    obstacle = find_obstacle(tables, session, lane, wanted)
    return obstacle or write(tables, session, lane, wanted, now)


def find_landed(
    tables: Tables, session: SessionRow, lane: LaneRow, wanted: Commit
) -> Committed | None:
    """Recognise a commit that was written before and whose acknowledgement was lost."""
    last = lane.landed
    if last is None or lane.number != wanted.number + 1:
        return None
    if (last.worker, last.number, last.body) != (wanted.worker, wanted.number, wanted.body):
        return None
    arrivals = arrivals_after(tables, session, lane, wanted.seen)
    return Committed(last.result.first_offset, last.result.at, arrivals)


def find_obstacle(
    tables: Tables, session: SessionRow, lane: LaneRow, wanted: Commit
) -> Refused | None:
    for effect in wanted.effects:
        if held := held_by_another(tables, effect):
            return Refused("effect_taken", effect=held)
    if wanted.index.tokens and session.over:  # its tokens are dead: it takes no more of them
        return Refused("token_taken")
    for token in wanted.index.tokens:
        if tables.tokens.get((session.tenant, token), session.id) != session.id:
            return Refused("token_taken")
    parks = wanted.release or wanted.ready_at is None
    if (parks and lane.last_arrival > wanted.seen) or closes_answered(tables, wanted):
        return Refused("arrivals", arrivals_after(tables, session, lane, wanted.seen))
    if wanted.slices_seen is not None and session.slices_changed > wanted.slices_seen:
        return Refused("slices_changed")
    if wanted.awaits_permit and has_permit_to_come(tables, wanted):
        return Refused("arrivals")
    return None


def has_permit_to_come(tables: Tables, wanted: Commit) -> bool:
    """Whether a call that the lane would rest for should ask again first."""
    rows = permits_of(tables, wanted.session_id, wanted.lane)
    waiting = (row for row in rows if not row.held and row.call_id not in wanted.frees)
    return any(should_ask(tables, row) for row in waiting)


def held_by_another(tables: Tables, wanted: EffectClaim) -> EffectClaim | None:
    held = tables.effects.get((wanted.scope, wanted.key))
    if held is None or held.state == "free":
        return None
    is_own = (held.session_id, held.call_id) == (wanted.session_id, wanted.call_id)
    return None if is_own else held


def closes_answered(tables: Tables, wanted: Commit) -> bool:
    """Whether a request would be closed whose answer has arrived and was not seen."""
    return any(
        closed.how != "answered"
        and (request := tables.requests.get(closed.request_id)) is not None
        and request.answered_at_offset > wanted.seen
        for closed in wanted.index.closed
    )


def write(
    tables: Tables, session: SessionRow, lane: LaneRow, wanted: Commit, now: int
) -> Committed:
    row = append(
        tables,
        session,
        lane,
        wanted.body,
        len(wanted.records),
        wanted.at,
        is_shared=wanted.index.changes_slices or bool(wanted.index.over),
    )
    change_indexes(tables, session, wanted, row.first_offset)
    if wanted.index.over:
        end(session, wanted, row.first_offset, now)
    if wanted.index.changes_slices:
        session.slices_changed = change_offset(wanted.records, row.first_offset)
    arrivals = arrivals_after(tables, session, lane, wanted.seen)
    result = Committed(row.first_offset, row.at, arrivals)
    lane.landed = Landed(wanted.worker, wanted.number, wanted.body, result)
    move_on(session, lane, wanted, has_unseen=bool(arrivals))
    if wanted.tells:
        outbox.tell(tables, session.id, now)
    return result


def move_on(session: SessionRow, lane: LaneRow, wanted: Commit, *, has_unseen: bool) -> None:
    lane.number += 1
    lane.status, lane.turn, lane.wait = wanted.status, wanted.turn, wanted.wait
    lane.ready_at = 0 if has_unseen else wanted.ready_at
    if wanted.release:
        lane.worker = ""
    lane.snapshot = newer(lane.snapshot, wanted.snapshot)
    session.slices = newer(session.slices, wanted.slices)


def newer(kept: Snapshot | None, given: Snapshot | None) -> Snapshot | None:
    if kept is None or given is None:
        return given or kept
    return kept if kept.fold == given.fold and kept.offset > given.offset else given


def change_indexes(tables: Tables, session: SessionRow, wanted: Commit, first: int) -> None:
    index = wanted.index
    change_deliveries(tables, session, index.deliveries, settled_at(wanted.records, first))
    for opened in index.opened:
        tables.requests[opened.request_id] = RequestRow(
            opened.request_id,
            session.id,
            wanted.lane,
            opened.kind,
            opened.expires_at,
            opened.data,
        )
    close_requests(tables, index.closed)
    change_tokens(tables, session, index)
    for effect in wanted.effects:
        tables.effects[effect.scope, effect.key] = effect


def end(session: SessionRow, wanted: Commit, first: int, now: int) -> None:
    """What ended stays ended as it did. For each of the other lanes that is something arrived."""
    session.over = session.over or wanted.index.over
    for lane in session.lanes.values():
        if lane.name != wanted.lane:
            lane.last_arrival = end_offset(wanted.records, first)
            lane.ready_at = now if lane.ready_at is None else min(lane.ready_at, now)


def settled_at(records: tuple[AnyRecord, ...], first: int) -> dict[str, int]:
    return {
        record.delivery_id: offset
        for offset, record in enumerate(records, first)
        if isinstance(record, DeliverySettled)
    }


def change_deliveries(
    tables: Tables,
    session: SessionRow,
    changes: tuple[DeliveryChange, ...],
    settled: dict[str, int],
) -> None:
    for change in changes:
        if delivery := tables.deliveries.get(change.delivery_id):
            delivery.state, delivery.outcome = change.state, change.outcome
            delivery.turn = change.turn or delivery.turn
            delivery.settled_offset = settled.get(change.delivery_id, 0)
            session.lanes[delivery.lane].queued.discard(change.delivery_id)


def close_requests(tables: Tables, closings: tuple[ClosedRequest, ...]) -> None:
    for closed in closings:
        if request := tables.requests.get(closed.request_id):
            request.state = closed.how


def change_tokens(tables: Tables, session: SessionRow, index: Index) -> None:
    for token in index.tokens:
        if token in session.tokens:
            session.tokens.remove(token)
        session.tokens.append(token)
        tables.tokens[session.tenant, token] = session.id
    for token in session.tokens if index.over else index.revoked:
        if tables.tokens.get((session.tenant, token)) == session.id:
            tables.dead_tokens[session.tenant, token] = tables.tokens.pop((session.tenant, token))
