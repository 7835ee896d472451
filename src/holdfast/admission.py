"""What comes in from outside, checked and made ready for a lane's inbox."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.core import codec
from holdfast.core import record as r
from holdfast.core.message import Content, File, Image, Text
from holdfast.core.record import AnyRecord
from holdfast.errors import HoldfastError, InvalidMessage, MessageTooLarge
from holdfast.store import Admission, Receipt, Store

MAX_MESSAGE = 32 * 1024 * 1024

Part = str | Text | Image | File
Said = Part | Sequence[Part]


def content_of(message: Said) -> Content:
    """Return a message as its parts, or say what is wrong with it."""
    items: Any = (message,) if isinstance(message, Part) else message
    if not isinstance(items, Sequence) or isinstance(items, bytes) or not items:
        raise InvalidMessage(
            "a message is a text, or a sequence of texts, images and files with at least one"
        )
    content = tuple(part_of(item) for item in items)
    size = sum(size_of(part) for part in content)
    if size == 0:
        raise InvalidMessage("a message cannot be empty")
    if size > MAX_MESSAGE:
        raise MessageTooLarge(
            f"the message has {size:,} bytes, and {MAX_MESSAGE:,} is the most: "
            "put large files where tools can read them, and send where they are",
            size=size,
            limit=MAX_MESSAGE,
        )
    return content


def part_of(item: Part) -> Text | Image | File:
    if isinstance(item, str):
        return Text(item)
    if isinstance(item, Text | Image | File):
        return item
    raise InvalidMessage(
        f"a {type(item).__name__} cannot be part of a message: use str, Text, Image or File"
    )


def size_of(part: Text | Image | File) -> int:
    if isinstance(part, Text):
        return len(part.text.encode(errors="surrogatepass"))
    return len(part.data) + len(part.url)


def fingerprint(*parts: object) -> str:
    """Return what tells one admission from another with the same dispatch id."""
    return sha256(repr(parts).encode(errors="surrogatepass")).hexdigest()[:32]


class Room(Struct, frozen=True):
    """How many messages may wait in a session and in all of a tenant's; 0 is any number."""

    session: int = 0
    tenant: int = 0


ANY_ROOM = Room()


class Inbox:
    """Admits arrivals to sessions."""

    def __init__(self, store: Store, clock: Clock, room: Room = ANY_ROOM) -> None:
        self._store = store
        self._clock = clock
        self._room = room

    async def admit(self, admission: Admission) -> Receipt:
        """Put one arrival into the log, or raise what the store says against it."""
        codec.encode(admission.records)
        room = self._room
        admission = replace(admission, most_queued=room.session, most_queued_of_tenant=room.tenant)
        [result] = await self._store.admit([admission])
        if isinstance(result, HoldfastError):
            raise result
        return result

    async def start(
        self,
        started: r.SessionStarted,
        content: Content,
        *,
        lane: str,
        dispatch_id: str | None,
        mark: str = "",
        by: str = "",
    ) -> Receipt:
        """Create a session with its first message."""
        delivery_id = self._clock.new_id("dlv")
        queued = r.DeliveryQueued(delivery_id=delivery_id, content=content, by=by)
        facts = replace(started, token="")
        return await self.admit(
            Admission(
                tenant=started.tenant,
                session_id=self._clock.new_id("ses"),
                lane=lane,
                delivery_id=delivery_id,
                kind="message",
                records=(started, queued),
                at=self._clock.now(),
                dispatch_id=dispatch_id or delivery_id,
                scope="tenant",
                fingerprint=mark or fingerprint(facts, content, lane),
                new=True,
                agent=started.agent,
                mode=started.mode,
                token=started.token,
            )
        )

    async def add(
        self,
        session_id: str,
        tenant: str,
        lane: str,
        record: r.DeliveryQueued | r.CancelRequested,
        *,
        scope: str,
        dispatch_id: str | None,
        mark: str = "",
    ) -> Receipt:
        """Add an arrival to a session that exists; the record's id is given here."""
        delivery_id = self._clock.new_id("dlv")
        named: AnyRecord = replace(record, delivery_id=delivery_id)
        kind = record.kind if isinstance(record, r.DeliveryQueued) else "cancel"
        return await self.admit(
            Admission(
                tenant=tenant,
                session_id=session_id,
                lane=lane,
                delivery_id=delivery_id,
                kind=kind,
                records=(named,),
                at=self._clock.now(),
                dispatch_id=dispatch_id or delivery_id,
                scope=scope,
                fingerprint=mark or fingerprint(record, lane),
                request_id=record.request_id if isinstance(record, r.DeliveryQueued) else "",
            )
        )
