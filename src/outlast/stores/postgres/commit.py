"""A commit of a lane's owner as the database takes it, and the meaning of its answer.

functions/commit.sql checks and writes it. `Committer` is the way in for `store.py` and for a tool's
transaction (`transaction.py`); groups and connections are the affair of `writer.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import astuple, replace

from outlast.core.amount import BudgetTerms
from outlast.core.codec import Packer, checksum_of
from outlast.core.index import NO_CHANGES, Index, LaneFailure, change_offset, end_offset
from outlast.core.record import FORMAT, DeliverySettled, NewOutboxCursor
from outlast.core.usage import UsageChange
from outlast.errors import NotEncodable
from outlast.store import Admission, Commit, Committed, EffectClaim, FoldSnapshot, Refused
from outlast.store.work import Pin
from outlast.stores.postgres.admission import AdmissionItem, AdmissionJson
from outlast.stores.postgres.notify import Notifier
from outlast.stores.postgres.row import (
    CHANGES_SLICES,
    STARTS_OR_ENDS,
    BlobMissing,
    BlobPart,
    LogRow,
    Unpacker,
    add_blobs,
)
from outlast.stores.postgres.statement import Query, Statement
from outlast.stores.postgres.writer import GroupBuffer, Hints, WriteItem, Writer, WriteRequest

LEASE_LOST = Refused("lease_lost")
ABSENT = Refused("absent")
UNDONE = Refused("undone")
NO_FAILURE = LaneFailure("", "")

_encoder = msgspec.json.Encoder()


def _encode(used: Sequence[UsageChange]) -> str:
    return _encoder.encode(used).decode()


class Committer:
    """Writes commits, and unpacks the arrivals that their answers bring."""

    def __init__(
        self,
        packer: Packer,
        unpacker: Unpacker,
        writer: Writer,
        notifier: Notifier,
        commit_alone: Query,
    ) -> None:
        self._packer = packer
        self._unpacker = unpacker
        self._writer = writer
        self._notifier = notifier
        self._commit_alone = commit_alone

    async def commit(self, commits: Sequence[Commit]) -> list[Committed | Refused]:
        """Write each commit whole or not at all, and say which for each."""
        # The usual case, with nothing gathered: a lone session's commit goes out before its loop
        # does anything else.
        if len(commits) == 1:
            item = CommitItem(commits[0], self._packer, self._commit_alone)
            result = await self._writer.write(item)
            return [await self._unpack(item, result) if item.arrivals else result]
        items = [CommitItem(commit, self._packer, self._commit_alone) for commit in commits]
        found = await asyncio.gather(*(self._writer.submit(item) for item in items))
        return [
            await self._unpack(item, result) if item.arrivals else result
            for item, result in zip(items, found, strict=True)
        ]

    def item(self, commit: Commit) -> CommitItem:
        """Return a commit that a tool's transaction writes by itself."""
        return CommitItem(commit, self._packer, self._commit_alone)

    async def finish(
        self, item: CommitItem, result: Committed | Refused, hints: Hints
    ) -> Committed | Refused:
        """Do for a commit outside the writer's groups what the writer does for its own."""
        if hints:
            self._notifier.tell(hints)
        return await self._unpack(item, result)

    async def find_out(self, commit: Commit) -> Committed | Refused:
        """Return what became of a commit whose acknowledgement was lost.

        A transaction that may still commit holds the session, so the answer comes after its end.
        """
        item = CommitItem(commit, self._packer, self._commit_alone, asks=True)
        found = await self._writer.submit(item)
        return UNDONE if found == ABSENT else await self._unpack(item, found)

    async def _unpack(self, item: CommitItem, result: Committed | Refused) -> Committed | Refused:
        """Add the arrivals to a result, now that their blobs can be read."""
        if not item.arrivals:
            return result
        seen = item.commit.seen
        try:
            entries = await self._unpacker.entries(item.tenant, item.arrivals, seen)
        except BlobMissing:
            again = CommitItem(item.commit, self._packer, self._commit_alone, asks=True)
            if await self._writer.submit(again) == LEASE_LOST:  # the session was erased meanwhile
                return LEASE_LOST
            raise
        return replace(result, arrivals=tuple(entries))


class SnapshotJson(Struct):
    """A snapshot, and which part of the group's bytes it is."""

    last_offset: int
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
    code: str | None


class OpenedRequestJson(Struct):
    id: str
    kind: str
    expires_at: int
    data: str


class ClosedRequestJson(Struct):
    id: str
    how: str


class BudgetJson(Struct):
    """A change of a budget; amounts stand in the order of their fields."""

    scope: str
    who: str
    day: int
    reserved: tuple[int, ...]
    spent: tuple[int, ...]
    raised: tuple[int, ...]
    asks: bool
    terms: BudgetTerms | None
    limits: tuple[int, ...] | None


