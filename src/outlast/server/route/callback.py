"""Callbacks: an outside event wakes a tool that waits for it.

The token is the authorization: without it a caller learns nothing, and a GET changes nothing.
"""

from fastapi import APIRouter, Request

from outlast.errors import UnknownCallback
from outlast.server.backend import is_id
from outlast.server.body import in_time
from outlast.server.dependency import Served, answers
from outlast.server.limit import too_large
from outlast.server.model.delivery import AcceptedOut
from outlast.session.callback import UNKNOWN_CALLBACK

router = APIRouter(prefix="/callbacks", tags=["callbacks"])

A_BODY = {
    "required": False,
    "content": {"*/*": {"schema": {}, "example": {"paid": True}}},
}


@router.post(
    "/{token}",
    status_code=202,
    openapi_extra={"requestBody": A_BODY},
    responses=answers(401, 410, is_open=True),
)
async def call_back(token: str, request: Request, backend: Served) -> AcceptedOut:
    """Hand an outside event to the tool that waits for it. The token in the URL is the key.

    The same body again is accepted again, and does nothing. Where the tool takes only what is
    signed, anything else is refused.
    """
    if not is_id(token):
        raise UnknownCallback(UNKNOWN_CALLBACK)
    # Anyone can call this, so the token is checked before the body is read.
    await in_time(backend.app.callbacks.check(token), backend.settings.timeout)
    body = await read_body(request, backend.settings.max_callback)
    kind = request.headers.get("content-type", "")
    headers = dict(request.headers)
    await in_time(
        backend.app.callbacks.receive(token, body, kind, headers), backend.settings.timeout
    )
    return AcceptedOut()


async def read_body(request: Request, most: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise too_large(most)
    return bytes(body)
