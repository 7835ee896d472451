"""Sessions: start, list, look at, erase."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from outlast.server.body import JsonRoute
from outlast.server.dependency import Admin, Reader, Sender, Served, answers
from outlast.server.model.delivery import StartedOut, StartIn, receipt_out
from outlast.server.model.session import SessionItem, SessionOut, SessionPage, item_fields
from outlast.server.model.shape import Id
from outlast.server.session_view import portray
from outlast.session import Session
from outlast.session.listing import Status

router = APIRouter(prefix="/sessions", tags=["sessions"], route_class=JsonRoute)

Limit = Annotated[int, Query(ge=1, le=500, description="How many at most.")]


@router.post("", status_code=202, responses=answers(404, 409, body=True))
async def start_session(
    body: StartIn, caller: Sender, backend: Served, request: Request, response: Response
) -> StartedOut:
    """Start a session with a message; it is accepted for good when this answers."""
    new = body.new_session(tenant=caller.tenant, principal=caller.name)
    session: Session[Any] = await backend.app.router.start(new)
    assert session.receipt is not None
    response.headers["Location"] = backend.url(request, f"/sessions/{session.id}")
    return StartedOut(
        **receipt_out(session.receipt),
        continuation_token=await session.continuation_token(),
        stream_url=backend.url(request, f"/sessions/{session.id}/stream"),
    )


@router.get("", responses=answers())
async def list_sessions(
    caller: Reader,
    backend: Served,
    agent: Annotated[Id | None, Query(description="Only those of this agent.")] = None,
    status: Annotated[Status | None, Query(description="Only those that are this.")] = None,
    cursor: Annotated[Id | None, Query(description="From where the last page ended.")] = None,
    limit: Limit = 50,
) -> SessionPage:
    """List sessions, newest first."""
    found = await backend.app.sessions(
        tenant=caller.tenant, agent=agent, status=status, before=cursor, limit=limit
    )
    return SessionPage(
        sessions=[SessionItem(**item_fields(info)) for info in found],
        next_cursor=found[-1].session_id if len(found) == limit else None,
    )


@router.get("/{session_id}", responses=answers(404))
async def show_session(session_id: str, caller: Reader, backend: Served) -> SessionOut:
    """Show how a session stands, what it waits for, and what it has cost."""
    info = await backend.owned_session(caller, session_id)
    return await portray(backend.app.store, info, caller)


@router.delete("/{session_id}", status_code=204, responses=answers(404))
async def erase_session(
    session_id: str,
    caller: Admin,
    backend: Served,
    cancel_remote: Annotated[
        bool, Query(description="First end what it has going at remote agents.")
    ] = True,
) -> None:
    """End a session and erase all that is known of it."""
    info = await backend.owned_session(caller, session_id)
    await backend.app.erase(info.session_id, cancel_remote=cancel_remote)
