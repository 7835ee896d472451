"""The rows that the memory store keeps, and how the log is written and read.

Everything here is synchronous: on one event loop that makes each call atomic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from outlast.core.codec import HAS_BLOBS, Packer, blob_names, version_of
from outlast.core.record import Entry
from outlast.store import (
    AdmissionReceipt,
    Committed,
    DeadLetter,
    EffectClaim,
    KeyInfo,
    OutboxCursor,
    ScheduleInfo,
    Snapshot,
    StoredSecret,
    WorkerInfo,
)
from outlast.stores.page import size_of_row, size_of_value


@dataclass(slots=True, frozen=True)
class LogRow:
    """One commit. A shared one concerns all lanes: slices, or the session's start or end."""

    first_offset: int
    count: int
    lane: str
    at: int
    data: bytes
    is_arrival: bool
    is_shared: bool

    @property
    def last_offset(self) -> int:
        return self.first_offset + self.count - 1


@dataclass(slots=True, frozen=True)
class Landed:
    """The owner's last commit, for recognising it should its acknowledgement be lost."""

    worker: str
    number: int
    body: bytes
    result: Committed


@dataclass(slots=True)
class LaneRow:
    name: str
    worker: str = ""
    fence: int = 0
    number: int = 0
    ready_at: int | None = None
    status: str = "idle"
    turn: str = ""
    wait: str = ""
    last_arrival: int = 0
    version: int = 0
    snapshot: Snapshot | None = None
    queued: set[str] = field(default_factory=set)
    landed: Landed | None = None


@dataclass(slots=True)
class SessionRow:
    id: str
    tenant: str
    agent: str
    mode: str
    created_at: int
    last_at: int
    end: int = 0
    over: str = ""
    parent: str = ""
    is_doomed: bool = False
    rows: list[LogRow] = field(default_factory=list)
    lanes: dict[str, LaneRow] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    deliveries: list[str] = field(default_factory=list)
    slices: Snapshot | None = None
    slices_changed: int = 0


@dataclass(slots=True)
class DeliveryRow:
    id: str
    session_id: str
    lane: str
    kind: str
    offset: int
    state: str = "queued"
    outcome: str = ""
    turn: str = ""
    settled_offset: int = 0


@dataclass(slots=True)
class RequestRow:
    """`answered_at_offset` is where its answer arrived."""

    id: str
    session_id: str
    lane: str
    kind: str
    expires_at: int
    data: str
    state: str = "open"
    answered_at_offset: int = 0


@dataclass(slots=True)
class PermitRow:
    """A call that holds a permit, or waits for one behind the rows of its tenant before it.

    `expected_at` is since when it has a place, or was told to ask again; one who did not come
    is `absent`: in no line until he asks.
    """

    name: str
    session_id: str
    lane: str
    call_id: str
    most: int
    held: bool = False
    expected_at: int | None = None
    absent: bool = False


@dataclass(slots=True)
class CursorRow:
    info: OutboxCursor
    held_until: int = 0


@dataclass(slots=True)
class WorkerRow:
    info: WorkerInfo
    lease: int
    lease_until: int
    looks_dead: bool = False
    draining: bool = False


@dataclass(slots=True)
class Tables:
    """All that is stored. `tokens` holds the living ones only, `dead_tokens` who had one last."""

    sessions: dict[str, SessionRow] = field(default_factory=dict)
    deliveries: dict[str, DeliveryRow] = field(default_factory=dict)
    requests: dict[str, RequestRow] = field(default_factory=dict)
    tokens: dict[tuple[str, str], str] = field(default_factory=dict)
    dead_tokens: dict[tuple[str, str], str] = field(default_factory=dict)
    dispatches: dict[tuple[str, str, str], tuple[str, AdmissionReceipt]] = field(
        default_factory=dict
    )
    effects: dict[tuple[str, str], EffectClaim] = field(default_factory=dict)
    workers: dict[str, WorkerRow] = field(default_factory=dict)
    permits: list[PermitRow] = field(default_factory=list)
    paid_until: dict[str, int] = field(default_factory=dict)
    last_tenant: dict[str, str] = field(default_factory=dict)
    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    blob_users: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    keys: dict[str, KeyInfo] = field(default_factory=dict)
    cursors: dict[tuple[str, str], CursorRow] = field(default_factory=dict)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    secrets: dict[tuple[str, str], StoredSecret] = field(default_factory=dict)
    holds: dict[str, tuple[str, int]] = field(default_factory=dict)
    schedules: dict[str, ScheduleInfo] = field(default_factory=dict)
    packer: Packer = field(default_factory=Packer)


def append(
    tables: Tables,
    session: SessionRow,
    lane: LaneRow,
    body: bytes,
    count: int,
    at: int,
    *,
    is_arrival: bool = False,
    is_shared: bool = False,
) -> LogRow:
    """Add encoded records to the log as one row; no records make no row."""
    packed = tables.packer.pack(body)
    at = max(at, session.last_at)
    row = LogRow(session.end + 1, count, lane.name, at, packed.data, is_arrival, is_shared)
    if count:
        for name, value in packed.blobs.items():
            key = (session.tenant, name)
            if key not in tables.blobs:
                tables.blobs[key] = tables.packer.squeeze(value)
            tables.blob_users.setdefault(key, set()).add(session.id)
        session.rows.append(row)
        session.end, session.last_at = row.last_offset, at
        lane.version = max(lane.version, version_of(packed.data))
    return row


def rows_after(session: SessionRow, offset: int) -> Iterator[LogRow]:
    """Yield the rows that end after an offset, in order."""
    start = bisect_right(session.rows, offset, key=lambda row: row.last_offset)
    for number in range(start, len(session.rows)):
        yield session.rows[number]


def entries_of(tables: Tables, session: SessionRow, row: LogRow, after: int = 0) -> list[Entry]:
    """Return a row's records in their places, those after an offset."""

    def load_blob(name: str) -> bytes:
        return tables.packer.expand(tables.blobs[session.tenant, name])

    version = version_of(row.data)
    records = tables.packer.unpack(row.data, load_blob)
    return [
        Entry(offset, row.at, row.lane, record, version)
        for offset, record in enumerate(records, row.first_offset)
        if offset > after
    ]


def size_of(tables: Tables, session: SessionRow, row: LogRow) -> int:
    """Return how large a row is when it is unpacked, with the large values beside it."""
    names = blob_names(row.data, tables.packer) if row.data[1] & HAS_BLOBS else ()
    blobs = (tables.blobs[session.tenant, name] for name in names)
    return size_of_row(row.data) + sum(map(size_of_value, blobs))


def arrivals_after(
    tables: Tables, session: SessionRow, lane: LaneRow, seen: int
) -> tuple[Entry, ...]:
    """Return what others added to the lane after the last arrival that its owner has seen."""
    if lane.last_arrival <= seen:
        return ()
    found: list[Entry] = []
    for row in rows_after(session, seen):
        if row.is_arrival and row.lane == lane.name:
            found += entries_of(tables, session, row, seen)
    return tuple(found)
