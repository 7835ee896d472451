"""What a lane's owner writes: a commit as the database takes it, and what its answer means.

The checks and the writing itself are in functions/commit.sql.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from outlast.core.codec import Packer
from outlast.core.index import NO_CHANGES, Index, change_offset, end_offset
from outlast.core.record import FORMAT, DeliverySettled
from outlast.store import Commit, Committed, EffectClaim, Refused, Snapshot
from outlast.stores.postgres.admission import AdmissionJson
from outlast.stores.postgres.blob import BlobPart, add_blobs
from outlast.stores.postgres.row import CHANGES_SLICES, STARTS_OR_ENDS, LogRow
from outlast.stores.postgres.sending import SendsJson
from outlast.stores.postgres.statement import Query, Statement
from outlast.stores.postgres.writer import AGAIN, GroupBuffer, Hints, WriteRequest

LEASE_LOST = Refused("lease_lost")


class SnapshotJson(Struct):
    """A snapshot, and which part of the group's bytes it is."""

    up_to: int
    fold: int
    start: int
    size: int


class DeliveryJson(Struct):
    """A delivery's new state; `settled` is the place of the record that settled it."""

    id: str
    state: str
    outcome: str | None
    turn: str | None
    settled: int | None


class OpenedRequestJson(Struct):
    id: str
    kind: str
    expires_at: int
    data: str


class ClosedRequestJson(Struct):
    id: str
    how: str


class CommitJson(WriteRequest, omit_defaults=True, kw_only=True):
    """A commit as functions/commit.sql reads it."""

    lane: str
    worker: str
    fence: int
    number: int
    seen: int
    at: int
    ready_at: int | None
    release: bool
    status: str
    turn: str
    wait: str = ""
    version: int
    digest: str
    count: int
    marks: int
    start: int
    size: int
    more: bool = False
    asks: bool = False
    tells: bool = False
    deliveries: list[DeliveryJson] | UnsetType = UNSET
    opened: list[OpenedRequestJson] | UnsetType = UNSET
    closed: list[ClosedRequestJson] | UnsetType = UNSET
    tokens: Sequence[str] | UnsetType = UNSET
    revoked: Sequence[str] | UnsetType = UNSET
    sliced: int | UnsetType = UNSET
    slices_seen: int | UnsetType = UNSET
    awaits_permit: bool | UnsetType = UNSET
    frees: Sequence[str] | UnsetType = UNSET
    over: str | UnsetType = UNSET
    ended: int | UnsetType = UNSET
    effects: Sequence[EffectClaim] | UnsetType = UNSET
    snapshot: SnapshotJson | UnsetType = UNSET
    slices: SnapshotJson | UnsetType = UNSET
    blobs: list[BlobPart] | UnsetType = UNSET
    sends: list[AdmissionJson] | UnsetType = UNSET

    @property
    def has_permits(self) -> bool:
        return self.frees is not UNSET or self.awaits_permit is not UNSET


class PackedAnswer(Struct):
    """An answer whose arrivals are still packed."""

    result: Committed | Refused
    tenant: str
    seen: int
    arrivals: list[LogRow]


