"""Events as text: encoded once as JSON, however many read them, and framed as NDJSON or SSE."""

from collections.abc import Callable, Sequence
from typing import get_args

from msgspec import Struct

from outlast.core.event import Event
from outlast.core.event import encode as encode_event
from outlast.core.record import AnyRecord
from outlast.errors import InvalidInput

INTERNAL = frozenset(kind.__struct_config__.tag for kind in get_args(AnyRecord) if kind.internal)


class EncodedEvent(Struct, frozen=True, gc=False):
    """One event as JSON text, and whether only readers of internals get it."""

    offset: int
    is_internal: bool
    data: bytes


class EventBatch(Struct, frozen=True, gc=False):
    """Lines in their order, and the cursor behind them and behind what is hidden there."""

    lines: Sequence[EncodedEvent]
    cursor: int


def line_of(event: Event) -> EncodedEvent:
    return EncodedEvent(event.offset, event.type in INTERNAL, encode_event(event))


Frame = Callable[[EventBatch], bytes]
"""Turns a batch into text, and one without events into a heartbeat."""


class StreamEncoding(Struct, frozen=True):
    """A media type and its framing; `opening` is sent before anything else."""

    media_type: str
    frame: Frame
    opening: bytes = b""


def frame_ndjson(batch: EventBatch) -> bytes:
    return b"".join(line.data + b"\n" for line in batch.lines) or b"\n"


NDJSON = StreamEncoding("application/x-ndjson", frame_ndjson)


RETRY = 1000
"""Milliseconds after which a browser that lost the connection comes back."""


def frame_sse(batch: EventBatch) -> bytes:
    events = (b"id: %d\ndata: %b\n\n" % (line.offset, line.data) for line in batch.lines)
    return b"".join(events) or b":\n\n"


SSE = StreamEncoding("text/event-stream", frame_sse, b"retry: %d\n\n" % RETRY)


def cursor_of(last_event_id: str) -> int:
    """Return the cursor that a browser brings back."""
    if last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) <= 16:
        return int(last_event_id)
    raise InvalidInput("the header Last-Event-ID is not a cursor: send back an id as it came")
