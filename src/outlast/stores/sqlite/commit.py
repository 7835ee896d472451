"""What a lane's owner writes: the check, the log, and the indexes beside it.

All that may refuse a commit is looked at before its first write, so one that is refused has
written nothing and the others of its group stand. The writes check the fence once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from outlast.core.codec import Packed
from outlast.core.index import NO_CHANGES, change_offset, end_offset
from outlast.core.record import FORMAT, DeliverySettled, Entry
from outlast.store import Commit, Committed, EffectClaim, Refused, Snapshot
from outlast.stores.sqlite import outbox
from outlast.stores.sqlite.append import (
    CHANGES_SLICES,
    STARTS_OR_ENDS,
    LogRow,
    append,
    arrivals_after,
    last_commit,
    make_row,
    tenant_of,
)
from outlast.stores.sqlite.limit import free_permits, has_permit_to_come
from outlast.stores.sqlite.sending import send
from outlast.stores.sqlite.unit_of_work import OFFSETS, UnitOfWork, to_json

LEASE_LOST = Refused("lease_lost")
MANY = 4


class LaneRow(NamedTuple):
    """A lane as a commit finds it, and where in the log the commit would go."""

    lid: int
    sid: int
    worker: str | None
    fence: int
    number: int
    last_arrival: int
    next_key: int
    last_at: int


class AcceptedCommit(NamedTuple):
    """A commit that nothing stands against, with its place in the log."""

    commit: Commit
    lane: LaneRow
    digest: bytes

    @property
    def at(self) -> int:
        """Return when it is written: time never goes back within a session."""
        return max(self.commit.at, self.lane.last_at)


Result = Committed | Refused


def digest_of(commit: Commit) -> bytes:
    return blake2b(commit.body, digest_size=16).digest()


def write_commits(desk: UnitOfWork, commits: Sequence[Commit]) -> list[Result]:
    """Write each commit, or say why not; one that is refused has changed nothing."""
    if len(commits) == 1 and (plain := write_plain(desk, commits[0])):
        return [plain]
    results: dict[int, Result] = {}
    for places in rounds(commits):
        written = write_round(desk, [commits[place] for place in places])
        results.update(zip(places, written, strict=True))
    return [results[place] for place in range(len(commits))]


def rounds(commits: Sequence[Commit]) -> Iterator[list[int]]:
    """Tell apart what may stand in each other's way: one session's commits, keys and tokens."""
    together: dict[str, int] = {}
    alone: list[int] = []
    for place, commit in enumerate(commits):
        contends = commit.effects or commit.index.tokens
        if contends or together.setdefault(commit.session_id, place) != place:
            alone.append(place)
    if together:
        yield list(together.values())
    for place in alone:
        yield [place]


def write_round(desk: UnitOfWork, commits: Sequence[Commit]) -> list[Result]:
    """Check all, then write those that may go on."""
    results: list[Result] = []
    going: list[AcceptedCommit] = []
    for commit, lane in zip(commits, find_lanes(desk, commits), strict=True):
        digest = digest_of(commit)
        refused = find_reason(desk, commit, lane, digest) if lane else LEASE_LOST
        if refused is None:
            assert lane is not None
            going.append(AcceptedCommit(commit, lane, digest))
            refused = Committed(lane.next_key & OFFSETS, going[-1].at, unseen(desk, commit, lane))
        results.append(refused)
    advance(desk, going)
    append_all(desk, going)
    if told := [one.lane.sid for one in going if one.commit.tells]:
        outbox.tell(desk, told)
    for one in going:
        write_beside(desk, one)
    send(desk, (letter for one in going for letter in one.commit.sends))
    return results


def write_plain(desk: UnitOfWork, commit: Commit) -> Committed | None:
    """Write a commit as most are, unless something stands against it."""
    if not commit.is_plain:
        return None
    row = desk.db.one("find_lane", {"session_id": commit.session_id, "lane": commit.lane})
    if row is None:
        return None
    lane = LaneRow._make(row)
    if (lane.worker, lane.fence, lane.number) != (commit.worker, commit.fence, commit.number):
        return None
    if lane.last_arrival > commit.seen:
        return None
    going = AcceptedCommit(commit, lane, digest_of(commit))
    desk.db.run("advance_lane", advanced(desk, going))
    append(desk, lane.next_key, commit.lane, commit.body, len(commit.records), going.at, 0)
    desk.tell(commit.session_id, arrived=False)
    return Committed(lane.next_key & OFFSETS, going.at, ())


def write_beside(desk: UnitOfWork, going: AcceptedCommit) -> None:
    """Change what follows from the records: indexes, holds, snapshots, hints."""
    commit, lane, _ = going
    if commit.index is not NO_CHANGES:
        change_indexes(desk, commit, lane, lane.next_key & OFFSETS)
    if commit.index.changes_slices:
        changed = change_offset(commit.records, lane.next_key & OFFSETS)
        desk.db.run("change_slices", {"sid": lane.sid, "offset": changed})
    if commit.effects:
        put_effects(desk, commit.effects, tenant_of(desk, lane.sid))
    if commit.frees:
        free_permits(desk, lane.lid, commit.frees)
    if commit.snapshot:
        desk.db.run("put_snapshot", {"lid": lane.lid, **stored(desk, commit.snapshot)})
    if commit.slices:
        desk.db.run("put_slices", {"sid": lane.sid, **stored(desk, commit.slices)})
    desk.tell(commit.session_id, arrived=commit.release)


# One or many
#
# A statement for many lets go of the interpreter once instead of once for each commit, and
# costs a tenth for each; for a few, statements for one cost less than its preparation.


def find_lanes(desk: UnitOfWork, commits: Sequence[Commit]) -> list[LaneRow | None]:
    """Return the lanes of the commits as they are, None for one that is not there."""
    if len(commits) < MANY:
        keys = ({"session_id": commit.session_id, "lane": commit.lane} for commit in commits)
        rows = (desk.db.one("find_lane", key) for key in keys)
        return [LaneRow._make(row) if row else None for row in rows]
    wanted = [(commit.session_id, commit.lane) for commit in commits]
    row = desk.db.one("find_lanes", {"wanted": to_json(wanted)})
    assert row is not None
    found = {place: LaneRow._make(lane) for place, *lane in msgspec.json.decode(row[0])}
    return [found.get(place) for place in range(len(commits))]


def advance(desk: UnitOfWork, going: Sequence[AcceptedCommit]) -> None:
    """Move the lanes on. What was checked holds: nobody else writes meanwhile."""
    staying = [one for one in going if not one.commit.release]
    if len(staying) < MANY:
        changed = sum(desk.db.run("advance_lane", advanced(desk, one)) for one in staying)
    else:
        rows = [tuple(ADVANCED(advanced(desk, one))) for one in staying]
        digests = b"".join(one.digest for one in staying)
        changed = desk.db.run("advance_lanes", {"lanes": to_json(rows), "digests": digests})
    for one in going:
        if one.commit.release:
            changed += desk.db.run("advance_and_release_lane", advanced(desk, one))
    assert changed == len(going), "a lane changed between the check and the write"


ADVANCED = itemgetter(
    "lid", "worker", "fence", "number", "status", "turn", "ready_at", "version", "wait"
)


def advanced(desk: UnitOfWork, going: AcceptedCommit) -> dict[str, Any]:
    commit, lane, digest = going
    ready_at = commit.ready_at
    if ready_at is not None and lane.last_arrival > commit.seen:
        ready_at = min(ready_at, desk.clock.now())
    return {
        "lid": lane.lid,
        "worker": commit.worker,
        "fence": commit.fence,
        "number": commit.number,
        "status": commit.status,
        "turn": commit.turn,
        "wait": commit.wait,
        "ready_at": ready_at,
        "version": FORMAT,
        "digest": digest,
    }


def append_all(desk: UnitOfWork, going: Sequence[AcceptedCommit]) -> None:
    """Add to the logs; a commit without records adds nothing."""
    adding = [one for one in going if one.commit.records]
    packed = desk.packer.pack_all([one.commit.body for one in adding])
    rows = [row_of(desk, one, pack) for one, pack in zip(adding, packed, strict=True)]
    if len(rows) < MANY:
        for row in rows:
            desk.db.run("append", row._asdict())
        return
    ends = accumulate(len(row.data) for row in rows)
    places = [(end - len(row.data) + 1, len(row.data)) for row, end in zip(rows, ends, strict=True)]
    described = [(*row[:-1], *place) for row, place in zip(rows, places, strict=True)]
    data = b"".join(row.data for row in rows)
    desk.db.run("append_many", {"rows": to_json(described), "data": data})


def row_of(desk: UnitOfWork, going: AcceptedCommit, packed: Packed) -> LogRow:
    commit, lane, _ = going
    marks = CHANGES_SLICES if commit.index.changes_slices else 0
    marks |= STARTS_OR_ENDS if commit.index.over else 0
    return make_row(desk, packed, lane.next_key, commit.lane, len(commit.records), going.at, marks)


def unseen(desk: UnitOfWork, wanted: Commit, lane: LaneRow) -> tuple[Entry, ...]:
    """Return what arrived since the last arrival that the owner has folded."""
    if lane.last_arrival <= wanted.seen:
        return ()
    return arrivals_after(desk, lane.sid, wanted.lane, wanted.seen, lane.last_arrival)


def put_effects(desk: UnitOfWork, effects: Sequence[EffectClaim], tenant: str) -> None:
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


def stored(desk: UnitOfWork, snapshot: Snapshot) -> dict[str, Any]:
    data = desk.packer.squeeze(snapshot.data)
    return {"offset": snapshot.offset, "fold": snapshot.fold, "data": data}


# What may refuse it


def find_reason(desk: UnitOfWork, wanted: Commit, lane: LaneRow, digest: bytes) -> Result | None:
    """Say why a commit is not to be written, or that it had been written before."""
    if lane.fence != wanted.fence:
        return LEASE_LOST
    if lane.worker == wanted.worker and lane.number == wanted.number:
        if refused := find_obstacle(desk, wanted, lane):
            return refused
        rests = wanted.release or wanted.ready_at is None
        if rests and lane.last_arrival > wanted.seen:
            return Refused("arrivals", unseen(desk, wanted, lane))
        if wanted.awaits_permit and has_permit_to_come(desk, lane.lid, wanted.frees):
            return Refused("arrivals")
        return None
    if lane.number == wanted.number + 1 and is_last(desk, lane, digest):
        landed = last_commit(desk, lane.sid, wanted.lane, has_records=bool(wanted.records))
        return Committed(landed.first_offset, landed.at, unseen(desk, wanted, lane))
    return LEASE_LOST


def is_last(desk: UnitOfWork, lane: LaneRow, digest: bytes) -> bool:
    """Whether this is what the lane's last commit wrote."""
    return desk.db.one("digest", {"lid": lane.lid}) == (digest,)


