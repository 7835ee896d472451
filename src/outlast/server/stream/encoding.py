"""Events as text: encoded once as JSON, however many read them, and framed as NDJSON or SSE.

Owns what a reader without a scope does not see of an event. Which events a reader gets is
`reader.py`'s affair, what an event holds `core/event.py`'s.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from outlast.core.event import Cursor, Event, cursor_of
from outlast.core.event import encode as encode_event
from outlast.core.record import AnyRecord, AuthorizationRequired
from outlast.errors import InvalidCursor
from outlast.server.principal import SEND, Principal

INTERNAL = frozenset(kind.__struct_config__.tag for kind in get_args(AnyRecord) if kind.internal)
SIGN_IN = AuthorizationRequired.__struct_config__.tag


class Visibility(Struct, frozen=True, gc=False):
    """The rights of a reader: whether it sees internal events, and the addresses of sign-ins.

    The address of a sign-in is enough to complete it, so reading it takes the scope `send`.
    """

    internals: bool = False
    sign_ins: bool = False


def visibility(principal: Principal, internals: bool) -> Visibility:
    return Visibility(internals, principal.may(SEND))


class EncodedEvent(Struct, frozen=True, gc=False):
    """One event as JSON text, and whether only readers of internals get it.

    `redacted` is the text for readers that may not send, where it differs.
    """

    cursor: Cursor
    is_internal: bool
    data: bytes
    redacted: bytes = b""

    def seen_by(self, seen: Visibility) -> "EncodedEvent":
        if not self.redacted or seen.sign_ins:
            return self
        return EncodedEvent(self.cursor, self.is_internal, self.redacted)


class EventBatch(Struct, frozen=True, gc=False):
    """Lines in their order, and the cursor behind them and behind what is hidden there."""

    lines: Sequence[EncodedEvent]
    cursor: Cursor


def line_of(event: Event) -> EncodedEvent:
    redacted = b""
    if event.type == SIGN_IN:
        # Both texts once for all readers, however many there are.
        redacted = encode_event(replace(event, data={**event.data, "url": ""}))
    cursor, is_internal = cursor_of(event.cursor), event.type in INTERNAL
    return EncodedEvent(cursor, is_internal, encode_event(event), redacted)


Frame = Callable[[EventBatch], list[bytes]]
"""Turns a batch into pieces of text, and one without events into a heartbeat."""

LARGE = 16 * 1024


def pieces_of(parts: Iterable[bytes]) -> list[bytes]:
    """Join small parts and leave large ones as they are: all readers of a large event share it."""
    pieces: list[bytes] = []
    small: list[bytes] = []
    for part in parts:
        # Copying small parts together costs less than sending each by itself; large ones are never
        # copied.
        if len(part) < LARGE:
            small.append(part)
            continue
        pieces += [b"".join(small), part] if small else [part]
        small = []
    return [*pieces, b"".join(small)] if small else pieces


class StreamEncoding(Struct, frozen=True):
    """A media type and its framing; `opening` is sent before anything else."""

    media_type: str
    frame: Frame
    opening: bytes = b""


def frame_ndjson(batch: EventBatch) -> list[bytes]:
    return pieces_of(part for line in batch.lines for part in (line.data, b"\n")) or [b"\n"]


NDJSON = StreamEncoding("application/x-ndjson", frame_ndjson)


RETRY = 1000
"""Milliseconds after which a browser that lost the connection comes back."""


def frame_sse(batch: EventBatch) -> list[bytes]:
    events = ((f"id: {line.cursor}\ndata: ".encode(), line.data, b"\n\n") for line in batch.lines)
    return pieces_of(part for event in events for part in event) or [b":\n\n"]


SSE = StreamEncoding("text/event-stream", frame_sse, b"retry: %d\n\n" % RETRY)


def returning_cursor(last_event_id: str) -> Cursor:
    """Return the cursor that a browser brings back."""
    try:
        return cursor_of(last_event_id)
    except InvalidCursor:
        raise InvalidCursor(
            "the header Last-Event-ID is not a cursor: send back an id as it came",
            cursor="Last-Event-ID",
        ) from None
