"""Reading a session: its conversation, its milestones, and the result of its last turn.

The log itself is read as a stream: see `outlast.server.stream`.
"""

from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from outlast.agents.runtime.json_value import from_json, to_json
from outlast.core.instant import seconds
from outlast.core.name import MAIN
from outlast.errors import UnknownDelivery, UnknownLane
from outlast.log.history import CURSOR, START, HistoryReader, place_of
from outlast.log.milestone import read_milestones
from outlast.server.backend import ServerBackend
from outlast.server.body import JsonRoute, WaitingRoute, in_time
from outlast.server.dependency import Reader, Served, answers
from outlast.server.model.message import HistoryMessage, HistoryOut, history_message
from outlast.server.model.milestone import MilestoneOut, MilestonesOut, milestone_out
from outlast.server.model.session import ResultOut, result_out
from outlast.server.model.shape import Id
from outlast.server.route.session import Limit
from outlast.session import Result, Session, is_at_rest, needs_somebody
from outlast.session.handle import wait_or_outage
from outlast.store import SessionInfo

router = APIRouter(prefix="/sessions/{session_id}", tags=["sessions"], route_class=JsonRoute)
waiting = APIRouter(prefix="/sessions/{session_id}", tags=["sessions"], route_class=WaitingRoute)

LONGEST = 30
OFFSET = r"^[0-9]{1,15}$"
NO_OUTAGE = "none"
"""The value that a waiting caller sends while it has not been told of an outage."""
PAGE_BYTES = 1024 * 1024
"""A page of a conversation is full with these, and has one message at least."""


@router.get("/history", response_model_exclude_none=True, responses=answers(400, 404))
async def read_history(
    session_id: str,
    caller: Reader,
    backend: Served,
    lane: Annotated[Id, Query(description="Whose conversation.")] = MAIN,
    cursor: Annotated[
        str | None, Query(pattern=CURSOR, description="From where the last page ended.")
    ] = None,
    limit: Limit = 100,
) -> HistoryOut:
    """Return a lane's conversation so far, as the model sees it, page by page."""
    info = await backend.owned_session(caller, session_id)
    if lane != MAIN and all(known.lane != lane for known in info.lanes):
        raise UnknownLane(f"the session has no lane {lane}", lane=lane)
    found: list[HistoryMessage] = []
    place, size = START if cursor is None else place_of(cursor), 0
    reader = HistoryReader(backend.app.store, info.session_id, lane, place)
    async with aclosing(reader.read()) as messages:
        async for behind, message in messages:
            if len(found) == limit or size >= PAGE_BYTES:
                return HistoryOut(lane=lane, messages=found, next_cursor=str(place))
            found.append(history_message(message))
            size += len(msgspec.json.encode(message))
            place = behind
    return HistoryOut(lane=lane, messages=found, next_cursor=None)


@router.get("/milestones", responses=answers(400, 404, 410))
async def read_session_milestones(
    session_id: str,
    caller: Reader,
    backend: Served,
    cursor: Annotated[
        str | None, Query(pattern=OFFSET, description="From where the last page ended.")
    ] = None,
    limit: Limit = 100,
) -> MilestonesOut:
    """List the points of progress that a session has reached, oldest first."""
    info = await backend.owned_session(caller, session_id)
    found: list[MilestoneOut] = []
    reading = read_milestones(backend.app.store, info.session_id, int(cursor or 0))
    async with aclosing(reading) as milestones:
        async for milestone in milestones:
            if len(found) == limit:
                return MilestonesOut(milestones=found, next_cursor=str(found[-1].offset))
            found.append(milestone_out(milestone))
    return MilestonesOut(milestones=found, next_cursor=None)


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
        float, Query(ge=0, le=LONGEST, description="How many seconds to wait for it.")
    ] = 0,
    delivery_id: Annotated[Id | None, Query(description="That of this delivery alone.")] = None,
    outage: Annotated[
        Id | None,
        Query(
            description="Answer with 202 also when a wait for a provider begins or ends: `none`, or"
            " the code of the error that is known already. Where it is left out, that ends no wait."
        ),
    ] = None,
) -> ResultOut:
    """Return what the last turn came to, or what became of one delivery.

    A turn that has not ended when the time is up is `running`, with what it waits for.
    """
    session, info = await backend.handle(caller, session_id)
    known = None if outage is None else "" if outage == NO_OUTAGE else outage
    if wait and not await is_settled(backend, info, delivery_id):
        async with backend.hold(caller):
            result = await outcome(backend, session, delivery_id, wait, known)
        await backend.check_still_valid(request)
    else:
        result = await outcome(backend, session, delivery_id, 0, None)
    if result.status == "running":
        response.status_code = 202
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
    backend: ServerBackend,
    session: Session[Any],
    delivery_id: str | None,
    wait: float,
    known: str | None,
) -> Result[Any]:
    """Wait for a result for so long; the last look at the store may take a request's time more."""
    work = wait_or_outage(session, delivery_id, wait, known)
    return await in_time(work, wait + seconds(backend.settings.timeout))
