"""The one session of an agent that has a key: prompt it, and read its stream at the same URL."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response

from outlast.errors import UnknownSession
from outlast.server.body import JsonRoute
from outlast.server.dependency import Reader, Sender, Served, answers
from outlast.server.model.delivery import PromptedOut, PromptIn, receipt_out
from outlast.server.model.message import said
from outlast.server.model.shape import Id
from outlast.server.principal import INTERNALS
from outlast.server.stream.durable import durable_response
from outlast.server.stream.protocol import DurableQuery, asked
from outlast.server.stream.route import DURABLE
from outlast.session.router import Key

router = APIRouter(prefix="/agents", tags=["agents"], route_class=JsonRoute)

PATH = "/{name}/{key:path}"


@router.post(PATH, status_code=202, responses=answers(404, 409, body=True))
async def prompt_agent(
    name: Id, key: Id, body: PromptIn, caller: Sender, backend: Served, request: Request
) -> PromptedOut:
    """Send a message to the one session of an agent and a key; the first one starts it."""
    receipt = await backend.app.send(
        Key(name, key),
        said(body.message),
        dispatch_id=body.dispatch_id,
        retry_failed=body.retry_failed,
        tenant=caller.tenant,
        principal=caller.name,
        tags=body.tags,
    )
    url = backend.url(request, f"/agents/{quote(name, safe='')}/{quote(key)}")
    return PromptedOut(**receipt_out(receipt), stream_url=url)


@router.head(PATH, name="look_at_agent", response_class=Response, responses=DURABLE)
@router.get(PATH, response_class=Response, responses=DURABLE)
async def read_agent(
    request: Request,
    name: Id,
    key: Id,
    caller: Reader,
    backend: Served,
    wanted: Annotated[DurableQuery, Depends(asked)],
) -> Response:
    """Read the stream of that session by the Durable Streams protocol."""
    if wanted.internals:
        backend.principal(request, INTERNALS)
    session_id = await backend.app.find(Key(name, key), tenant=caller.tenant)
    if session_id is None:
        raise UnknownSession(f"the agent {name} has no session with this key", key=key)
    info = await backend.owned_session(caller, session_id)
    return await durable_response(backend, request, caller, info, wanted)
