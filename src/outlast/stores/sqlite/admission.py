"""Arrivals: deliveries that callers, and commits of other sessions, add to a lane's inbox.

Each is written at most once. Owns the checks that refuse one, and appending a row to the log,
which `commit.py` uses too.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from outlast.core.codec import encode
from outlast.core.record import FORMAT, Entry, SessionStarted
from outlast.errors import OutlastError
from outlast.store import WAIT_THEIR_TURN, Admission, AdmissionReceipt
from outlast.store.admission import (
    body_of,
    dated,
    digest,
    has_open_cancel,
    is_named,
    name_of,
    queue_of,
    with_turn,
)
from outlast.store.refusal import (
    other_content,
    queue_full,
    request_closed,
    session_erased,
    session_exists,
    session_over,
    session_too_large,
    token_taken,
    unknown_request,
    unknown_session,
)
from outlast.stores.sqlite import outbox
from outlast.stores.sqlite.database import (
    OFFSETS,
    Database,
    Row,
    column_of,
    key_of,
    lane_of,
    to_json,
)

ARRIVAL = 1
CHANGES_SLICES = 2
STARTS_OR_ENDS = 4

IS_MISSING = (0,)


class Appended(NamedTuple):
    """Where records stand in the log, and when they were written."""

    first_offset: int
    at: int


def find_end(db: Database, sid: int) -> tuple[int, int]:
    """Return the key of a session's next row, and the time of its last."""
    base = key_of(sid, 0)
    last = db.one("last_row", {"base": base, "top": base | OFFSETS})
    return (last[0] + last[1], last[2]) if last else (base | 1, 0)


def append(
    db: Database, key: int, lane: str, body: bytes, count: int, at: int, marks: int
) -> bytes:
    """Write encoded records as the next row of a log, and return what was stored."""
    packed = db.packer.pack(body)
    if packed.blobs:
        # Before the row, in one transaction: no row ever names a blob that is not there.
        keep_blobs(db, key >> 32, packed.blobs)
    db.written += len(packed.data)
    row = {
        "key": key,
        "records": count,
        "lane": column_of(lane),
        "at": at,
        "marks": marks,
        "data": packed.data,
    }
    db.run("append", row)
    return packed.data


def tenant_of(db: Database, sid: int) -> str:
    row = db.one("tenant", {"sid": sid})
    assert row is not None
    return str(row[0])


def keep_blobs(db: Database, sid: int, blobs: Mapping[str, bytes]) -> None:
    """Note that a session uses blobs, and write those that are new."""
    tenant = tenant_of(db, sid)
    for name, value in blobs.items():
        key = {"tenant": tenant, "hash": bytes.fromhex(name), "sid": sid}
        # Touched even where the value is there: a blob that is used again must not be collected as
        # old.
        if db.one("use_blob", key) == IS_MISSING:
            data = db.packer.squeeze(value)
            db.written += len(data)
            db.run("put_blob", {**key, "data": data})


def last_commit(db: Database, sid: int, lane: str, *, has_records: bool) -> Appended:
    """Return where the last commit of a lane's owner stands."""
    base = key_of(sid, 0)
    bounds = {"base": base, "top": base | OFFSETS, "lane": column_of(lane)}
    # A commit without records has no row; it stood at the end of the log.
    if has_records and (row := db.one("last_commit", bounds)):
        return Appended(row[0] & OFFSETS, row[2])
    key, at = find_end(db, sid)
    return Appended(key & OFFSETS, at)


def arrivals_after(db: Database, sid: int, lane: str, seen: int, last: int) -> tuple[Entry, ...]:
    """Return what others added to a lane after the last arrival that its owner has seen."""
    rows: list[Row] = db.all(
        "arrivals",
        {
            "base": key_of(sid, 0),
            "first": key_of(sid, seen + 1),
            "last": key_of(sid, last),
            "lane": column_of(lane),
        },
    )
    tenant = tenant_of(db, sid)
    return tuple(entry for row in rows for entry in db.entries(tenant, row, seen))


class ArrivalTarget(NamedTuple):
    """A session, and the lane of it that something arrives for. A lane yet to be made has no id."""

    sid: int
    agent: str
    queue: str
    lid: int | None
    turn: str


