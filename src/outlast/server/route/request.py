"""The routes of requests: the open ones of all sessions of a tenant, and answers to them.

Whether an answer fits, and who may give it, is checked by the session's handle
(`session/answer.py`), and again by the lane's owner. Requests of one session are answered together
in `delivery.py`.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from outlast.core.index import PEOPLE, RELAYED
from outlast.server.body import JsonRoute
from outlast.server.dependency import Approver, Reader, Served, answers
from outlast.server.model.delivery import ReceiptOut, receipt_out
from outlast.server.model.request import AnswerIn, RequestPage, request_out
from outlast.server.model.shape import Id
from outlast.server.route.session import Limit
from outlast.session import request_of
from outlast.session.listing import check_request_cursor
from outlast.store import RequestInfo

Kind = Literal["approval", "question", "interrupted", "budget"]

PAGE_BYTES = 1024 * 1024
FIRST_BATCH = 8

router = APIRouter(prefix="/requests", tags=["requests"], route_class=JsonRoute)


@router.get("", responses=answers(400, 404))
async def list_requests(
    caller: Reader,
    backend: Served,
    session_id: Annotated[Id | None, Query(description="Only those of this session.")] = None,
    agent: Annotated[Id | None, Query(description="Only those of this agent.")] = None,
    kind: Annotated[
        Annotated[list[Kind], Field(fail_fast=True)] | None,
        Query(max_length=10, description="Only those of these kinds."),
    ] = None,
    cursor: Annotated[Id | None, Query(description="From where the last page ended.")] = None,
    limit: Limit = 50,
) -> RequestPage:
    """List open requests, oldest first."""
    if session_id is not None:
        await backend.owned_session(caller, session_id)
    kinds = [each for each in PEOPLE if kind is None or each in kind]
    if session_id is not None and kind is None:
        kinds.append(RELAYED)  # what its children ask is listed under them elsewhere
    if cursor is not None:
        await check_request_cursor(backend.app.store, caller.tenant, cursor)
    read = partial(
        backend.app.store.listing.requests,
        session_id,
        tenant=caller.tenant,
        agent=agent,
        kinds=kinds,
    )
    found, is_full = await read_page(read, cursor, limit)
    return RequestPage(
        requests=[request_out(request_of(info), info.agent) for info in found],
        next_cursor=found[-1].request_id if is_full else None,
    )


async def read_page(
    read: Callable[..., Awaitable[Sequence[RequestInfo]]], after: str | None, limit: int
) -> tuple[list[RequestInfo], bool]:
    """Read requests until there are so many or they are PAGE_BYTES, one at least.

    Say also whether there may be more. A request has the arguments of its call, which may be
    megabytes: few are read at once, and more as long as they are small.
    """
    found: list[RequestInfo] = []
    size, batch = 0, FIRST_BATCH
    while len(found) < limit:
        wanted = min(batch, limit - len(found))
        part = await read(after=after, limit=wanted)
        for info in part:
            found.append(info)
            size += len(info.data)
            if size >= PAGE_BYTES:
                return found, True
        if len(part) < wanted:
            return found, False
        after, batch = found[-1].request_id, batch * 4
    return found, True


@router.post("/{request_id}", status_code=202, responses=answers(404, 409, body=True))
async def answer_request(
    request_id: str, body: AnswerIn, caller: Approver, backend: Served
) -> ReceiptOut:
    """Answer an open request. The first answer wins; another's is told REQUEST_CLOSED."""
    info = await backend.owned_request(caller, request_id)
    session = await backend.app.session(info.session_id)
    receipt = await session.answer(
        request_id,
        body.option,
        text=body.text,
        args=body.args,
        dispatch_id=body.dispatch_id,
        principal=caller.name,
    )
    return ReceiptOut(**receipt_out(receipt))
