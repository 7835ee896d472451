"""Arrivals: an admission as the database takes it, and what its answer means.

The checks and the writing itself are in functions/admit.sql.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from holdfast.core.codec import Packer, encode
from holdfast.core.record import FORMAT, AnyRecord, CancelRequested, NewOutlet, SessionStarted
from holdfast.errors import (
    DispatchConflict,
    HoldfastError,
    RequestClosed,
    SessionErased,
    SessionOver,
    TokenTaken,
    UnknownRequest,
    UnknownSession,
)
from holdfast.store import Admission, Receipt, queue_full
from holdfast.stores.postgres.blob import Blob, add_blobs
from holdfast.stores.postgres.entries import ARRIVAL, STARTS_OR_ENDS
from holdfast.stores.postgres.writer import AGAIN, Buffer, Hints, Wanted


class WantedAdmission(Wanted, omit_defaults=True, kw_only=True):
    """An admission as functions/admit.sql reads it."""

    tenant: str
    lane: str
    delivery: str
    kind: str
    name: str | None
    fingerprint: str
    new: bool
    agent: str
    mode: str
    token: str
    request: str
    at: int
    version: int
    count: int
    marks: int
    start: int
    size: int
    turn: str | UnsetType = UNSET
    most_queued: int | UnsetType = UNSET
    most_queued_of_tenant: int | UnsetType = UNSET
    blobs: list[Blob] | UnsetType = UNSET
    outlets: Sequence[NewOutlet] | UnsetType = UNSET
    parent: str | UnsetType = UNSET


class AdmissionEntry:
    """An admission on its way.

    A cancel that names no turn is made out to the one that is open at its place in the log.
    Only the database knows which that is, and only here can it be written down: so it is
    guessed first, and said again if the guess was wrong.
    """

    def __init__(self, admission: Admission, packer: Packer) -> None:
        self.session_id = admission.session_id
        self._admission = admission
        self._packer = packer
        self._packed = packer.pack(encode(admission.records))
        self._turn = "" if has_open_cancel(admission.records) else None
        self._was_sent = False

    def alone(self) -> None:
        """It has more to look at than one statement could."""

    def prepare(self, buffer: Buffer) -> WantedAdmission:
        admission = self._admission
        start, size = buffer.add(self._packed.data)
        is_start = any(type(record) is SessionStarted for record in admission.records)
        wanted = WantedAdmission(
            tenant=admission.tenant,
            session=admission.session_id,
            lane=admission.lane,
            delivery=admission.delivery_id,
            kind=admission.kind,
            name=name_of(admission) if is_named(admission) else None,
            fingerprint=digest(admission.fingerprint),
            new=admission.new,
            agent=admission.agent,
            mode=admission.mode,
            token=admission.token,
            request=admission.request_id,
            at=admission.at,
            version=FORMAT,
            count=len(admission.records),
            marks=ARRIVAL | (STARTS_OR_ENDS if is_start else 0),
            start=start,
            size=size,
        )
        if admission.most_queued:
            wanted.most_queued = admission.most_queued
        if admission.most_queued_of_tenant:
            wanted.most_queued_of_tenant = admission.most_queued_of_tenant
        if self._turn is not None:
            wanted.turn = self._turn
        if admission.outlets:
            wanted.outlets = admission.outlets
        if admission.parent:
            wanted.parent = admission.parent
        if self._packed.blobs:
            wanted.blobs = add_blobs(self._packed, self._packer, buffer)
        return wanted

    def accept(self, answer: list[Any], hints: Hints) -> Receipt | HoldfastError | object:
        match answer:
            case ["admitted", offset, position]:
                hints[self.session_id] = True
                return self._receipt(offset, position)
            case ["repeated", True, session_id, lane, delivery_id, offset, position]:
                is_this_one = self._was_sent and delivery_id == self._admission.delivery_id
                return Receipt(
                    session_id=session_id,
                    lane=lane,
                    delivery_id=delivery_id,
                    offset=offset,
                    position=position,
                    duplicate=not is_this_one,
                )
            case ["turn", turn]:
                self.make_out_to(turn)
                return AGAIN
        return refuse(self._admission, answer)

    def _receipt(self, offset: int, position: int) -> Receipt:
        return Receipt(
            session_id=self._admission.session_id,
            lane=self._admission.lane,
            delivery_id=self._admission.delivery_id,
            offset=offset,
            position=position,
        )

    def make_out_to(self, turn: str) -> None:
        """Give a cancel that names no turn the one that is open."""
        self._turn = turn
        records = [with_turn(record, turn) for record in self._admission.records]
        self._packed = self._packer.pack(encode(records))

    def doubt(self) -> None:
        """Should it be found to have been admitted, it was by this very attempt."""
        self._was_sent = True


def is_named(admission: Admission) -> bool:
    """Whether the caller chose the dispatch's id; one of ours is the delivery's id."""
    return admission.dispatch_id != admission.delivery_id


def name_of(admission: Admission) -> str:
    return digest(f"{len(admission.scope)} {admission.scope} {admission.dispatch_id}")


def digest(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def has_open_cancel(records: tuple[AnyRecord, ...]) -> bool:
    return any(type(record) is CancelRequested and not record.turn for record in records)


def with_turn(record: AnyRecord, turn: str) -> AnyRecord:
    """Give a cancel that names no turn the one that is open."""
    if isinstance(record, CancelRequested) and not record.turn:
        return replace(record, turn=turn)
    return record


def refuse(admission: Admission, answer: list[Any]) -> HoldfastError:
    """Return the error that says why an admission was refused."""
    session_id, request_id = admission.session_id, admission.request_id
    match answer:
        case ["repeated", False, *_]:
            return DispatchConflict(
                f"dispatch {admission.dispatch_id!r} was used for other content;"
                " use a new dispatch_id for new content",
                dispatch_id=admission.dispatch_id,
            )
        case ["erased"]:
            return SessionErased(
                f"what dispatch {admission.dispatch_id!r} had started was erased;"
                " use a new dispatch_id to start anew",
                dispatch_id=admission.dispatch_id,
            )
        case ["exists"]:
            return DispatchConflict(
                f"session {session_id} exists already; start one under a new id",
                session_id=session_id,
            )
        case ["token_taken"]:
            return TokenTaken(
                "this continuation token leads to another session; choose another one"
            )
        case ["unknown_session"]:
            return UnknownSession(
                f"there is no session {session_id}; check its id", session_id=session_id
            )
        case ["over", how]:
            return SessionOver(
                f"session {session_id} is {how}; start a new one", session_id=session_id
            )
        case ["queue_full", "session"]:
            return queue_full("session", session_id, admission.most_queued)
        case ["queue_full", "tenant"]:
            return queue_full("tenant", admission.tenant, admission.most_queued_of_tenant)
        case ["unknown_request"]:
            return UnknownRequest(
                f"session {session_id} has no request {request_id}; check its id",
                request_id=request_id,
            )
        case ["closed", state]:
            return RequestClosed(
                f"request {request_id} is {state}; it takes no more answers",
                request_id=request_id,
                state=state,
            )
    raise AssertionError(answer)
