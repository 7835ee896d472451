"""Steering a session: cancel, end, retry, compact, rewind, anchor. The lane's owner does each."""

from typing import Annotated

from fastapi import APIRouter, Body

from outlast.integration.channel.receiver import ChannelReceiver, unknown_channel
from outlast.server.body import JsonRoute
from outlast.server.dependency import Admin, Sender, Served, answers
from outlast.server.model.delivery import (
    AcceptedOut,
    AnchorIn,
    CancelIn,
    CompactIn,
    EndIn,
    ReceiptOut,
    RetryIn,
    RewindIn,
    receipt_out,
)

router = APIRouter(prefix="/sessions/{session_id}", tags=["control"], route_class=JsonRoute)


@router.post("/cancel", status_code=202, responses=answers(404, 409, body=True))
async def cancel_turn(
    session_id: str,
    caller: Sender,
    backend: Served,
    body: Annotated[CancelIn | None, Body()] = None,
) -> AcceptedOut:
    """Stop the open turn of a lane, or its next message. The session and its queue stay."""
    body = body or CancelIn()
    session, _ = await backend.handle(caller, session_id)
    await session.cancel(body.reason, turn=body.turn, lane=body.lane, principal=caller.name)
    return AcceptedOut()


@router.post("/end", status_code=202, responses=answers(404, 409, body=True))
async def end_session(
    session_id: str,
    caller: Sender,
    backend: Served,
    body: Annotated[EndIn | None, Body()] = None,
) -> AcceptedOut:
    """End the session for good; its log stays."""
    session, _ = await backend.handle(caller, session_id)
    await session.end(body.reason if body else "", principal=caller.name)
    return AcceptedOut()


@router.post("/retry", status_code=202, responses=answers(404, 409, body=True))
async def retry_turn(
    session_id: str,
    caller: Sender,
    backend: Served,
    body: Annotated[RetryIn | None, Body()] = None,
) -> ReceiptOut:
    """Try a failed turn again from where it failed; no message is sent again."""
    body = body or RetryIn()
    session, _ = await backend.handle(caller, session_id)
    return ReceiptOut(**receipt_out(await session.retry(lane=body.lane, principal=caller.name)))


@router.post("/compact", status_code=202, responses=answers(404, 409, body=True))
async def compact_context(
    session_id: str,
    caller: Sender,
    backend: Served,
    body: Annotated[CompactIn | None, Body()] = None,
) -> ReceiptOut:
    """Shorten what the model is sent of a lane from here on. The log stays whole."""
    body = body or CompactIn()
    session, _ = await backend.handle(caller, session_id)
    receipt = await session.compact(
        lane=body.lane, dispatch_id=body.dispatch_id, principal=caller.name
    )
    return ReceiptOut(**receipt_out(receipt))


@router.post("/rewind", status_code=202, responses=answers(404, 409, body=True))
async def rewind_context(
    session_id: str, caller: Sender, backend: Served, body: RewindIn
) -> ReceiptOut:
    """Show the model the session as it was after a turn. The log and the state stay."""
    session, _ = await backend.handle(caller, session_id)
    receipt = await session.rewind(body.to, dispatch_id=body.dispatch_id, principal=caller.name)
    return ReceiptOut(**receipt_out(receipt))


@router.post("/anchor", status_code=202, responses=answers(404, 409, body=True))
async def anchor_session(
    session_id: str, caller: Admin, backend: Served, body: AnchorIn
) -> ReceiptOut:
    """Tell what happens in the session in a thread of a channel from now on.

    Messages from that thread go to the session, and those to its old address still do.
    """
    session, _ = await backend.handle(caller, session_id)
    check_tenant(backend.app.channels, body.channel, caller.tenant)
    receipt = await backend.app.channels.anchor(
        session.id,
        body.channel,
        body.thread,
        dispatch_id=body.dispatch_id,
        principal=caller.name,
    )
    return ReceiptOut(**receipt_out(receipt))


def check_tenant(channels: ChannelReceiver, name: str, tenant: str) -> None:
    """Refuse a channel of another tenant: its threads are read by people of that tenant.

    The tenant that a channel finds in a request of its other side is not known here: such threads
    are for the app's own code to anchor in.
    """
    if channels.check(name).tenant != tenant:
        raise unknown_channel(name)