def find_obstacle(desk: UnitOfWork, wanted: Commit, lane: LaneRow) -> Refused | None:
    """Look for what stands against a commit that its lane would take."""
    index = wanted.index
    if not (wanted.effects or index.tokens or index.closed or wanted.slices_seen is not None):
        return None
    for effect in wanted.effects:
        if held := held_by_another(desk, effect):
            return Refused("effect_taken", effect=held)
    if index.tokens and (is_over(desk, lane) or takes_token_of_another(desk, wanted, lane.sid)):
        return Refused("token_taken")
    if wanted.slices_seen is not None and has_newer_slices(desk, wanted, lane):
        return Refused("slices_changed")
    if closes_answered(desk, wanted):
        return Refused("arrivals", unseen(desk, wanted, lane))
    return None


def held_by_another(desk: UnitOfWork, wanted: EffectClaim) -> EffectClaim | None:
    row = desk.db.one("effect", {"scope": wanted.scope, "key": wanted.key})
    if row is None:
        return None
    held = EffectClaim(*row)
    is_own = (held.session_id, held.call_id) == (wanted.session_id, wanted.call_id)
    return None if is_own or held.state == "free" else held


def is_over(desk: UnitOfWork, lane: LaneRow) -> bool:
    """Whether the session has ended: its tokens are dead, and it takes no more of them."""
    return desk.db.one("over", {"sid": lane.sid}) != ("",)


def takes_token_of_another(desk: UnitOfWork, wanted: Commit, sid: int) -> bool:
    tenant = tenant_of(desk, sid)
    keys = ({"tenant": tenant, "token": token} for token in wanted.index.tokens)
    owners = (desk.db.one("owner_of_token", key) for key in keys)
    return any(owner and owner[0] != sid for owner in owners)


def has_newer_slices(desk: UnitOfWork, wanted: Commit, lane: LaneRow) -> bool:
    return (
        desk.db.one("slices_changed_after", {"sid": lane.sid, "seen": wanted.slices_seen})
        is not None
    )


def closes_answered(desk: UnitOfWork, wanted: Commit) -> bool:
    """Whether a request would be closed whose answer has arrived and was not seen."""
    return any(
        desk.db.one("answered_since", {"request_id": closed.request_id, "seen": wanted.seen})
        for closed in wanted.index.closed
        if closed.how != "answered"
    )


# The indexes


def change_indexes(desk: UnitOfWork, wanted: Commit, lane: LaneRow, first_offset: int) -> None:
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
