"""The routes of streams: which form a reader wants, and from where to where."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from outlast.server.backend import ServerBackend
from outlast.server.body import JsonRoute
from outlast.server.dependency import Reader, Served, answers
from outlast.server.principal import INTERNALS
from outlast.server.stream.durable import check, durable_response, is_closed
from outlast.server.stream.ndjson import NDJSON
from outlast.server.stream.plain import StreamQuery, log_response
from outlast.server.stream.protocol import DurableQuery, asked
from outlast.server.stream.sse import SSE, cursor_of

router = APIRouter(tags=["streams"], route_class=JsonRoute)

EVENT = {
    "offset": 1,
    "type": "session.started",
    "at": "2026-01-31T12:00:00.000Z",
    "lane": "main",
    "data": {"agent": "support"},
    "version": 2,
}
TEXT = {"schema": {"type": "string"}}

DURABLE_PATH = "/streams/sessions/{session_id}"

LOG: dict[int | str, dict[str, Any]] = {
    **answers(404, 410),
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


def may_see(gate: ServerBackend, request: Request, internals: bool) -> None:
    """Refuse internal events to whoever lacks the scope for them."""
    if internals:
        gate.principal(request, INTERNALS)


@router.get("/sessions/{session_id}/stream", response_class=Response, responses=LOG)
async def read_stream(
    request: Request,
    session_id: str,
    caller: Reader,
    gate: Served,
    start_index: Annotated[
        int, Query(ge=0, lt=10**16, description="A cursor: events with a higher offset are given.")
    ] = 0,
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
        str, Header(description="Comes before `start_index` where events are server-sent.")
    ] = "",
) -> Response:
    """Read a session's log from a cursor on, and what is added to it."""
    may_see(gate, request, internals)
    info = await gate.owned_session(caller, session_id)
    is_sse = SSE.media_type in request.headers.get("accept", "")
    returns = is_sse and bool(last_event_id)
    after = cursor_of(last_event_id) if returns else start_index
    check(after, info)
    if returns and after == info.end and is_closed(gate, info):
        return Response(status_code=204)  # this is what keeps a browser from coming again
    return log_response(
        gate, caller, info, StreamQuery(after, follow, internals, SSE if is_sse else NDJSON)
    )


@router.head(
    DURABLE_PATH, name="look_at_durable_stream", response_class=Response, responses=DURABLE
)
@router.get(DURABLE_PATH, response_class=Response, responses=DURABLE)
async def read_durable_stream(
    request: Request,
    session_id: str,
    caller: Reader,
    gate: Served,
    wanted: Annotated[DurableQuery, Depends(asked)],
) -> Response:
    """Read a session's stream by the Durable Streams protocol."""
    may_see(gate, request, wanted.internals)
    info = await gate.owned_session(caller, session_id)
    return await durable_response(gate, request, caller, info, wanted)
