"""Channels: what is said elsewhere comes in here.

No key is needed: the channel verifies the request itself before anything is done with it.
"""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from outlast.errors import UnknownChannel
from outlast.integration.channel.inbound import HttpReply, ReceivedRequest
from outlast.server.backend import is_id
from outlast.server.body import in_time
from outlast.server.dependency import ERRORS, Served, answers
from outlast.server.model.channel import ReceivedOut
from outlast.server.model.shape import ErrorBody
from outlast.server.route.callback import read_body

router = APIRouter(prefix="/channels", tags=["channels"])

A_BODY = {
    "required": False,
    "content": {"*/*": {"schema": {}, "example": {"thread": "room-7", "text": "Hello"}}},
}
OF_SENDERS: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorBody, "description": "The channel does not know who signed this."},
    429: {"model": ErrorBody, "description": ERRORS[429]},
}


@router.post(
    "/{name}",
    status_code=202,
    response_model=ReceivedOut,
    response_model_exclude_none=True,
    openapi_extra={"requestBody": A_BODY},
    responses={**answers(404, 409, is_open=True), **OF_SENDERS},
)
async def take_in(name: str, request: Request, backend: Served) -> ReceivedOut | Response:
    """Take in what was said in a channel. Each channel has its own shape and its own signature.

    The same again, by the id that its sender gave it, is accepted again and does nothing.
    """
    if not is_id(name):
        raise UnknownChannel("this app has no such channel")
    backend.app.channels.check(name)
    body = await read_body(request, backend.settings.max_callback)
    work = backend.app.channels.receive(name, dict(request.headers), body)
    received = await in_time(work, backend.settings.timeout)
    return at_once(received.answer) if received.answer else receipt_of(received)


def at_once(answer: HttpReply) -> Response:
    return Response(answer.body, answer.status, {"content-type": answer.content_type})


def receipt_of(received: ReceivedRequest) -> ReceivedOut:
    receipt = received.receipt
    if receipt is None:
        return ReceivedOut(accepted=False)
    return ReceivedOut(
        accepted=True,
        session_id=receipt.session_id,
        delivery_id=receipt.delivery_id,
        duplicate=receipt.duplicate,
    )
