"""An admission as the database takes it, and the meaning of its answer.

functions/admission.sql checks and writes it. Admissions that a commit sends to other sessions go
out with the commit: `commit.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from outlast.core.codec import Packer, encode
from outlast.core.record import FORMAT, NewOutboxCursor, SessionStarted
from outlast.errors import OutlastError
from outlast.store import Admission, AdmissionReceipt
from outlast.store.admission import (
    body_of,
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
from outlast.stores.postgres.row import ARRIVAL, STARTS_OR_ENDS, BlobPart, add_blobs
from outlast.stores.postgres.writer import GroupBuffer, Hints, WriteItem, WriteRequest


class AdmissionJson(WriteRequest, omit_defaults=True, kw_only=True):
    """An admission as functions/admission.sql reads it."""

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
    bytes: int
    turn: str | UnsetType = UNSET
    most_queued: int | UnsetType = UNSET
    most_queued_of_tenant: int | UnsetType = UNSET
    most_bytes: int | UnsetType = UNSET
    blobs: list[BlobPart] | UnsetType = UNSET
    outbox: Sequence[NewOutboxCursor] | UnsetType = UNSET
    parent: str | UnsetType = UNSET
    tags: Mapping[str, str] | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    deployment: str | UnsetType = UNSET


class AdmissionItem(WriteItem[AdmissionReceipt | OutlastError]):
    """An admission on its way.

    A cancel that names no turn is addressed to the turn that is open at its place in the log. Only
    the database knows which that is, and only this process can encode it: so the first try names
    none, and the answer names the open one for the next try.
    """

    def __init__(self, admission: Admission, packer: Packer) -> None:
        body = body_of(admission)
        super().__init__(admission.session_id, len(body))
        self._admission = admission
        self._packer = packer
        self._packed = packer.pack(body)
        self._bytes = len(body)
        # The empty text asks which turn is open; None says that it does not matter.
        self._turn = "" if has_open_cancel(admission.records) else None
        self._was_sent = False

    def prepare(self, buffer: GroupBuffer) -> AdmissionJson:
        admission = self._admission
        start, size = buffer.add(self._packed.data)
        is_start = any(type(record) is SessionStarted for record in admission.records)
        wanted = AdmissionJson(
            tenant=admission.tenant,
            session=admission.session_id,
            lane=admission.lane,
            delivery=admission.delivery_id,
            kind=admission.kind,
            name=name_of(admission).hex() if is_named(admission) else None,
            fingerprint=digest(admission.fingerprint).hex(),
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
            bytes=self._bytes,
        )
        if admission.most_queued:
            wanted.most_queued = admission.most_queued
        if admission.most_queued_of_tenant:
            wanted.most_queued_of_tenant = admission.most_queued_of_tenant
        if admission.most_bytes:
            wanted.most_bytes = admission.most_bytes
        if self._turn is not None:
            wanted.turn = self._turn
        if admission.outbox:
            wanted.outbox = admission.outbox
        if admission.parent:
            wanted.parent = admission.parent
        if admission.tags:
            wanted.tags = admission.tags
        if is_start and (queue := queue_of(admission)):
            wanted.queue = queue
        if admission.deployment:
            wanted.deployment = admission.deployment
        if self._packed.blobs:
            wanted.blobs = add_blobs(self._packed, self._packer, buffer)
        return wanted

    def accept(self, answer: list[Any], hints: Hints) -> AdmissionReceipt | OutlastError | None:
        match answer:
            case ["admitted", offset, position]:
                hints[self.session_id] = True
                return self._receipt(offset, position)
            case ["repeated", True, session_id, lane, delivery_id, offset, position]:
                # Its own first try was written and the answer got lost: for the caller that is no
                # duplicate.
                is_this_one = self._was_sent and delivery_id == self._admission.delivery_id
                return AdmissionReceipt(
                    session_id=session_id,
                    lane=lane,
                    delivery_id=delivery_id,
                    offset=offset,
                    position=position,
                    duplicate=not is_this_one,
                )
            case ["turn", turn]:
                self.address_to(turn)
                return None
        return refuse(self._admission, answer)

    def _receipt(self, offset: int, position: int) -> AdmissionReceipt:
        return AdmissionReceipt(
            session_id=self._admission.session_id,
            lane=self._admission.lane,
            delivery_id=self._admission.delivery_id,
            offset=offset,
            position=position,
        )

    def address_to(self, turn: str) -> None:
        """Address a cancel that names no turn to the open one."""
        self._turn = turn
        body = encode([with_turn(record, turn) for record in self._admission.records])
        self._packed, self._bytes = self._packer.pack(body), len(body)

    def doubt(self) -> None:
        """Remember that the admission, if the store has it, was made by this very item."""
        self._was_sent = True


def refuse(admission: Admission, answer: list[Any]) -> OutlastError:
    """Return the error that says why an admission was refused."""
    session_id, request_id = admission.session_id, admission.request_id
    match answer:
        case ["repeated", False, *_]:
            return other_content(admission.dispatch_id)
        case ["erased"]:
            return session_erased(admission.dispatch_id)
        case ["exists"]:
            return session_exists(session_id)
        case ["token_taken"]:
            return token_taken()
        case ["unknown_session"]:
            return unknown_session(session_id)
        case ["over", how]:
            return session_over(session_id, how)
        case ["queue_full", "session"]:
            return queue_full("session", session_id, admission.most_queued)
        case ["queue_full", "tenant"]:
            return queue_full("tenant", admission.tenant, admission.most_queued_of_tenant)
        case ["too_large"]:
            return session_too_large(session_id, admission.most_bytes)
        case ["unknown_request"]:
            return unknown_request(session_id, request_id)
        case ["closed", state]:
            return request_closed(request_id, state)
    raise AssertionError(answer)
