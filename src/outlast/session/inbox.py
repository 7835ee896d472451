"""Checks what arrives from outside and admits it to a lane's inbox.

Owns what an arrival is compared by when it is sent again, and how many there may be. Refuses to
know what becomes of it: the lane's owner takes it (`core/decide.py`). The one transaction in
which it is written is the store's `admit`.
"""

from base64 import b64encode
from datetime import datetime, timedelta
from functools import cache
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import fields, replace

from outlast.clock import Clock
from outlast.core import codec
from outlast.core import record as r
from outlast.core.instant import milliseconds, read_instant, since_epoch
from outlast.core.json_text import JsonRefused, read_json
from outlast.core.message import MAX_MESSAGE
from outlast.core.name import KEYED, check_id, storable_key
from outlast.errors import InvalidInput, MessageTooLarge, OutlastError
from outlast.net import trace_context
from outlast.store import (
    WAIT_THEIR_TURN,
    Admission,
    AdmissionReceipt,
    RequestInfo,
    Store,
    StoreClock,
)

ANYBODY = "tenant"
"""The scope of dispatch ids that the users of a tenant choose."""

STATE, CONTEXT, EVENT = "state", "context", "event"
"""The kinds of deliveries that change state, and what the model sees, and of events for runs."""

Arrival = (
    r.DeliveryQueued
    | r.CancelRequested
    | r.StateChangeRequested
    | r.ContextChangeRequested
    | r.EventSent
)
"""A record that comes from outside for a session that exists."""


def kind_of(record: Arrival) -> str:
    """Return the kind of a delivery, as it is listed."""
    match record:
        case r.DeliveryQueued():
            return record.kind
        case r.CancelRequested():
            return "cancel"
        case r.ContextChangeRequested():
            return CONTEXT
        case r.EventSent():
            return EVENT
    return STATE


def keyed_token(agent: str, key: str) -> str:
    """Return the address of the one session of an agent that has a key."""
    return storable_key(f"{KEYED}{agent}:{check_id('key', key)}")


def instant_of(
    deadline: datetime | timedelta | None, clock: StoreClock, dispatch_id: str | None = None
) -> int:
    """Return a deadline in milliseconds since the epoch, 0 for none.

    A message with a `dispatch_id` may be repeated after its deadline without being refused.
    """
    if deadline is None:
        return 0
    if isinstance(deadline, timedelta):
        instant = clock.latest() + milliseconds(deadline)
    elif isinstance(deadline, datetime):
        instant = since_epoch("a deadline", deadline)
    else:
        raise InvalidInput(
            f"a deadline is a datetime with a time zone or a timedelta, not {deadline!r}"
        )
    # By the earlier bound: a deadline that may not have passed yet by the store's clock is taken.
    if instant <= clock.earliest() and dispatch_id is None:
        raise InvalidInput("the deadline has already passed: give a later one")
    # 0 says that there is none.
    return max(instant, 1)


def deadline_of(text: str | None) -> datetime | None:
    """Return a deadline that came as a text."""
    return None if text is None else read_instant("a deadline", text)


def callback_value(body: bytes, content_type: str) -> str:
    """Return what came in for a callback, as JSON text."""
    if len(body) > MAX_MESSAGE:
        raise MessageTooLarge(
            f"the body has {len(body):,} bytes, and {MAX_MESSAGE:,} is the most",
            size=len(body),
            limit=MAX_MESSAGE,
        )
    value: dict[str, Any] = {"content_type": content_type}
    try:
        if "json" in content_type.lower() and body:
            read_json(body)
        value["body"] = body.decode()
    except JsonRefused as error:
        raise InvalidInput(f"the body says that it is JSON: {error}") from None
    except UnicodeDecodeError:
        value |= {"body": b64encode(body).decode(), "base64": True}
    return msgspec.json.encode(value).decode()


def checked_url(url: str) -> str:
    """Return the address of a server without its last slash, if it is one."""
    if not isinstance(url, str):
        raise InvalidInput("public_url is a text: https://agents.example.com")
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query):
        raise InvalidInput("public_url is a URL without a query: https://agents.example.com")
    return url.rstrip("/")


def fingerprint_of(*parts: object) -> str:
    """Return what tells one admission from another with the same dispatch id.

    It is the same in every version of the code that says the same: a field that is new by then
    counts only where it is not as ever.
    """
    return sha256(codec.encode([said(part) for part in parts])).hexdigest()[:32]


def said(part: Any) -> Any:
    """Return a value without what goes without saying: fields that are as they are by default."""
    if isinstance(part, tuple):
        return [said(item) for item in part]
    if not isinstance(part, Struct):
        return part
    defaults = defaults_of(type(part))
    told = [
        (name, said(value))
        for name, default in defaults.items()
        if (value := getattr(part, name)) != default
    ]
    return [part.__struct_config__.tag, told]


