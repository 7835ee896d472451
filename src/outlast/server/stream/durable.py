"""The read side of the Durable Streams protocol on a session: pages, long polls, events.

The stream of a session is one of JSON messages, and is closed when the session is over. Nothing
is written here: what a client sends goes through the routes that say what it means.
"""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from outlast.core.event import Cursor
from outlast.core.instant import seconds
from outlast.log.reader import PAGE, confirm
from outlast.server.backend import ServerBackend
from outlast.server.principal import Principal
from outlast.server.stream import protocol as p
from outlast.server.stream.encoding import (
    EncodedEvent,
    EventBatch,
    Visibility,
    pieces_of,
    visibility,
)
from outlast.server.stream.reader import FeedReader, StreamCut, follow, is_closed
from outlast.server.stream.response import LaterResponse, StreamResponse, come_again
from outlast.server.stream.window import up_to_end
from outlast.store import SessionInfo

JSON = "application/json"
SHARED_WITH_NOBODY = "private, no-cache"
"""A client may keep a page, and asks each time whether it is still the one."""
CHUNK = 512 * 1024
LIFETIME = 60.0
"""Seconds after which a stream of events ends, so that its reader comes again."""


async def durable_response(
    backend: ServerBackend,
    request: Request,
    principal: Principal,
    info: SessionInfo,
    asked: p.DurableQuery,
) -> Response:
    """Answer a GET or a HEAD for the stream of a session that the caller may read."""
    log = backend.app.store.log
    if request.method == "HEAD":
        return about(info, await confirm(log, info.session_id, Cursor(info.end)))
    # Before the first byte, while the status can still say that the history is gone.
    after = await confirm(log, info.session_id, asked.after(info.end))
    seen = visibility(principal, asked.internals)
    if asked.live and backend.feeds.is_closed:
        raise come_again()
    if asked.live == p.LONG_POLL:
        return LaterResponse(
            partial(poll, backend, request, info, after, asked, seen), backend.hold(principal)
        )
    if asked.live == p.SSE:
        pieces = events(backend, request, info, after, asked, seen)
        return StreamResponse(pieces, backend.hold(principal), "text/event-stream")
    if asked.offset == p.NOW:
        return at_the_end(info, after)
    return await catch_up(backend, request, info, after, asked, seen)


def marks(cursor: Cursor, *, up_to_date: bool = True, closed: bool = False) -> dict[str, str]:
    """Return the headers that say where a response ends."""
    headers = {p.NEXT_OFFSET: p.to_offset(cursor)}
    if up_to_date:
        headers[p.UP_TO_DATE] = "true"
    if closed:
        headers[p.CLOSED] = "true"
    return headers


def about(info: SessionInfo, end: Cursor) -> Response:
    headers = marks(end, up_to_date=False, closed=is_closed(info))
    return Response(headers={**headers, "Cache-Control": "no-store"}, media_type=JSON)


def at_the_end(info: SessionInfo, end: Cursor) -> Response:
    headers = marks(end, closed=is_closed(info))
    return Response(b"[]", headers={**headers, "Cache-Control": "no-store"}, media_type=JSON)


