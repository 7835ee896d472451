"""The words of the Durable Streams protocol: what a client may ask, and the marks it is given.

An offset is a cursor whose number has sixteen digits, so that offsets sort as text; its checksum
follows. The cursor of this protocol is something else: a number that keeps caches from answering a
poll for ever.
"""

import re
from math import ceil
from typing import Annotated

from fastapi import Query, Request
from msgspec import Struct

from outlast.clock import Clock
from outlast.core.codec import CHECKSUM_DIGITS
from outlast.core.event import Cursor, cursor_of
from outlast.server.error import ErrorResponse

BEGINNING = "-1"
NOW = "now"
LONG_POLL = "long-poll"
SSE = "sse"

DIGITS = 16
OFFSET = re.compile(rf"[0-9]{{{DIGITS}}}(-[0-9a-f]{{{CHECKSUM_DIGITS}}})?")

NEXT_OFFSET = "Stream-Next-Offset"
UP_TO_DATE = "Stream-Up-To-Date"
CLOSED = "Stream-Closed"
CURSOR = "Stream-Cursor"

EPOCH = 1_728_432_000_000
"""9 October 2024, in milliseconds: where the protocol begins to count intervals."""
INTERVAL = 20
LONGEST_JITTER = 3600
LONGEST_CURSOR = 15


class DurableQuery(Struct, frozen=True):
    """A client's query: from which offset, and whether it waits for more."""

    offset: str
    live: str
    cursor: int | None
    internals: bool

    def after(self, end: int) -> Cursor:
        """Return the cursor to read from; `end` is that of the log."""
        if self.offset == NOW:
            return Cursor(end)
        return Cursor(0) if self.offset == BEGINNING else cursor_of(self.offset)


async def asked(
    request: Request,
    offset: Annotated[
        str | None,
        Query(
            description="`-1` for the beginning, `now` for the end, or what was last given as"
            " `Stream-Next-Offset`. Needed with `live`.",
            examples=[BEGINNING],
        ),
    ] = None,
    live: Annotated[
        str | None,
        Query(description="`long-poll` or `sse`: wait for what is not there yet."),
    ] = None,
    cursor: Annotated[
        str | None, Query(description="What was last given as `Stream-Cursor`.")
    ] = None,
    internals: Annotated[
        bool, Query(description="Give internal events, too; needs the scope `internals`.")
    ] = False,
) -> DurableQuery:
    """Return what a request asks for, or refuse what makes no sense."""
    if len(request.query_params.getlist("offset")) > 1:
        raise invalid("there are several offsets")
    if live is not None and live not in (LONG_POLL, SSE):
        raise invalid(f"live is {LONG_POLL} or {SSE}")
    if live is not None and offset is None:
        raise invalid("to wait for more, say from where: offset is missing")
    if offset not in (None, BEGINNING, NOW) and not OFFSET.fullmatch(offset or ""):
        raise invalid(f"an offset is {BEGINNING}, {NOW}, or one that {NEXT_OFFSET} gave")
    return DurableQuery(offset or BEGINNING, live or "", number(cursor), internals)


def invalid(message: str) -> ErrorResponse:
    return ErrorResponse(400, "INVALID_OFFSET", message)


def number(cursor: str | None) -> int | None:
    """Return a cursor that came back; one that we never gave is none."""
    known = cursor is not None and cursor.isascii() and cursor.isdigit()
    return int(cursor) if cursor and known and len(cursor) <= LONGEST_CURSOR else None


def to_offset(cursor: Cursor) -> str:
    number = f"{cursor.offset:0{DIGITS}d}"
    return f"{number}-{cursor.checksum}" if cursor.checksum else number


def next_cursor(clock: Clock, given: int | None) -> int:
    """Return the number of the present interval, or one beyond what the client has."""
    now = (clock.now() - EPOCH) // (INTERVAL * 1000)
    if given is None or given < now:
        return int(now)
    return given + ceil(clock.jitter(LONGEST_JITTER) / INTERVAL)