@cache
def defaults_of(kind: type[Struct]) -> dict[str, Any]:
    return {each.name: each.default for each in sorted(fields(kind), key=lambda each: each.name)}


def without_deadline(record: Arrival) -> Arrival:
    """A deadline that is given as a span of time is another instant at each try."""
    return replace(record, deadline_at=0) if isinstance(record, r.DeliveryQueued) else record


def with_secret(cursor: r.NewOutboxCursor, secret: str) -> r.NewOutboxCursor:
    """Return an outbox cursor as the store keeps it: the caller's secret signs for its URL."""
    return replace(cursor, secret=secret) if cursor.url else cursor


def with_trace(record: r.AnyRecord, parent: str) -> r.AnyRecord:
    """Return a record with the span that it was sent in, if it can start a turn.

    The same dispatch sent again comes from another span: this is no part of its fingerprint.
    """
    starts = isinstance(record, r.DeliveryQueued) and record.kind != "reply"
    return replace(record, traceparent=parent) if starts else record


MIB = 1024 * 1024


class QueueLimits(Struct, frozen=True):
    """How many messages may wait, and how large a session may be; 0 is any number.

    Attributes:
        session: Messages that wait in one session.
        tenant: Messages that wait in all sessions of a tenant.
        session_bytes: A session of this size takes no more messages and no changes of its state,
            and its turns fail. A worker reads all of it into memory, where it takes several times
            as much.
    """

    session: int = 0
    tenant: int = 0
    session_bytes: int = 128 * MIB


ANY_ROOM = QueueLimits(session_bytes=0)


NEED_ROOM = (*WAIT_THEIR_TURN, STATE, EVENT)
"""Answers and cancels are taken whatever the size of the session: they end what it does."""


class Inbox:
    """Admits arrivals to sessions."""

    def __init__(
        self, store: Store, clock: Clock, room: QueueLimits = ANY_ROOM, *, is_traced: bool = True
    ) -> None:
        self._store = store
        self._clock = clock
        self._room = room
        self._is_traced = is_traced

    @property
    def store_clock(self) -> StoreClock:
        """The clock that dates what arrives, and from which spans count."""
        return self._store.clock

    async def admit(self, admission: Admission) -> AdmissionReceipt:
        """Put one arrival into the log, or raise what the store says against it."""
        room = self._room
        records = admission.records
        if self._is_traced and (parent := trace_context.current()):
            records = tuple(with_trace(record, parent) for record in records)
        admission = replace(
            admission,
            records=records,
            # Encoded once on its way in, and read back: a value of a wrong type would make the log
            # unreadable.
            body=codec.encode_checked(records),
            most_queued=room.session,
            most_queued_of_tenant=room.tenant,
            most_bytes=room.session_bytes if admission.kind in NEED_ROOM else 0,
        )
        [result] = await self._store.log.admit([admission])
        if isinstance(result, OutlastError):
            raise result
        return result

    async def add(
        self,
        session_id: str,
        tenant: str,
        lane: str,
        record: Arrival,
        *,
        scope: str,
        dispatch_id: str | None,
        fingerprint: str = "",
    ) -> AdmissionReceipt:
        """Add an arrival to a session that exists; the record's id is given here."""
        delivery_id = self._clock.new_id("dlv")
        named: r.AnyRecord = replace(record, delivery_id=delivery_id)
        kind = kind_of(record)
        return await self.admit(
            Admission(
                tenant=tenant,
                session_id=session_id,
                lane=lane,
                delivery_id=delivery_id,
                kind=kind,
                records=(named,),
                at=self.store_clock.date(),
                # An arrival that the caller has not named is its own dispatch: a store that asks
                # for it twice writes it once.
                dispatch_id=dispatch_id or delivery_id,
                scope=scope,
                # An arrival that the caller did not name is never compared with another.
                fingerprint=fingerprint
                or (fingerprint_of(without_deadline(record), lane) if dispatch_id else ""),
                request_id=record.request_id if isinstance(record, r.DeliveryQueued) else "",
            )
        )

    async def reply(self, request: RequestInfo, reply: r.DeliveryQueued) -> AdmissionReceipt:
        """Admit a reply from outside to the call that waits for it; a repeat is a duplicate."""
        return await self.add(
            request.session_id,
            request.tenant,
            request.lane,
            reply,
            scope=f"request:{request.request_id}",
            # The address is for one call: whoever posts twice gets the first receipt.
            dispatch_id="callback",
        )
