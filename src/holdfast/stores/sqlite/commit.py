"""What a lane's owner writes: the check, the log, and the indexes beside it.

The check is the first write; whatever else may refuse a commit is looked at before it,
so a refused commit has written nothing and the others of its group stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from holdfast.core.index import NO_CHANGES
from holdfast.core.record import FORMAT, DeliverySettled
from holdfast.store import Commit, Committed, Effect, Refused, Snapshot
from holdfast.stores.sqlite.desk import Desk
from holdfast.stores.sqlite.log import CHANGES_SLICES, STARTS_OR_ENDS, append, arrivals_after

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
    appended = append(desk, sid, wanted.lane, wanted.body, count, wanted.at, marks)
    if index is not NO_CHANGES:
        change_indexes(desk, wanted, lid, sid, appended.first_offset, appended.tenant)
    for effect in wanted.effects:
        desk.db.run("put_effect", {**fields(effect), "tenant": appended.tenant})
    if wanted.snapshot:
        desk.db.run("put_snapshot", {"lid": lid, **stored(desk, wanted.snapshot)})
    if wanted.slices:
        desk.db.run("put_slices", {"sid": sid, **stored(desk, wanted.slices)})
    desk.tell(wanted.session_id, arrived=wanted.release)
    arrivals = arrivals_after(desk, sid, appended.tenant, wanted.lane, wanted.seen, last_arrival)
    return Committed(appended.first_offset, appended.at, arrivals)


def fields(effect: Effect) -> dict[str, Any]:
    return {
        "scope": effect.scope,
        "key": effect.key,
        "session_id": effect.session_id,
        "call_id": effect.call_id,
        "state": effect.state,
        "value": effect.value,
    }


def stored(desk: Desk, snapshot: Snapshot) -> dict[str, Any]:
    data = desk.packer.squeeze(snapshot.data)
    return {"offset": snapshot.offset, "fold": snapshot.fold, "data": data}


# What may refuse it


def explain_refusal(desk: Desk, wanted: Commit) -> Committed | Refused:
    """Say why a commit could not be written, or that it had been written before."""
    row = lane_as_it_is(desk, wanted)
    if row is None:
        return LEASE_LOST
    sid, worker, fence, number, last_arrival, first_offset, digest, tenant, at = row
    if fence != wanted.fence:
        return LEASE_LOST
    arrivals = arrivals_after(desk, sid, tenant, wanted.lane, wanted.seen, last_arrival)
    if number == wanted.number + 1 and digest == digest_of(wanted):
        return Committed(first_offset, at, arrivals)
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
    sid, tenant = row[0], row[7]
    for effect in wanted.effects:
        if held := held_by_another(desk, effect):
            return Refused("effect_taken", effect=held)
    for token in wanted.index.tokens:
        owner = desk.db.one("owner_of_token", {"tenant": tenant, "token": token})
        if owner and owner[0] != sid:
            return Refused("token_taken")
    if closes_answered(desk, wanted):
        arrivals = arrivals_after(desk, sid, tenant, wanted.lane, wanted.seen, row[4])
        return Refused("arrivals", arrivals)
    return None


def held_by_another(desk: Desk, wanted: Effect) -> Effect | None:
    row = desk.db.one("effect", {"scope": wanted.scope, "key": wanted.key})
    if row is None:
        return None
    held = Effect(*row)
    is_own = (held.session_id, held.call_id) == (wanted.session_id, wanted.call_id)
    return None if is_own or held.state == "free" else held


def closes_answered(desk: Desk, wanted: Commit) -> bool:
    """Whether a request would be closed whose answer has arrived and was not seen."""
    return any(
        desk.db.one("answered_since", {"request_id": closed.request_id, "seen": wanted.seen})
        for closed in wanted.index.closed
        if closed.how != "answered"
    )


# The indexes


def change_indexes(
    desk: Desk, wanted: Commit, lid: int, sid: int, first_offset: int, tenant: str
) -> None:
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
        db.run("add_token", {"tenant": tenant, "sid": sid, "token": token})
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
