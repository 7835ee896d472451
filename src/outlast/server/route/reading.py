"""Reading a session: its conversation, and the result of its last turn.

The log itself is read as a stream: see `outlast.server.stream`.
"""

import asyncio
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from outlast.agents.runtime.json_value import from_json, to_json
from outlast.core.instant import Span, seconds
from outlast.core.name import MAIN
from outlast.errors import UnknownDelivery, UnknownLane
from outlast.log.reader import read_messages
from outlast.server.backend import ServerBackend
from outlast.server.body import JsonRoute, WaitingRoute, in_time
from outlast.server.dependency import Reader, Served, answers
from outlast.server.model.message import HistoryMessage, HistoryOut, history_message
from outlast.server.model.session import ResultOut, result_out, still_running
from outlast.server.model.shape import Id
from outlast.server.route.session import Limit
from outlast.session import Result, Session, is_at_rest, needs_somebody
from outlast.store import SessionInfo

router = APIRouter(prefix="/sessions/{session_id}", tags=["sessions"], route_class=JsonRoute)
waiting = APIRouter(prefix="/sessions/{session_id}", tags=["sessions"], route_class=WaitingRoute)

LONGEST = 30
PAGE_BYTES = 1024 * 1024
"""A page of a conversation is full with these, and has one message at least."""


@router.get("/history", response_model_exclude_none=True, responses=answers(404))
async def read_history(
    session_id: str,
    caller: Reader,
    backend: Served,
    lane: Annotated[Id, Query(description="Whose conversation.")] = MAIN,
    cursor: Annotated[
        int, Query(ge=0, lt=10**9, description="From where the last page ended.")
    ] = 0,
    limit: Limit = 100,
) -> HistoryOut:
    """Return a lane's conversation so far, as the model sees it, page by page."""
    info = await backend.owned_session(caller, session_id)
    if lane != MAIN and all(known.lane != lane for known in info.lanes):
        raise UnknownLane(f"the session has no lane {lane}", lane=lane)
    found: list[HistoryMessage] = []
    number = size = 0
    async with aclosing(read_messages(backend.app.store, info.session_id, lane)) as messages:
        async for message in messages:
            number += 1
            if number <= cursor:
                continue
            if len(found) == limit or size >= PAGE_BYTES:
                return HistoryOut(lane=lane, messages=found, next_cursor=number - 1)
            found.append(history_message(message))
            size += len(msgspec.json.encode(message))
    return HistoryOut(lane=lane, messages=found, next_cursor=None)


@waiting.get(
    "/result",
    responses={
        **answers(404),
        202: {"model": ResultOut, "description": "It is still at work: ask again."},
    },
)
async def read_result(
    request: Request,
    session_id: str,
    caller: Reader,
    backend: Served,
    response: Response,
    wait: Annotated[
        int, Query(ge=0, le=LONGEST, description="How many seconds to wait for it.")
    ] = 0,
    delivery_id: Annotated[Id | None, Query(description="That of this delivery alone.")] = None,
) -> ResultOut:
    """Return what the last turn came to, or what became of one delivery."""
    session, info = await backend.handle(caller, session_id)
    result: Result[Any] | None = None
    if await is_settled(backend, info, delivery_id):
        result = await outcome(session, delivery_id, backend.settings.timeout)
    elif wait:
        async with backend.hold(caller):
            result = await outcome(session, delivery_id, wait)
        await backend.check_still_valid(request)
    if result is None:
        response.status_code = 202
        return still_running()
    return result_out(result, from_json(to_json(result.output)), info.agent)


async def is_settled(backend: ServerBackend, info: SessionInfo, delivery_id: str | None) -> bool:
    """Whether a result is there without waiting for it."""
    if delivery_id is None:
        return is_at_rest(info)
    delivery = await in_time(
        backend.app.store.listing.delivery(delivery_id), backend.settings.timeout
    )
    if delivery is None or delivery.session_id != info.session_id:
        raise UnknownDelivery(f"this session never got {delivery_id}", delivery=delivery_id)
    if delivery.state == "settled" and delivery.outcome != "answered":
        return True
    return is_at_rest(info) or needs_somebody(info, delivery.lane)


async def outcome(
    session: Session[Any], delivery_id: str | None, timeout: Span
) -> Result[Any] | None:
    """Wait for a result for so long, and no longer."""
    try:
        async with asyncio.timeout(seconds(timeout)):
            return await (session.result_of(delivery_id) if delivery_id else session.wait())
    except TimeoutError:
        return None
