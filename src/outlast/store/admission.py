"""Admissions: what arrives for a lane, and the receipt for it.

`log.py` says what `admit` promises. The functions at the end are the parts of an admission that
every database must do alike.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from outlast.core.codec import encode
from outlast.core.record import AnyRecord, CancelRequested, NewOutboxCursor, SessionStarted

WAIT_THEIR_TURN = ("message", "retry")
"""The kinds of deliveries that wait in a lane's queue; the others are taken ahead of them."""


class Admission(Struct, frozen=True, gc=False, kw_only=True):
    """One thing that arrives for a lane.

    `records` are the arrivals to add: `session.started` first where the session is new,
    then `delivery.queued` or `cancel.requested`; `body` is their encoding, where it is known
    already. The same `dispatch_id` in the same `scope` is
    the same admission if its `fingerprint` is the same too, and a conflict otherwise. `at` is
    when it came by the clock of who admits it; ahead of the store's, it is the store's. With
    `most_queued` a message is refused when so many wait in its session, and likewise in all
    sessions of its tenant; with `most_bytes` anything is refused if its session would have more
    bytes with it. 0 is any number. A new session gets the cursors of its `outbox` with
    it, is found by its `tags`, and knows the `parent` that started it, if one did. Its lane is
    pinned to the `deployment`.
    """

    tenant: str
    session_id: str
    lane: str
    delivery_id: str
    kind: str
    records: tuple[AnyRecord, ...]
    at: int
    dispatch_id: str
    scope: str
    fingerprint: str
    new: bool = False
    agent: str = ""
    mode: str = ""
    token: str = ""
    request_id: str = ""
    most_queued: int = 0
    most_queued_of_tenant: int = 0
    most_bytes: int = 0
    outbox: tuple[NewOutboxCursor, ...] = ()
    parent: str = ""
    tags: Mapping[str, str] = {}
    body: bytes = b""
    deployment: str = ""


class AdmissionReceipt(Struct, frozen=True, gc=False, kw_only=True):
    """Proof that a delivery is in the log. `position` counts what is queued before it."""

    session_id: str
    lane: str
    delivery_id: str
    offset: int
    position: int = 0
    duplicate: bool = False


def body_of(admission: Admission) -> bytes:
    """Return the encoding of an admission's records. Raises NotEncodable if there is none."""
    return admission.body or encode(admission.records)


def dated(admission: Admission, now: int) -> Admission:
    """Return an admission that came by now: all that follows in its log would be as late."""
    return replace(admission, at=now) if admission.at > now else admission


def is_named(admission: Admission) -> bool:
    """Whether the caller chose the dispatch's id; one of ours is the delivery's id."""
    return admission.dispatch_id != admission.delivery_id


def name_of(admission: Admission) -> bytes:
    """Return the name of a dispatch in its scope, as stores keep it."""
    # With the length, or "a b" + "c" would be "a" + "b c".
    return digest(f"{len(admission.scope)} {admission.scope} {admission.dispatch_id}")


def digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def queue_of(admission: Admission) -> str:
    """Return the queue that a new session stands in; empty if it stands in none."""
    places = (e.place for e in admission.records if isinstance(e, SessionStarted))
    return next((place.queue for place in places if place), "")


def has_open_cancel(records: Sequence[AnyRecord]) -> bool:
    """Whether there is a cancel that names nothing: it is made out to the turn that is open."""
    return any(is_open_cancel(record) for record in records)


def is_open_cancel(record: AnyRecord) -> bool:
    return isinstance(record, CancelRequested) and not (record.turn or record.message)


def with_turn(record: AnyRecord, turn: str) -> AnyRecord:
    """Give a cancel that names nothing the turn that is open."""
    return replace(record, turn=turn) if is_open_cancel(record) else record
