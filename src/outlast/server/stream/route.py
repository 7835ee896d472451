"""The routes of streams: which form a reader wants, and from where to where.

Owns what a request may ask for, and all that is refused while there is still a status to say it
with. What is sent then is made by `durable.py`, and by `reader.py` for the other forms.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from msgspec import Struct

from outlast.core.event import CURSOR_TEXT, Cursor, cursor_of
from outlast.log.reader import confirm
from outlast.server.backend import ServerBackend
from outlast.server.body import JsonRoute
from outlast.server.dependency import Reader, Served, answers
from outlast.server.principal import INTERNALS
from outlast.server.stream.durable import durable_response
from outlast.server.stream.encoding import (
    NDJSON,
    SSE,
    StreamEncoding,
    Visibility,
    returning_cursor,
    visibility,
)
from outlast.server.stream.protocol import DurableQuery, asked
from outlast.server.stream.reader import FeedReader, follow, is_closed
from outlast.server.stream.response import StreamResponse, come_again
from outlast.server.stream.window import up_to_end
from outlast.store import SessionInfo

CURSOR = "Outlast-Cursor"


class StreamQuery(Struct, frozen=True):
    """A query: after which cursor, how far (see the route's `follow`), and in which encoding."""

    after: Cursor
    follow: str
    seen: Visibility
    form: StreamEncoding


async def log_response(
    backend: ServerBackend, request: Request, info: SessionInfo, wanted: StreamQuery
) -> StreamResponse:
    """Answer with the log; a page says in a header where it ends."""
    # A page is answered also while the server is about to stop: it ends by itself.
    is_page = wanted.follow == "false"
    if not is_page and backend.feeds.is_closed:
        raise come_again()
    pieces = page(backend, info, wanted) if is_page else stream(backend, request, info, wanted)
    headers = {}
    if is_page:
        end = await confirm(backend.app.store.log, info.session_id, Cursor(info.end))
        headers[CURSOR] = str(end)
    hold = backend.hold(backend.principal(request))
    return StreamResponse(pieces, hold, wanted.form.media_type, headers)


async def page(
    backend: ServerBackend, info: SessionInfo, wanted: StreamQuery
) -> AsyncGenerator[bytes, None]:
    async for batch in up_to_end(
        backend.app.store, info, wanted.after, wanted.seen, turns=backend.feeds.turns
    ):
        pieces = wanted.form.frame(batch) if batch.lines else []
        del batch  # likewise in `follow`
        for piece in pieces:
            yield piece


async def stream(
    backend: ServerBackend, request: Request, info: SessionInfo, wanted: StreamQuery
) -> AsyncGenerator[bytes, None]:
    if wanted.form.opening:
        yield wanted.form.opening
    async with backend.feeds.open(info) as feed:
        reader = FeedReader(
            feed,
            info,
            after=wanted.after,
            seen=wanted.seen,
            until_rest=wanted.follow == "until_rest",
        )
        async with aclosing(follow(reader, backend, request, wanted.form.frame)) as pieces:
            async for piece in pieces:
                yield piece


router = APIRouter(tags=["streams"], route_class=JsonRoute)

EVENT = {
    "offset": 1,
    "type": "session.started",
    "at": "2026-01-31T12:00:00.000Z",
    "lane": "main",
    "data": {"agent": "support"},
    "version": 2,
    "cursor": "1-5f2e9c01",
}
TEXT = {"schema": {"type": "string"}}

DURABLE_PATH = "/streams/sessions/{session_id}"

LOG: dict[int | str, dict[str, Any]] = {
    **answers(400, 404, 410),
    200: {
        "description": "Events as they are committed, one to a line. With"
        " `Accept: text/event-stream` as server-sent events, whose `id` is the cursor.",
        "content": {NDJSON.media_type: TEXT, SSE.media_type: TEXT},
    },
    204: {"description": "To server-sent events alone: all was given, and the session is over."},
}
DURABLE: dict[int | str, dict[str, Any]] = {
    **answers(404, 410),
    200: {
        "description": "Events after the offset. `Stream-Next-Offset` says where they end.",
        "content": {
            "application/json": {
                "schema": {"type": "array", "items": {"type": "object"}},
                "example": [EVENT],
            },
            SSE.media_type: TEXT,
        },
    },
    204: {"description": "Nothing new came while the poll waited."},
    304: {"description": "The page is the one that `If-None-Match` names."},
    400: {**answers(404)[404], "description": "The offset is none, or `live` is unknown."},
}
"""How the Durable Streams protocol answers."""


def may_see(backend: ServerBackend, request: Request, internals: bool) -> None:
    """Refuse internal events to a principal without the scope `internals`."""
    if internals:
        backend.principal(request, INTERNALS)


@router.get("/sessions/{session_id}/stream", response_class=Response, responses=LOG)
async def read_stream(
    request: Request,
    session_id: str,
    caller: Reader,
    backend: Served,
    after: Annotated[
        str,
        Query(
            pattern=CURSOR_TEXT,
            description="A cursor: the `cursor` of an event, or its `offset`. The events after it"
            " are given. A cursor whose event is not in the log any more is refused; of an offset"
            " only is known whether the log is long enough.",
        ),
    ] = "0",
    follow: Annotated[
        Literal["true", "false", "until_rest"],
        Query(
            description="`true`: until the session is over. `until_rest`: until nothing of it is"
            " queued, ready or running. `false`: up to the present end, which the header"
            " `Outlast-Cursor` names."
        ),
    ] = "true",
    internals: Annotated[
        bool, Query(description="Give internal events, too; needs the scope `internals`.")
    ] = False,
    last_event_id: Annotated[
        str, Header(description="Comes before `after` where events are server-sent.")
    ] = "",
) -> Response:
    """Read a session's log from a cursor on, and what is added to it."""
    may_see(backend, request, internals)
    info = await backend.owned_session(caller, session_id)
    is_sse = SSE.media_type in request.headers.get("accept", "")
    # A browser sends the address that it has, with the first cursor in it: what it brings back is
    # newer.
    returns = is_sse and bool(last_event_id)
    given = returning_cursor(last_event_id) if returns else cursor_of(after)
    # Before the response begins: later there is no status left to say it with.
    start = await confirm(backend.app.store.log, session_id, given)
    if returns and start.offset == info.end and is_closed(info):
        return Response(status_code=204)  # this is what keeps a browser from coming again
    return await log_response(
        backend,
        request,
        info,
        StreamQuery(start, follow, visibility(caller, internals), SSE if is_sse else NDJSON),
    )


@router.head(
    DURABLE_PATH, name="look_at_durable_stream", response_class=Response, responses=DURABLE
)
@router.get(DURABLE_PATH, response_class=Response, responses=DURABLE)
async def read_durable_stream(
    request: Request,
    session_id: str,
    caller: Reader,
    backend: Served,
    wanted: Annotated[DurableQuery, Depends(asked)],
) -> Response:
    """Read a session's stream by the Durable Streams protocol."""
    may_see(backend, request, wanted.internals)
    info = await backend.owned_session(caller, session_id)
    return await durable_response(backend, request, caller, info, wanted)