async def catch_up(
    backend: ServerBackend,
    request: Request,
    info: SessionInfo,
    after: Cursor,
    asked: p.DurableQuery,
    seen: Visibility,
) -> Response:
    """Answer with what there is now, or with the next chunk of it."""
    lines, cursor = await chunk(backend, info, after, seen)
    up_to_date = cursor.offset >= info.end
    closed = up_to_date and is_closed(info)
    tag = etag(info, asked, seen, cursor, closed)
    headers = {
        **marks(cursor, up_to_date=up_to_date, closed=closed),
        "ETag": tag,
        "Cache-Control": SHARED_WITH_NOBODY,
        "Vary": "Authorization",
    }
    if tag in tags(request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    return Response(array(lines), headers=headers, media_type=JSON)


async def chunk(
    backend: ServerBackend, info: SessionInfo, after: Cursor, seen: Visibility
) -> tuple[list[EncodedEvent], Cursor]:
    lines: list[EncodedEvent] = []
    cursor, size = after, 0
    async for batch in up_to_end(
        backend.app.store, info, after, seen, PAGE, turns=backend.feeds.turns
    ):
        lines += batch.lines
        cursor = batch.cursor
        size += sum(len(line.data) for line in batch.lines)
        if size >= CHUNK:
            break
    return lines, cursor


def array(lines: Sequence[EncodedEvent]) -> bytes:
    return b"[" + b",".join(line.data for line in lines) + b"]"


def array_parts(lines: Sequence[EncodedEvent]) -> Iterator[bytes]:
    """Give the same as an event of a stream, in parts that are not copied."""
    before = b"event: data\ndata:["
    for line in lines:
        yield before
        yield line.data
        before = b","
    yield b"]"


def etag(
    info: SessionInfo, asked: p.DurableQuery, seen: Visibility, cursor: Cursor, closed: bool
) -> str:
    """Name a page: the same name always has the same bytes, also of two histories of a log."""
    marks = (":i" if seen.internals else "") + ("" if seen.sign_ins else ":r")
    end = ":c" if closed else ""
    return f'"{info.session_id}:{asked.offset}:{p.to_offset(cursor)}{marks}{end}"'


def tags(if_none_match: str) -> set[str]:
    return {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}


async def poll(
    backend: ServerBackend,
    request: Request,
    info: SessionInfo,
    after: Cursor,
    asked: p.DurableQuery,
    seen: Visibility,
) -> Response:
    """Answer as soon as there is something, or with 204 when there was nothing in time."""
    async with backend.feeds.open(info) as feed:
        reader = FeedReader(feed, info, after=after, seen=seen)
        try:
            batch = await reader.next(seconds(backend.settings.long_poll))
        except StreamCut:
            raise come_again() from None
        closed = reader.is_at_the_end
        headers = marks(reader.cursor, up_to_date=reader.is_up_to_date, closed=closed)
    # The poll may have waited for long: the caller's key may have been revoked meanwhile.
    await backend.check_still_valid(request)
    # Another number each time, or a cache would answer the next poll with this one.
    headers[p.CURSOR] = str(p.next_cursor(backend.app.clock, asked.cursor))
    if batch is None or not batch.lines:
        headers |= {p.UP_TO_DATE: "true", "Cache-Control": "no-store"}
        return Response(status_code=204, headers=headers)
    headers |= {"Cache-Control": SHARED_WITH_NOBODY, "Vary": "Authorization"}
    headers["ETag"] = etag(info, asked, seen, reader.cursor, closed)
    return Response(array(batch.lines), headers=headers, media_type=JSON)


async def events(
    backend: ServerBackend,
    request: Request,
    info: SessionInfo,
    after: Cursor,
    asked: p.DurableQuery,
    seen: Visibility,
) -> AsyncGenerator[bytes, None]:
    """Give the stream as events: after each that carries data, one that says where it ends."""
    clock = backend.app.clock
    until = clock.monotonic() + LIFETIME
    async with backend.feeds.open(info) as feed:
        reader = FeedReader(feed, info, after=after, seen=seen)
        framer = DurableFramer(reader, p.next_cursor(clock, asked.cursor))
        if reader.is_up_to_date:
            yield framer.control(after)
        # Cut or not, this ends in good order: what closes the stream is said, not meant.
        with suppress(StreamCut):
            async with aclosing(follow(reader, backend, request, framer.frame)) as pieces:
                async for piece in pieces:
                    yield piece
                    if clock.monotonic() >= until:
                        return
        if reader.is_at_the_end and not framer.has_closed:
            yield framer.control(reader.cursor)


class DurableFramer:
    """Makes events of batches, and knows whether the last one has closed the stream."""

    def __init__(self, reader: FeedReader, cursor: int) -> None:
        self.has_closed = False
        self._reader = reader
        self._cursor = str(cursor)

    def frame(self, batch: EventBatch) -> list[bytes]:
        if not batch.lines:
            return [self.control(batch.cursor)]
        return pieces_of((*array_parts(batch.lines), b"\n\n", self.control(batch.cursor)))

    def control(self, cursor: Cursor) -> bytes:
        return b"event: control\ndata:" + self._control(cursor) + b"\n\n"

    def _control(self, cursor: Cursor) -> bytes:
        control: dict[str, str | bool] = {"streamNextOffset": p.to_offset(cursor)}
        if self._reader.is_at_the_end:
            control["streamClosed"] = self.has_closed = True
        else:
            control["streamCursor"] = self._cursor
            if self._reader.is_up_to_date:
                control["upToDate"] = True
        return msgspec.json.encode(control)
