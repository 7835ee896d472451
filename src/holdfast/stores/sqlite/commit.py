"""What a lane's owner writes: the check, the log, and the indexes beside it.

The check is the first write; whatever else may refuse a commit is looked at before it,
so a refused commit has written nothing and the others of its group stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from holdfast.core.index import NO_CHANGES
from holdfast.core.record import FORMAT, DeliverySettled
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


def write_commit(desk: Desk, wanted: Commit) -> Committed | Refused:
    """Write one commit, or say why not; then nothing was changed."""
    index = wanted.index
    if (index.closed or index.tokens or wanted.effects) and (refused := obstacle(desk, wanted)):
        return refused
    parks = wanted.release or wanted.ready_at is None
    row = desk.db.one(
        "advance_and_release_lane" if wanted.release else "advance_lane",
        {
            "session_id": wanted.session_id,
            "lane": wanted.lane,
            "worker": wanted.worker,
            "fence": wanted.fence,
            "number": wanted.number,
            "seen": wanted.seen,
            "parks": parks,
            "status": wanted.status,
            "turn": wanted.turn,
            "ready_at": wanted.ready_at,
            "now": desk.clock.now(),
            "version": FORMAT,
            "digest": digest_of(wanted),
        },
    )
    if row is None:
        return explain_refusal(desk, wanted)
    return write(desk, wanted, *row)


def digest_of(wanted: Commit) -> bytes:
    """Return what a commit is recognised by when it is asked for again."""
    return blake2b(wanted.body, digest_size=16, key=wanted.worker.encode()[:64]).digest()


def write(desk: Desk, wanted: Commit, lid: int, sid: int, last_arrival: int) -> Committed:
    index = wanted.index
    marks = (CHANGES_SLICES if index.changes_slices else 0) | (STARTS_OR_ENDS if index.over else 0)
    count = len(wanted.records)
    first_offset, at = append(desk, sid, wanted.lane, wanted.body, count, wanted.at, marks)
    if index is not NO_CHANGES:
        change_indexes(desk, wanted, lid, sid, first_offset)
    if wanted.effects:
        put_effects(desk, wanted.effects, tenant_of(desk, sid))
    if wanted.snapshot:
        desk.db.run("put_snapshot", {"lid": lid, **stored(desk, wanted.snapshot)})
    if wanted.slices:
        desk.db.run("put_slices", {"sid": sid, **stored(desk, wanted.slices)})
    desk.tell(wanted.session_id, arrived=wanted.release)
    arrivals = arrivals_after(desk, sid, wanted.lane, wanted.seen, last_arrival)
    return Committed(first_offset, at, arrivals)


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


def explain_refusal(desk: Desk, wanted: Commit) -> Committed | Refused:
    """Say why a commit could not be written, or that it had been written before."""
    row = lane_as_it_is(desk, wanted)
    if row is None:
        return LEASE_LOST
    sid, worker, fence, number, last_arrival, digest = row
    if fence != wanted.fence:
        return LEASE_LOST
    arrivals = arrivals_after(desk, sid, wanted.lane, wanted.seen, last_arrival)
    if number == wanted.number + 1 and digest == digest_of(wanted):
        landed = last_commit(desk, sid, wanted.lane, has_records=bool(wanted.records))
        return Committed(landed.first_offset, landed.at, arrivals)
    if worker == wanted.worker and number == wanted.number:
        return Refused("arrivals", arrivals)
    return LEASE_LOST


def lane_as_it_is(desk: Desk, wanted: Commit) -> tuple[Any, ...] | None:
    return desk.db.one("lane_as_it_is", {"session_id": wanted.session_id, "lane": wanted.lane})


def obstacle(desk: Desk, wanted: Commit) -> Refused | None:
    """Look for what stands against a commit whose lane is the worker's."""
    row = lane_as_it_is(desk, wanted)
    if row is None or row[1:4] != (wanted.worker, wanted.fence, wanted.number):
        return None  # the check that follows refuses it
    sid, last_arrival = row[0], row[4]
    for effect in wanted.effects:
        if held := held_by_another(desk, effect):
            return Refused("effect_taken", effect=held)
    if wanted.index.tokens and takes_token_of_another(desk, wanted, sid):
        return Refused("token_taken")
    if closes_answered(desk, wanted):
        arrivals = arrivals_after(desk, sid, wanted.lane, wanted.seen, last_arrival)
        return Refused("arrivals", arrivals)
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


def change_indexes(desk: Desk, wanted: Commit, lid: int, sid: int, first_offset: int) -> None:
    index, db = wanted.index, desk.db
    for change in delivery_changes(wanted, first_offset):
        db.run("leave_queue", {"lid": lid, **change})
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