def write_admission(
    db: Database, admission: Admission, body: bytes
) -> AdmissionReceipt | OutlastError:
    """Add one arrival, or say why not; then nothing was changed."""
    try:
        # A repeated arrival gets its first receipt, even if the session would refuse it by now.
        return find_repeated(db, admission) or admit(db, dated(admission, db.clock.now()), body)
    except OutlastError as refusal:
        return refusal


def find_repeated(db: Database, admission: Admission) -> AdmissionReceipt | None:
    # An id that the caller chose is unique in its scope; one of ours is the delivery's, which is so
    # everywhere.
    if is_named(admission):
        key = {"tenant": admission.tenant, "name": name_of(admission)}
        row = db.one("receipt_by_dispatch", key)
    else:
        row = db.one("receipt_by_delivery", {"delivery_id": admission.delivery_id})
    return repeat(admission, row) if row else None


def repeat(admission: Admission, row: Row) -> AdmissionReceipt:
    session_id, lane, delivery_id, key, position, fingerprint = row
    # The tombstone keeps hashes of dispatch ids, so that a start which is retried does not bring an
    # erased session back.
    if session_id is None:
        raise session_erased(admission.dispatch_id)
    if fingerprint != digest(admission.fingerprint):
        raise other_content(admission.dispatch_id)
    return AdmissionReceipt(
        session_id=session_id,
        lane=lane_of(lane),
        delivery_id=delivery_id,
        offset=key & OFFSETS,
        position=position,
        duplicate=True,
    )


def admit(db: Database, admission: Admission, body: bytes) -> AdmissionReceipt:
    """Check first, then write: a refusal must find nothing written."""
    if admission.new:
        check_new(db, admission)
        check_room(db, admission, None, len(body))
        target = start_session(db, admission)
    else:
        target = find_target(db, admission)
        check_room(db, admission, target.sid, len(body))
        if admission.kind == "reply":
            check_request(db, admission, target.sid)
    # Which turn is meant is known only here, in the transaction: outside, the turn might be another
    # by now.
    if has_open_cancel(admission.records) and target.turn:
        body = encode([with_turn(record, target.turn) for record in admission.records])
    return write(db, admission, target, body)


def check_new(db: Database, admission: Admission) -> None:
    if db.one("target", {"session_id": admission.session_id, "lane": admission.lane}):
        raise session_exists(admission.session_id)
    key = {"tenant": admission.tenant, "token": admission.token}
    if admission.token and db.one("owner_of_token", key):
        raise token_taken()


def start_session(db: Database, admission: Admission) -> ArrivalTarget:
    row = db.one(
        "add_session",
        {
            "session_id": admission.session_id,
            "tenant": admission.tenant,
            "agent": admission.agent,
            "mode": admission.mode,
            "queue": queue_of(admission),
            "at": admission.at,
            "parent": admission.parent,
        },
    )
    assert row is not None
    if admission.token:
        key = {"tenant": admission.tenant, "token": admission.token, "sid": row[0]}
        db.run("add_token", key)
    if admission.tags:
        key = {"tenant": admission.tenant, "session_id": admission.session_id, "sid": row[0]}
        db.run("add_tags", {**key, "tags": to_json(admission.tags)})
    if admission.outbox:
        outbox.add(db, row[0], admission.outbox)
    return ArrivalTarget(row[0], admission.agent, queue_of(admission), None, "")


def find_target(db: Database, admission: Admission) -> ArrivalTarget:
    row = db.one("target", {"session_id": admission.session_id, "lane": admission.lane})
    # In the same words: another tenant's session is not told from one that does not exist.
    if row is None or row[1] != admission.tenant:
        raise unknown_session(admission.session_id)
    sid, _, agent, queue, over, lid, turn = row
    if over:
        raise session_over(admission.session_id, over)
    return ArrivalTarget(sid, agent, queue, lid, turn or "")


def check_room(db: Database, admission: Admission, sid: int | None, size: int) -> None:
    """Refuse what its session has no room for, and a message that its queue has none for."""
    waits = admission.kind in WAIT_THEIR_TURN
    if ((waits and admission.most_queued) or admission.most_bytes) and sid is not None:
        row = db.one("room_in_session", {"sid": sid})
        assert row is not None
        if waits and 0 < admission.most_queued <= row[0]:
            raise queue_full("session", admission.session_id, admission.most_queued)
        if 0 < admission.most_bytes < row[1] + size:
            raise session_too_large(admission.session_id, admission.most_bytes)
    if waits and admission.most_queued_of_tenant:
        waiting = db.one("queued_in_tenant", {"tenant": admission.tenant})
        if waiting and waiting[0] >= admission.most_queued_of_tenant:
            raise queue_full("tenant", admission.tenant, admission.most_queued_of_tenant)


