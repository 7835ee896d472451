"""The routes of sessions: start one, list them, look at one, erase it.

Owns what their queries may ask. Refuses to know how a session is shown (`server/session_view.py`)
and whose it is (`server/backend.py`, by which every id goes). What is sent to a session is in
`delivery.py`, what steers it in `control.py`, and its stream in `server/stream/`.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from outlast.app import start_described
from outlast.core.instant import read_instant
from outlast.core.lane import Status
from outlast.core.tag import LONGEST_TAG, MOST_TAGS, tags_of
from outlast.server.body import JsonRoute
from outlast.server.dependency import Admin, Reader, Sender, Served, answers
from outlast.server.model.delivery import StartedOut, StartIn, receipt_out
from outlast.server.model.session import SessionItem, SessionOut, SessionPage, item_fields
from outlast.server.model.shape import Id
from outlast.server.session_view import portray
from outlast.session import Session
from outlast.store.listing import MOST_LANES_LISTED

router = APIRouter(prefix="/sessions", tags=["sessions"], route_class=JsonRoute)

FailureCode = Annotated[
    Id | None, Query(description="Only those whose last turn failed with this code.")
]
FailedSince = Annotated[
    str | None,
    Query(
        max_length=64,
        description="Only those whose last turn failed at this instant or after it.",
        json_schema_extra={"format": "date-time"},
    ),
]
TagsSought = Annotated[
    list[Annotated[str, Field(max_length=LONGEST_TAG)]] | None,
    Query(
        max_length=MOST_TAGS,
        description="Only those that were started with this tag, NAME=VALUE; may be repeated.",
        examples=[["customer=42"]],
    ),
]
Limit = Annotated[int, Query(ge=1, le=500, description="How many at most.")]


@router.post("", status_code=202, responses=answers(404, 409, body=True))
async def start_session(
    body: StartIn, caller: Sender, backend: Served, request: Request, response: Response
) -> StartedOut:
    """Start a session with a message; the message is durable when this answers."""
    new = body.new_session(tenant=caller.tenant, principal=caller.name)
    session: Session[Any] = await start_described(backend.app, new)
    assert session.receipt is not None
    response.headers["Location"] = backend.url(request, f"/sessions/{session.id}")
    return StartedOut(
        **receipt_out(session.receipt),
        continuation_token=await session.continuation_token(),
        stream_url=backend.url(request, f"/sessions/{session.id}/stream"),
    )


@router.get("", responses=answers(400))
async def list_sessions(
    caller: Reader,
    backend: Served,
    agent: Annotated[Id | None, Query(description="Only those of this agent.")] = None,
    status: Annotated[Status | None, Query(description="Only those that are this.")] = None,
    tag: TagsSought = None,
    failed: Annotated[bool, Query(description="Only those whose last turn failed.")] = False,
    code: FailureCode = None,
    queue: Annotated[
        Id | None, Query(description="Only those in this queue whose last turn failed.")
    ] = None,
    since: FailedSince = None,
    cursor: Annotated[Id | None, Query(description="From where the last page ended.")] = None,
    limit: Limit = 50,
) -> SessionPage:
    """List sessions, newest first."""
    found = await backend.app.sessions(
        tenant=caller.tenant,
        agent=agent,
        status=status,
        tags=tags_of(tag),
        failed=failed,
        code=code,
        queue=queue,
        since=None if since is None else read_instant("since", since),
        before=cursor,
        limit=limit,
    )
    return SessionPage(
        sessions=[SessionItem(**item_fields(info)) for info in found],
        next_cursor=found[-1].session_id if len(found) == limit else None,
    )


@router.get("/{session_id}", responses=answers(400, 404))
async def show_session(
    session_id: str,
    caller: Reader,
    backend: Served,
    lanes_after: Annotated[
        Id | None, Query(description="Show the lanes behind this one: what `next_lane` gave.")
    ] = None,
) -> SessionOut:
    """Show a session: its status, what it waits for, and what it has cost."""
    info = await backend.owned_session(caller, session_id)
    return await portray(backend.app.store, info, caller, lanes_after, MOST_LANES_LISTED)


@router.delete("/{session_id}", status_code=204, responses=answers(404))
async def erase_session(
    session_id: str,
    caller: Admin,
    backend: Served,
    cancel_remote: Annotated[
        bool, Query(description="First end its sessions at remote agents.")
    ] = True,
) -> None:
    """End a session and erase it with its children, for good."""
    info = await backend.owned_session(caller, session_id)
    await backend.app.erase(info.session_id, cancel_remote=cancel_remote)
