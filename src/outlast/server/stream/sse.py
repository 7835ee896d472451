"""A stream as server-sent events: `id` is the cursor, a comment is a sign of life."""

from __future__ import annotations

from outlast.errors import InvalidInput
from outlast.server.stream.encoding import StreamEncoding
from outlast.server.stream.line import EventBatch

RETRY = 1000
"""Milliseconds after which a browser that lost the connection comes back."""


def frame(batch: EventBatch) -> bytes:
    events = (b"id: %d\ndata: %b\n\n" % (line.offset, line.data) for line in batch.lines)
    return b"".join(events) or b":\n\n"


SSE = StreamEncoding("text/event-stream", frame, b"retry: %d\n\n" % RETRY)


def cursor_of(last_event_id: str) -> int:
    """Return the cursor that a browser brings back."""
    if last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) <= 16:
        return int(last_event_id)
    raise InvalidInput("the header Last-Event-ID is not a cursor: send back an id as it came")