def check_request(db: Database, admission: Admission, sid: int) -> None:
    row = db.one("request_to_answer", {"request_id": admission.request_id, "sid": sid})
    if row is None:
        raise unknown_request(admission.session_id, admission.request_id)
    state, expires_at = row
    # Its lane may not have come to record that yet; by the store's clock the time is up.
    if state == "open" and 0 < expires_at <= db.clock.now():
        state = "expired"
    if state != "open":
        raise request_closed(admission.request_id, state)


def write(
    db: Database, admission: Admission, target: ArrivalTarget, body: bytes
) -> AdmissionReceipt:
    starts = any(type(record) is SessionStarted for record in admission.records)
    marks = ARRIVAL | (STARTS_OR_ENDS if starts else 0)
    count = len(admission.records)
    key, last_at = find_end(db, target.sid)
    # Time never goes back within a session, whichever process has admitted what.
    at = max(admission.at, last_at)
    append(db, key, admission.lane, body, count, at, marks)
    first_offset = key & OFFSETS
    offset = first_offset + count - 1
    if admission.kind == "reply":
        # In the transaction that adds the reply: of two answers at once the second finds the
        # request closed.
        db.run("answer_request", {"request_id": admission.request_id, "offset": offset})
    position = receive(db, admission, target, offset, len(body))
    deliver(db, admission, key_of(target.sid, offset), position)
    db.tell(admission.session_id, arrived=True)
    return AdmissionReceipt(
        session_id=admission.session_id,
        lane=admission.lane,
        delivery_id=admission.delivery_id,
        offset=offset,
        position=position,
    )


def receive(
    db: Database, admission: Admission, target: ArrivalTarget, offset: int, size: int
) -> int:
    """Make the lane ready, and return how many messages wait before this one."""
    row = db.one(
        "receive",
        {
            "lid": target.lid or add_lane(db, admission, target),
            "offset": offset,
            "now": db.clock.now(),
            "waits": admission.kind in WAIT_THEIR_TURN,
            "size": size,
            "version": FORMAT,
        },
    )
    assert row is not None
    return int(row[0])


def add_lane(db: Database, admission: Admission, target: ArrivalTarget) -> int:
    row = db.one(
        "add_lane",
        {
            "sid": target.sid,
            "lane": admission.lane,
            "agent": target.agent,
            "tenant": admission.tenant,
            "queue": target.queue,
            "version": FORMAT,
        },
    )
    assert row is not None
    lid, now = int(row[0]), db.clock.now()
    if admission.deployment:
        named = {"deployment": admission.deployment, "stays": 0}
        db.run("pin", {"lid": lid, **named, "now": now})
    # A lane that is added to a session goes with that session's others.
    elif not admission.new:
        db.run("pin_with_session", {"lid": lid, "sid": target.sid, "now": now})
    return lid


def deliver(db: Database, admission: Admission, key: int, position: int) -> None:
    db.run(
        "add_delivery",
        {
            "key": key,
            "delivery_id": admission.delivery_id,
            "lane": column_of(admission.lane),
            "kind": admission.kind,
            "position": position,
            "fingerprint": digest(admission.fingerprint),
        },
    )
    if is_named(admission):
        params = {"tenant": admission.tenant, "name": name_of(admission), "key": key}
        db.run("add_dispatch", params)


# Sends of commits


def send(db: Database, sent: Iterable[Admission]) -> None:
    """Admit what commits send to other sessions; drop what cannot be admitted."""
    for admission in sent:
        try:
            body = body_of(admission)
        # The commit that sends it stands: a parent must not fail because its child was erased.
        except OutlastError:
            continue
        if not has_used_id(db, admission):
            write_admission(db, admission, body)


def has_used_id(db: Database, admission: Admission) -> bool:
    """Whether its delivery is there under another name: writing it would fail the transaction."""
    key = {"delivery_id": admission.delivery_id}
    return is_named(admission) and db.one("receipt_by_delivery", key) is not None
