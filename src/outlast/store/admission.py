"""How things arrive: what is admitted to a lane's inbox, and the proof of it.

Below the contract is what every store has to do alike with an admission.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from outlast.core.record import AnyRecord, CancelRequested, NewOutboxCursor
from outlast.errors import OutlastError

WAIT_THEIR_TURN = ("message", "retry")
"""The kinds of deliveries that wait in a lane's queue; the others are taken ahead of them."""


class Admission(Struct, frozen=True, gc=False, kw_only=True):
    """One thing that arrives for a lane.

    `records` are the arrivals to add: `session.started` first where the session is new,
    then `delivery.queued` or `cancel.requested`. The same `dispatch_id` in the same `scope` is
    the same admission if its `fingerprint` is the same too, and a conflict otherwise. `at` is
    when it came by the clock of who admits it; ahead of the store's, it is the store's. With
    `most_queued` a message is refused when so many wait in its session, and likewise in all
    sessions of its tenant; 0 is any number. A new session gets the cursors of its `outbox` with
    it, and knows the `parent` that started it, if one did.
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
    outbox: tuple[NewOutboxCursor, ...] = ()
    parent: str = ""


class AdmissionReceipt(Struct, frozen=True, gc=False, kw_only=True):
    """Proof that a delivery is in the log. `position` counts what is queued before it."""

    session_id: str
    lane: str
    delivery_id: str
    offset: int
    position: int = 0
    duplicate: bool = False


class Admissions(Protocol):
    """The inboxes of lanes."""

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        """Add each arrival to its lane's inbox, and say for each what became of it.

        A repeated dispatch returns the first receipt, marked as duplicate; with other
        content it is DispatchConflict, and of a session that was erased it is SessionErased.
        A new session, its first delivery, its token and its outbox are one admission; a token in
        use is TokenTaken. A session that is over is SessionOver, one that does not exist
        UnknownSession. An answer closes its request in the same transaction: to a closed or
        expired one it is RequestClosed, to one that never was UnknownRequest. A message to a
        queue that is full is QueueFull. A cancel that names no turn is given the turn that is
        open at its place in the log. Each admitted arrival makes its lane ready at once.
        """
        ...


def dated(admission: Admission, now: int) -> Admission:
    """Return an admission that came by now: all that follows in its log would be as late."""
    return replace(admission, at=now) if admission.at > now else admission


def is_named(admission: Admission) -> bool:
    """Whether the caller chose the dispatch's id; one of ours is the delivery's id."""
    return admission.dispatch_id != admission.delivery_id


def name_of(admission: Admission) -> bytes:
    """Return the name of a dispatch in its scope, as stores keep it."""
    return digest(f"{len(admission.scope)} {admission.scope} {admission.dispatch_id}")


def digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def has_open_cancel(records: Sequence[AnyRecord]) -> bool:
    """Whether there is a cancel that names no turn: it is made out to the one that is open."""
    return any(type(record) is CancelRequested and not record.turn for record in records)


def with_turn(record: AnyRecord, turn: str) -> AnyRecord:
    """Give a cancel that names no turn the one that is open."""
    if isinstance(record, CancelRequested) and not record.turn:
        return replace(record, turn=turn)
    return record
