"""What a lane's owner writes: the check, the log, and the indexes beside it.

The check is the first write; whatever else may refuse a commit is looked at before it,
so a refused commit has written nothing and the others of its group stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from holdfast.core.index import NO_CHANGES, end_offset
from holdfast.core.record import FORMAT, DeliverySettled, Entry
from holdfast.store import Commit, Committed, Effect, Refused, Snapshot
from holdfast.stores.sqlite.desk import Desk
from holdfast.stores.sqlite.log import (
    CHANGES_SLICES,
    STARTS_OR_ENDS,
    append,
    arrivals_after,
    last_commit,
    tenant_of,
)

LEASE_LOST = Refused("lease_lost")


class Lane(NamedTuple):
    """A lane as a commit finds it, and where in the log the commit would go."""

    lid: int
    sid: int
    worker: str | None
    fence: int
    number: int
    last_arrival: int
    digest: bytes | None
    next_key: int
    last_at: int


def write_commit(desk: Desk, wanted: Commit) -> Committed | Refused:
    """Write one commit, or say why not; then nothing was changed."""
    row = desk.db.one("find_lane", {"session_id": wanted.session_id, "lane": wanted.lane})
    if row is None:
        return LEASE_LOST
    lane, digest = Lane._make(row), blake2b(wanted.body, digest_size=16).digest()
    if refused := find_obstacle(desk, wanted, lane):
        return refused
    if advance(desk, wanted, lane, digest):
        return write(desk, wanted, lane)
    return explain_refusal(desk, wanted, lane, digest)


def advance(desk: Desk, wanted: Commit, lane: Lane, digest: bytes) -> bool:
    """Move the lane on, if it is the worker's; say whether it was."""
    changed = desk.db.run(
        "advance_and_release_lane" if wanted.release else "advance_lane",
        {
            "lid": lane.lid,
            "worker": wanted.worker,
            "fence": wanted.fence,
            "number": wanted.number,
            "seen": wanted.seen,
            "parks": wanted.ready_at is None,
            "status": wanted.status,
            "turn": wanted.turn,
            "ready_at": wanted.ready_at,
            "now": desk.clock.now(),
            "version": FORMAT,
            "digest": digest,
        },
    )
    return changed == 1


def write(desk: Desk, wanted: Commit, lane: Lane) -> Committed:
    """Add to the log, and change the indexes. Time never goes back within a session."""
    index, sid = wanted.index, lane.sid
    marks = (CHANGES_SLICES if index.changes_slices else 0) | (STARTS_OR_ENDS if index.over else 0)
    at = max(wanted.at, lane.last_at)
    count = len(wanted.records)
    first_offset = append(desk, lane.next_key, wanted.lane, wanted.body, count, at, marks)
    if index is not NO_CHANGES:
        change_indexes(desk, wanted, lane, first_offset)
    if wanted.effects:
        put_effects(desk, wanted.effects, tenant_of(desk, sid))
    if wanted.snapshot:
        desk.db.run("put_snapshot", {"lid": lane.lid, **stored(desk, wanted.snapshot)})
    if wanted.slices:
        desk.db.run("put_slices", {"sid": sid, **stored(desk, wanted.slices)})
    desk.tell(wanted.session_id, arrived=wanted.release)
    return Committed(first_offset, at, unseen(desk, wanted, lane))


def unseen(desk: Desk, wanted: Commit, lane: Lane) -> tuple[Entry, ...]:
    """Return what arrived since the last arrival that the owner has folded."""
    if lane.last_arrival <= wanted.seen:
        return ()
    return arrivals_after(desk, lane.sid, wanted.lane, wanted.seen, lane.last_arrival)


def put_effects(desk: Desk, effects: Sequence[Effect], tenant: str) -> None:
    for effect in effects:
        desk.db.run(
            "put_effect",
            {
                "tenant": tenant,
                "scope": effect.scope,
                "key": effect.key,
                "session_id": effect.session_id,
                "call_id": effect.call_id,
                "state": effect.state,
                "value": effect.value,
            },
        )


def stored(desk: Desk, snapshot: Snapshot) -> dict[str, Any]:
    data = desk.packer.squeeze(snapshot.data)
    return {"offset": snapshot.offset, "fold": snapshot.fold, "data": data}


# What may refuse it