class AwaitedBudgetJson(Struct):
    scope: str
    who: str
    day: int
    returns: int


class CommitJson(WriteRequest, omit_defaults=True, kw_only=True):
    """A commit as functions/commit.sql reads it."""

    lane: str
    worker: str
    fence: int
    number: int
    seen: int
    epoch: str
    at: int
    ready_at: int | None
    release: bool
    status: str
    turn: str
    wait: tuple[str, ...] = ()
    version: int
    digest: str
    count: int
    marks: int
    start: int
    size: int
    bytes: int
    deaths: int | UnsetType = UNSET
    more: bool = False
    asks: bool = False
    tells: bool = False
    deliveries: list[DeliveryJson] | UnsetType = UNSET
    opened: list[OpenedRequestJson] | UnsetType = UNSET
    closed: list[ClosedRequestJson] | UnsetType = UNSET
    tokens: Sequence[str] | UnsetType = UNSET
    revoked: Sequence[str] | UnsetType = UNSET
    outbox: Sequence[NewOutboxCursor] | UnsetType = UNSET
    sliced: int | UnsetType = UNSET
    slices_seen: int | UnsetType = UNSET
    rolls_back: bool | UnsetType = UNSET
    awaits_permit: bool | UnsetType = UNSET
    frees: Sequence[str] | UnsetType = UNSET
    failure: LaneFailure | UnsetType = UNSET
    over: str | UnsetType = UNSET
    ended: int | UnsetType = UNSET
    effects: Sequence[EffectClaim] | UnsetType = UNSET
    snapshot: SnapshotJson | UnsetType = UNSET
    slices: SnapshotJson | UnsetType = UNSET
    blobs: list[BlobPart] | UnsetType = UNSET
    sends: list[AdmissionJson] | UnsetType = UNSET
    used: Sequence[UsageChange] | UnsetType = UNSET
    pin: Pin | UnsetType = UNSET
    budgets: list[BudgetJson] | UnsetType = UNSET
    asks_budgets: bool | UnsetType = UNSET
    awaits_budgets: list[AwaitedBudgetJson] | UnsetType = UNSET

    @property
    def has_permits(self) -> bool:
        return self.frees is not UNSET or self.awaits_permit is not UNSET


