"""Deliveries to a session, by its id or by its continuation token.

Owns which scope each needs: `send` for a message, `approve` for an answer. Refuses to know how an
arrival is admitted (`session/inbox.py`) and where a token leads (`session/router.py`).
"""

from typing import Any

from fastapi import APIRouter, Request

from outlast.errors import NoActiveSession, OutlastError
from outlast.server.backend import ServerBackend
from outlast.server.body import JsonRoute
from outlast.server.dependency import Sender, SenderOrApprover, Served, answers
from outlast.server.error import refusal_of
from outlast.server.model.delivery import (
    AnsweredOut,
    DeliverIn,
    DeliveryIn,
    ReceiptOut,
    StartedOut,
    receipt_out,
)
from outlast.server.model.message import said
from outlast.server.model.request import RequestAnswerIn
from outlast.server.principal import APPROVE, SEND, Principal
from outlast.session import Receipt, Session
from outlast.session.inbox import deadline_of
from outlast.session.router import Token

router = APIRouter(tags=["deliveries"], route_class=JsonRoute)


@router.post(
    "/sessions/{session_id}/deliveries",
    status_code=202,
    response_model_exclude_none=True,
    responses=answers(404, 409, body=True),
)
async def send_delivery(
    session_id: str,
    body: DeliveryIn,
    caller: SenderOrApprover,
    backend: Served,
    request: Request,
) -> AnsweredOut:
    """Send a message, which needs the scope `send`; or answer requests: `approve`."""
    backend.principal(request, APPROVE if body.answers else SEND)
    session, _ = await backend.handle(caller, session_id)
    if not body.answers:
        receipt = await session.send(
            said(body.message),
            dispatch_id=body.dispatch_id,
            retry_failed=body.retry_failed,
            lane=body.lane,
            principal=caller.name,
            deadline=deadline_of(body.deadline),
        )
        return AnsweredOut(**receipt_out(receipt))
    receipts = await answer_all(session, body.answers, body.dispatch_id, caller)
    return AnsweredOut(
        **receipt_out(receipts[0]),
        deliveries=[ReceiptOut(**receipt_out(receipt)) for receipt in receipts],
    )


async def answer_all(
    session: Session[Any],
    responses: list[RequestAnswerIn],
    dispatch_id: str | None,
    caller: Principal,
) -> list[Receipt[Any]]:
    """Answer one request after another. The first that cannot be ends it: those before stand."""
    receipts: list[Receipt[Any]] = []
    for response in responses:
        try:
            receipt = await session.answer(
                response.request_id,
                response.option,
                text=response.text,
                args=response.args,
                dispatch_id=dispatch_id,
                principal=caller.name,
            )
        except OutlastError as error:
            refusal = refusal_of(error)
            refusal.details["request"] = response.request_id
            refusal.details["accepted"] = [receipt_out(receipt) for receipt in receipts]
            raise refusal from None
        receipts.append(receipt)
    return receipts


@router.post("/deliver", status_code=202, responses=answers(404, 409, body=True))
async def deliver(body: DeliverIn, caller: Sender, backend: Served, request: Request) -> StartedOut:
    """Send a message to where a continuation token leads; start a session if an agent is named."""
    receipt = await backend.app.send(
        Token(body.continuation_token, body.agent),
        said(body.message),
        dispatch_id=body.dispatch_id,
        retry_failed=body.retry_failed,
        tenant=caller.tenant,
        principal=caller.name,
        tags=body.tags,
    )
    return await started(receipt, backend, request)


async def started(receipt: Receipt[Any], backend: ServerBackend, request: Request) -> StartedOut:
    """Return a receipt, and where to read what comes of it."""
    info = await backend.app.store.listing.session(receipt.session_id)
    if info is None:
        raise NoActiveSession("the session was erased meanwhile")
    return StartedOut(
        **receipt_out(receipt),
        continuation_token=info.token,
        stream_url=backend.url(request, f"/sessions/{receipt.session_id}/stream"),
    )
