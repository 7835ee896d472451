"""Retries and cancels of many turns of a tenant, one page per request.

A request looks at 500 lanes at most, so that none keeps the server for long; what it did and where
the next one goes on is in the answer. Each page can be asked for again.
"""

from typing import Annotated

from fastapi import APIRouter, Body

from outlast.core.instant import read_instant
from outlast.server.body import JsonRoute
from outlast.server.dependency import Sender, Served, answers
from outlast.server.model.bulk import BulkCancelIn, BulkCancelOut, BulkRetryIn, BulkRetryOut
from outlast.server.route.fleet import cursor_of, place_of

router = APIRouter(prefix="/bulk", tags=["control"], route_class=JsonRoute)


@router.post("/retry", status_code=202, responses=answers(body=True))
async def retry_turns(
    caller: Sender, backend: Served, body: Annotated[BulkRetryIn | None, Body()] = None
) -> BulkRetryOut:
    """Try failed turns again, each once, however often this is called."""
    body = body or BulkRetryIn()
    result = await backend.app.bulk.retry(
        code=body.code,
        agent=body.agent,
        queue=body.queue,
        since=None if body.since is None else read_instant("since", body.since),
        tenant=caller.tenant,
        principal=caller.name,
        dry_run=body.dry_run,
        limit=body.limit,
        after=place_of(body.cursor) if body.cursor else None,
    )
    cursor = cursor_of(result.after) if result.after else None
    return BulkRetryOut(retried=result.retried, left=result.left, next_cursor=cursor)


@router.post("/cancel", status_code=202, responses=answers(body=True))
async def cancel_turns(caller: Sender, backend: Served, body: BulkCancelIn) -> BulkCancelOut:
    """Stop the open turn of each lane, or its next message. Other queued messages stay."""
    result = await backend.app.bulk.cancel(
        agent=body.agent,
        status=body.status,
        waiting=body.waiting,
        since=None if body.since is None else read_instant("since", body.since),
        tenant=caller.tenant,
        reason=body.reason,
        principal=caller.name,
        dry_run=body.dry_run,
        limit=body.limit,
        after=place_of(body.cursor) if body.cursor else None,
    )
    cursor = cursor_of(result.after) if result.after else None
    return BulkCancelOut(cancelled=result.cancelled, left=result.left, next_cursor=cursor)