class CommitItem(WriteItem[Committed | Refused]):
    """A commit on its way. With `asks` it writes nothing, and asks whether it was written.

    `tenant` and `arrivals` are there once it is answered: the rows of the log that were added to
    the lane since the owner last looked.
    """

    tenant = ""
    arrivals: Sequence[LogRow] = ()

    def __init__(
        self, commit: Commit, packer: Packer, commit_alone: Query, *, asks: bool = False
    ) -> None:
        self.session_id = commit.session_id
        self.commit = commit
        self._packer = packer
        self._commit_alone = commit_alone
        self._asks = asks
        # Once, on the way in: the item may go out several times.
        self._packed = packer.pack(commit.body)
        self._digest = blake2b(commit.body, digest_size=16).digest()
        self._sends = list(sent_items(commit.sends, packer)) if commit.sends else []
        self.size = size_of(commit)
        if self._sends:
            self.size += sum(send.size for send in self._sends)

    def alone(self) -> Statement | None:
        """Return `commit_alone` for a commit that changes its lane and the log only."""
        commit = self.commit
        # `commit_alone` changes a lane and the log and nothing else.
        if self._asks or self._packed.blobs or not commit.is_plain:
            return None
        return self._commit_alone.bind(
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
                "epoch": commit.epoch,
                "bytes": len(commit.body),
                "used": _encode(commit.used) if commit.used else None,
            }
        )

    def prepare(self, buffer: GroupBuffer) -> CommitJson:
        commit, index = self.commit, self.commit.index
        has_records = bool(commit.records)
        start, size = buffer.add(self._packed.data) if has_records else (0, 0)
        wanted = CommitJson(
            session=commit.session_id,
            lane=commit.lane,
            worker=commit.worker,
            fence=commit.fence,
            number=commit.number,
            seen=commit.seen,
            epoch=commit.epoch,
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
            bytes=len(commit.body) if has_records else 0,
            asks=self._asks,
            tells=commit.tells and not self._asks,
        )
        if commit.deaths is not None:
            wanted.deaths = commit.deaths
        if commit.used:
            wanted.used = commit.used
        if index is not NO_CHANGES and index != NO_CHANGES:
            add_index(wanted, commit)
        if commit.awaits_permit or commit.frees or commit.slices_seen is not None:
            add_conditions(wanted, commit)
        if commit.budgets or commit.awaits_budgets:
            add_budgets(wanted, commit)
        self._add_bytes(wanted, buffer)
        if self._sends and not self._asks:
            wanted.sends, wanted.more = [send.prepare(buffer) for send in self._sends], True
        return wanted

    def keys(self) -> list[object]:
        commit = self.commit
        sends = [send.session_id for send in self._sends]
        effects = [(effect.scope, effect.key) for effect in commit.effects]
        tokens = [("", token) for token in commit.index.tokens]
        budgets = [("", change.key) for change in commit.budgets]
        # In one round, neither would see that something comes back to what the other waits for.
        awaited = [("", key) for key, _ in commit.awaits_budgets]
        return [commit.session_id, *sends, *effects, *tokens, *budgets, *awaited]

    def _add_bytes(self, wanted: CommitJson, buffer: GroupBuffer) -> None:
        commit = self.commit
        if commit.effects:
            # One row per key: a set-wise statement may not touch a row twice. The last change is
            # what stands.
            last = {(effect.scope, effect.key): effect for effect in commit.effects}
            wanted.effects, wanted.more = list(last.values()), True
        if commit.pin:
            wanted.pin, wanted.more = commit.pin, True
        if commit.snapshot:
            wanted.snapshot, wanted.more = self._fold(commit.snapshot, buffer), True
        if commit.slices:
            wanted.slices, wanted.more = self._fold(commit.slices, buffer), True
        if self._packed.blobs and not self._asks:
            wanted.blobs = add_blobs(self._packed, self._packer, buffer)
            wanted.more = True

    def _fold(self, snapshot: FoldSnapshot, buffer: GroupBuffer) -> SnapshotJson:
        data = self._packer.squeeze(snapshot.data)
        return SnapshotJson(snapshot.offset, snapshot.fold, *buffer.add(data))

    def accept(self, answer: list[Any], hints: Hints) -> Committed | Refused | None:
        match answer:
            case ["written", first_offset, at, tenant, arrivals]:
                # Another item of the group may have hinted at the session already.
                arrived = self.commit.release or hints.get(self.session_id, False)
                hints[self.session_id] = arrived
                for send in self._sends:
                    hints[send.session_id] = True
                if arrivals:
                    self._keep(tenant, arrivals)
                checksum = checksum_of(at, self._packed.data) if self.commit.records else ""
                return Committed(first_offset, at, checksum=checksum)
            case ["history_changed", epoch]:
                return Refused("history_changed", epoch=epoch)
            case ["arrivals", tenant, arrivals]:
                self._keep(tenant, arrivals)
                return Refused("arrivals")
            case ["effect_taken", held]:
                return Refused("effect_taken", effect=EffectClaim(*held))
            case ["turns", turns]:
                # A cancel that names no turn: which is open over there was found out by this try.
                for place, turn in turns:
                    self._sends[place].address_to(turn)
                return None
            case [reason]:
                return Refused(reason)
        raise AssertionError(answer)

    def _keep(self, tenant: str, rows: list[list[Any]]) -> None:
        lane = self.commit.lane
        self.tenant = tenant
        self.arrivals = [LogRow(first, lane, at, bytes.fromhex(data)) for first, at, data in rows]


def sent_items(sends: Sequence[Admission], packer: Packer) -> Iterator[AdmissionItem]:
    """Yield the admissions that a commit sends; one that cannot be encoded is dropped."""
    for admission in sends:
        try:
            yield AdmissionItem(admission, packer)
        except NotEncodable:
            continue


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
        # Likewise: a request is closed once.
        last = {c.request_id: ClosedRequestJson(c.request_id, c.how) for c in index.closed}
        wanted.closed, wanted.more = list(last.values()), True
    if index.tokens:
        wanted.tokens, wanted.more = index.tokens, True
    if index.revoked:
        wanted.revoked, wanted.more = index.revoked, True
    if index.outbox:
        wanted.outbox, wanted.more = index.outbox, True
    if index.changes_slices:
        wanted.sliced = change_offset(commit.records, 0)
    if index.rolls_back:
        wanted.rolls_back, wanted.more = True, True
    if index.failure or index.clears_failure:
        wanted.failure = index.failure or NO_FAILURE
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


def add_budgets(wanted: CommitJson, commit: Commit) -> None:
    wanted.more = True
    if commit.budgets:
        wanted.budgets = [
            BudgetJson(
                change.key.scope,
                change.key.who,
                change.key.day,
                astuple(change.reserved),
                astuple(change.spent),
                astuple(change.raised),
                change.is_asking,
                change.terms,
                astuple(change.terms.limits) if change.terms else None,
            )
            # In the order in which their rows are locked.
            for change in sorted(commit.budgets, key=lambda change: change.key)
        ]
    if commit.asks_budgets:
        wanted.asks_budgets = True
    if commit.awaits_budgets:
        wanted.awaits_budgets = [
            AwaitedBudgetJson(key.scope, key.who, key.day, returns)
            for key, returns in commit.awaits_budgets
        ]


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
            code=change.code or None,
        )
    return list(changes.values())