class CommitItem:
    """A commit on its way. `asks` only wants to know whether it has landed."""

    limits = ()

    def __init__(self, commit: Commit, packer: Packer, query: Query, *, asks: bool = False) -> None:
        self.session_id = commit.session_id
        self._commit = commit
        self._packer = packer
        self._query = query
        self._asks = asks
        self._packed = packer.pack(commit.body)
        self._digest = blake2b(commit.body, digest_size=16).digest()
        self._letters = SendsJson(commit.sends, packer) if commit.sends else None
        self.size = size_of(commit) + (self._letters.size if self._letters else 0)

    def alone(self) -> Statement | None:
        """Return a plain commit as one statement, with nothing to be taken apart there."""
        commit = self._commit
        if self._asks or self._packed.blobs or not commit.is_plain:
            return None
        return self._query.bind(
            {
                "session": commit.session_id,
                "lane": commit.lane,
                "worker": commit.worker,
                "fence": commit.fence,
                "number": commit.number,
                "seen": commit.seen,
                "at": commit.at,
                "ready_at": commit.ready_at,
                "status": commit.status,
                "turn": commit.turn,
                "version": FORMAT,
                "digest": self._digest,
                "records": len(commit.records),
                "data": self._packed.data,
            }
        )

    def prepare(self, buffer: GroupBuffer) -> CommitJson:
        commit, index = self._commit, self._commit.index
        has_records = bool(commit.records)
        start, size = buffer.add(self._packed.data) if has_records else (0, 0)
        wanted = CommitJson(
            session=commit.session_id,
            lane=commit.lane,
            worker=commit.worker,
            fence=commit.fence,
            number=commit.number,
            seen=commit.seen,
            at=commit.at,
            ready_at=commit.ready_at,
            release=commit.release,
            status=commit.status,
            turn=commit.turn,
            wait=commit.wait,
            version=FORMAT,
            digest=self._digest.hex(),
            count=len(commit.records),
            marks=marks_of(index),
            start=start,
            size=size,
            asks=self._asks,
            tells=commit.tells and not self._asks,
        )
        if index is not NO_CHANGES and index != NO_CHANGES:
            add_index(wanted, commit)
        if commit.awaits_permit or commit.frees or commit.slices_seen is not None:
            add_conditions(wanted, commit)
        self._add_bytes(wanted, buffer)
        if self._letters and not self._asks:
            wanted.sends, wanted.more = self._letters.prepare(buffer), True
        return wanted

    def keys(self) -> list[object]:
        commit = self._commit
        sends = [admission.session_id for admission in commit.sends]
        effects = [(effect.scope, effect.key) for effect in commit.effects]
        tokens = [("", token) for token in commit.index.tokens]
        return [commit.session_id, *sends, *effects, *tokens]

    def _add_bytes(self, wanted: CommitJson, buffer: GroupBuffer) -> None:
        commit = self._commit
        if commit.effects:
            last = {(effect.scope, effect.key): effect for effect in commit.effects}
            wanted.effects, wanted.more = list(last.values()), True
        if commit.snapshot:
            wanted.snapshot, wanted.more = self._fold(commit.snapshot, buffer), True
        if commit.slices:
            wanted.slices, wanted.more = self._fold(commit.slices, buffer), True
        if self._packed.blobs and not self._asks:
            wanted.blobs = add_blobs(self._packed, self._packer, buffer)
            wanted.more = True

    def _fold(self, snapshot: Snapshot, buffer: GroupBuffer) -> SnapshotJson:
        data = self._packer.squeeze(snapshot.data)
        return SnapshotJson(snapshot.offset, snapshot.fold, *buffer.add(data))

    def accept(
        self, answer: list[Any], hints: Hints
    ) -> Committed | Refused | PackedAnswer | object:
        match answer:
            case ["written", first_offset, at, tenant, arrivals]:
                arrived = self._commit.release or hints.get(self.session_id, False)
                hints[self.session_id] = arrived
                if self._letters:
                    hints.update(self._letters.hints)
                return self._with(Committed(first_offset, at), tenant, arrivals)
            case ["arrivals", tenant, arrivals]:
                return self._with(Refused("arrivals"), tenant, arrivals)
            case ["effect_taken", held]:
                return Refused("effect_taken", effect=EffectClaim(*held))
            case ["turns", turns] if self._letters:
                self._letters.make_out(turns)
                return AGAIN
            case [reason]:
                return Refused(reason)
        raise AssertionError(answer)

    def _with(
        self, result: Committed | Refused, tenant: str, arrivals: list[list[Any]]
    ) -> Committed | Refused | PackedAnswer:
        if not arrivals:
            return result
        lane, seen = self._commit.lane, self._commit.seen
        rows = [LogRow(first, lane, at, bytes.fromhex(data)) for first, at, data in arrivals]
        return PackedAnswer(result, tenant, seen, rows)

    def doubt(self) -> None:
        """Nothing to note: the lane's commit number and digest tell whether it has landed."""


def size_of(commit: Commit) -> int:
    """Return how many bytes a commit brings by itself, before they are compressed."""
    size = len(commit.body)
    if commit.snapshot:
        size += len(commit.snapshot.data)
    return size + len(commit.slices.data) if commit.slices else size


def marks_of(index: Index) -> int:
    return (CHANGES_SLICES if index.changes_slices else 0) | (STARTS_OR_ENDS if index.over else 0)


def add_index(wanted: CommitJson, commit: Commit) -> None:
    """Say what changes besides the log; what does not change is not mentioned."""
    index = commit.index
    if index.deliveries:
        wanted.deliveries = delivery_changes(commit)
    if index.opened:
        wanted.opened, wanted.more = (
            [OpenedRequestJson(o.request_id, o.kind, o.expires_at, o.data) for o in index.opened],
            True,
        )
    if index.closed:
        last = {c.request_id: ClosedRequestJson(c.request_id, c.how) for c in index.closed}
        wanted.closed, wanted.more = list(last.values()), True
    if index.tokens:
        wanted.tokens, wanted.more = index.tokens, True
    if index.revoked:
        wanted.revoked, wanted.more = index.revoked, True
    if index.changes_slices:
        wanted.sliced = change_offset(commit.records, 0)
    if index.over:
        wanted.over, wanted.ended = index.over, end_offset(commit.records, 0)
        wanted.more = True


def add_conditions(wanted: CommitJson, commit: Commit) -> None:
    """Say what else may refuse the commit, and which permits it gives back."""
    wanted.more = True
    if commit.awaits_permit:
        wanted.awaits_permit = True
    if commit.frees:
        wanted.frees = commit.frees
    if commit.slices_seen is not None:
        wanted.slices_seen = commit.slices_seen


def delivery_changes(commit: Commit) -> list[DeliveryJson]:
    settled = {
        record.delivery_id: place
        for place, record in enumerate(commit.records)
        if type(record) is DeliverySettled
    }
    changes: dict[str, DeliveryJson] = {}
    for change in commit.index.deliveries:
        last = changes.get(change.delivery_id)
        changes[change.delivery_id] = DeliveryJson(
            id=change.delivery_id,
            state=change.state,
            outcome=change.outcome or None,
            turn=change.turn or (last.turn if last else None),
            settled=settled.get(change.delivery_id),
        )
    return list(changes.values())