def explain_refusal(desk: Desk, wanted: Commit, lane: Lane, digest: bytes) -> Committed | Refused:
    """Say why a commit could not be written, or that it had been written before."""
    if lane.fence != wanted.fence:
        return LEASE_LOST
    if lane.number == wanted.number + 1 and lane.digest == digest:
        landed = last_commit(desk, lane.sid, wanted.lane, has_records=bool(wanted.records))
        return Committed(landed.first_offset, landed.at, unseen(desk, wanted, lane))
    if lane.worker == wanted.worker and lane.number == wanted.number:
        return Refused("arrivals", unseen(desk, wanted, lane))
    return LEASE_LOST


def find_obstacle(desk: Desk, wanted: Commit, lane: Lane) -> Refused | None:
    """Look for what stands against a commit that its lane would take."""
    index = wanted.index
    if not (wanted.effects or index.tokens or index.closed):
        return None
    if (lane.worker, lane.fence, lane.number) != (wanted.worker, wanted.fence, wanted.number):
        return None  # the check that follows refuses it
    for effect in wanted.effects:
        if held := held_by_another(desk, effect):
            return Refused("effect_taken", effect=held)
    if index.tokens and takes_token_of_another(desk, wanted, lane.sid):
        return Refused("token_taken")
    if closes_answered(desk, wanted):
        return Refused("arrivals", unseen(desk, wanted, lane))
    return None


def held_by_another(desk: Desk, wanted: Effect) -> Effect | None:
    row = desk.db.one("effect", {"scope": wanted.scope, "key": wanted.key})
    if row is None:
        return None
    held = Effect(*row)
    is_own = (held.session_id, held.call_id) == (wanted.session_id, wanted.call_id)
    return None if is_own or held.state == "free" else held


def takes_token_of_another(desk: Desk, wanted: Commit, sid: int) -> bool:
    tenant = tenant_of(desk, sid)
    keys = ({"tenant": tenant, "token": token} for token in wanted.index.tokens)
    owners = (desk.db.one("owner_of_token", key) for key in keys)
    return any(owner and owner[0] != sid for owner in owners)


def closes_answered(desk: Desk, wanted: Commit) -> bool:
    """Whether a request would be closed whose answer has arrived and was not seen."""
    return any(
        desk.db.one("answered_since", {"request_id": closed.request_id, "seen": wanted.seen})
        for closed in wanted.index.closed
        if closed.how != "answered"
    )


# The indexes


def change_indexes(desk: Desk, wanted: Commit, lane: Lane, first_offset: int) -> None:
    index, db, sid = wanted.index, desk.db, lane.sid
    for change in delivery_changes(wanted, first_offset):
        db.run("leave_queue", {"lid": lane.lid, **change})
        db.run("change_delivery", change)
    for opened in index.opened:
        db.run(
            "open_request",
            {
                "request_id": opened.request_id,
                "sid": sid,
                "lane": wanted.lane,
                "kind": opened.kind,
                "expires_at": opened.expires_at,
                "data": opened.data,
            },
        )
    for closed in index.closed:
        db.run("close_request", {"request_id": closed.request_id, "how": closed.how})
    for token in index.tokens:
        db.run("forget_token", {"sid": sid, "token": token})
        db.run("add_token", {"tenant": tenant_of(desk, sid), "sid": sid, "token": token})
    for token in index.revoked:
        db.run("revoke_token", {"sid": sid, "token": token})
    if index.over:
        db.run("end_session", {"sid": sid, "over": index.over})
        db.run("kill_tokens", {"sid": sid})
        ended = end_offset(wanted.records, first_offset)
        woken = {"sid": sid, "lid": lane.lid, "offset": ended, "now": desk.clock.now()}
        db.run("wake_other_lanes", woken)


def delivery_changes(wanted: Commit, first_offset: int) -> Iterator[dict[str, Any]]:
    if not wanted.index.deliveries:
        return
    settled = {
        record.delivery_id: offset
        for offset, record in enumerate(wanted.records, first_offset)
        if type(record) is DeliverySettled
    }
    for change in wanted.index.deliveries:
        yield {
            "delivery_id": change.delivery_id,
            "state": change.state,
            "outcome": change.outcome or None,
            "turn": change.turn or None,
            "settled_offset": settled.get(change.delivery_id),
        }
