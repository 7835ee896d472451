"""Runs of workflows: start one, list them, read one's stream and its record, steer it."""

from contextlib import nullcontext
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from outlast.agents.runtime.json_value import from_json, to_json
from outlast.app import Outlast
from outlast.core.instant import seconds
from outlast.core.tag import tags_of
from outlast.errors import UnknownRun, UnknownSession
from outlast.server.backend import ServerBackend
from outlast.server.body import JsonRoute, WaitingRoute, in_time
from outlast.server.dependency import Reader, Sender, Served, answers
from outlast.server.model.delivery import AcceptedOut
from outlast.server.model.run import (
    RunCancelIn,
    RunEventIn,
    RunIn,
    RunOut,
    RunPage,
    RunResultOut,
    RunRetryIn,
    RunStartedOut,
    RunStepsOut,
    run_item,
    run_out,
    run_result_out,
    run_step_out,
)
from outlast.server.model.shape import Id
from outlast.server.principal import INTERNALS, READ, Principal
from outlast.server.route.reading import LONGEST, PAGE_BYTES
from outlast.server.route.session import Limit, TagsSought
from outlast.server.stream.durable import durable_response
from outlast.server.stream.encoding import SSE
from outlast.server.stream.protocol import DurableQuery, asked
from outlast.server.stream.route import DURABLE, EVENT, TEXT
from outlast.session.inbox import deadline_of
from outlast.session.run import Run, RunStatus
from outlast.session.run_history import read_steps
from outlast.session.start import Webhook
from outlast.store import SessionInfo

STEP_CURSOR = "^[0-9]{1,15}(-[0-9]{1,15})?$"

starting = APIRouter(prefix="/workflows", tags=["runs"], route_class=WaitingRoute)
router = APIRouter(prefix="/runs", tags=["runs"], route_class=JsonRoute)

STREAM: dict[int | str, dict[str, Any]] = {
    **DURABLE,
    200: {
        "description": "Events after the offset; with `meta` the record of the run instead.",
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {"type": "array", "items": {"type": "object"}},
                        {"$ref": "#/components/schemas/RunOut"},
                    ]
                },
                "example": [EVENT],
            },
            SSE.media_type: TEXT,
        },
    },
}


@starting.post(
    "/{name}",
    status_code=202,
    responses={
        **answers(404, 409, body=True),
        200: {"model": RunStartedOut, "description": "It has ended: see `result`."},
    },
)
async def start_run(
    name: Id,
    body: RunIn,
    caller: Sender,
    backend: Served,
    request: Request,
    response: Response,
    wait: Annotated[
        Literal["result"] | None,
        Query(description="`result`: answer when the run has ended, needs a human, or is late."),
    ] = None,
    timeout: Annotated[
        float, Query(ge=0, le=LONGEST, description="How many seconds to wait at most.")
    ] = LONGEST,
) -> RunStartedOut:
    """Start a run of a workflow; the run is durable when this answers.

    To wait for its result needs the scope `read`, too. A run that has not ended by then goes on:
    the answer is 202, and its stream tells the rest.
    """
    if wait:
        backend.principal(request, READ)
    # Before it is started: a caller that may not wait is told so, and has no run that it knows not.
    async with backend.hold(caller) if wait else nullcontext():
        run = await in_time(start(backend.app, name, body, caller), backend.settings.timeout)
        if not wait:
            return started(backend, request, response, run)
        limit = timeout + seconds(backend.settings.timeout)
        result = await in_time(run.wait(timeout=timeout), limit)
    await backend.check_still_valid(request)
    found = run_result_out(result, from_json(to_json(result.output)), name)
    if found.status in ("completed", "errored", "cancelled"):
        response.status_code = 200
    return started(backend, request, response, run, found)


async def start(app: Outlast, name: str, body: RunIn, caller: Principal) -> Run[Any]:
    hook = body.webhook
    return await app.run(
        name,
        body.input,
        dispatch_id=body.dispatch_id,
        delay=body.delay,
        deadline=deadline_of(body.deadline),
        tags=body.tags,
        tenant=caller.tenant,
        principal=caller.name,
        capabilities=body.capabilities.model_dump() if body.capabilities else None,
        webhook=Webhook(hook.url, hook.events, hook.secret) if hook else None,
        queue=body.queue.value() if body.queue else None,
    )


@router.get("", responses=answers(400))
async def list_runs(
    caller: Reader,
    backend: Served,
    workflow: Annotated[Id | None, Query(description="Only those of this workflow.")] = None,
    status: Annotated[RunStatus | None, Query(description="Only those that are this.")] = None,
    tag: TagsSought = None,
    cursor: Annotated[Id | None, Query(description="From where the last page ended.")] = None,
    limit: Limit = 50,
) -> RunPage:
    """List runs, newest first."""
    found = await backend.app.runs(
        workflow,
        tenant=caller.tenant,
        status=status,
        tags=tags_of(tag),
        before=cursor,
        limit=limit,
    )
    return RunPage(
        runs=[run_item(each) for each in found],
        next_cursor=found[-1].run_id if len(found) == limit else None,
    )


@router.head("/{run_id}", name="look_at_run", response_class=Response, responses=STREAM)
@router.get("/{run_id}", response_class=Response, responses=STREAM)
async def read_run(
    request: Request,
    run_id: str,
    caller: Reader,
    backend: Served,
    wanted: Annotated[DurableQuery, Depends(asked)],
    meta: Annotated[
        str | None, Query(description="Give the record of the run instead, whatever this says.")
    ] = None,
) -> Response:
    """Read the stream of a run by the Durable Streams protocol, or with `?meta` its record."""
    info = await owned_run(backend, caller, run_id)
    if meta is not None:
        run = await backend.app.get_run(info.session_id)
        record: RunOut = run_out(await run.meta())
        return JSONResponse(record.model_dump(mode="json"), headers={"Cache-Control": "no-store"})
    if wanted.internals:
        backend.principal(request, INTERNALS)
    return await durable_response(backend, request, caller, info, wanted)


@router.post("/{run_id}/cancel", status_code=202, responses=answers(404, 409, body=True))
async def cancel_run(
    run_id: str,
    caller: Sender,
    backend: Served,
    body: Annotated[RunCancelIn | None, Body()] = None,
) -> AcceptedOut:
    """Stop a run. What it has done is undone as its body said; its log stays."""
    run = await found_run(backend, caller, run_id)
    await run.cancel(body.reason if body else "", principal=caller.name)
    return AcceptedOut()


@router.post("/{run_id}/retry", status_code=202, responses=answers(404, 409, body=True))
async def retry_run(
    run_id: str,
    caller: Sender,
    backend: Served,
    request: Request,
    response: Response,
    body: Annotated[RunRetryIn | None, Body()] = None,
) -> RunStartedOut:
    """Start a new run that tries this one again, with what has succeeded in it."""
    run = await found_run(backend, caller, run_id)
    again = await run.retry(dispatch_id=body.dispatch_id if body else None, principal=caller.name)
    return started(backend, request, response, again)


@router.post("/{run_id}/events", status_code=202, responses=answers(404, 409, body=True))
async def send_event(run_id: str, caller: Sender, backend: Served, body: RunEventIn) -> AcceptedOut:
    """Send an event to a run; it is kept until the body waits for one of its name."""
    run = await found_run(backend, caller, run_id)
    await run.send_event(
        body.name, body.payload, dispatch_id=body.dispatch_id, principal=caller.name
    )
    return AcceptedOut()


@router.get("/{run_id}/steps", responses=answers(400, 404))
async def read_run_steps(
    run_id: str,
    caller: Reader,
    backend: Served,
    cursor: Annotated[
        str | None, Query(pattern=STEP_CURSOR, description="From where the last page ended.")
    ] = None,
    limit: Limit = 100,
) -> RunStepsOut:
    """List the steps of a run in the order in which they began."""
    info = await owned_run(backend, caller, run_id)
    steps, may_go_on = await read_steps(
        backend.app.store, info.session_id, cursor or "", limit, most_bytes=PAGE_BYTES
    )
    return RunStepsOut(
        steps=[run_step_out(step) for step in steps],
        next_cursor=steps[-1].cursor if may_go_on else None,
    )


def started(
    backend: ServerBackend,
    request: Request,
    response: Response,
    run: Run[Any],
    result: RunResultOut | None = None,
) -> RunStartedOut:
    """Say where a run is read, in a header too."""
    url = backend.url(request, f"/runs/{run.id}")
    response.headers["Location"] = url
    return RunStartedOut(run_id=run.id, stream_url=url, duplicate=run.duplicate, result=result)


async def found_run(backend: ServerBackend, caller: Principal, run_id: str) -> Run[Any]:
    info = await owned_run(backend, caller, run_id)
    return await backend.app.get_run(info.session_id)


async def owned_run(backend: ServerBackend, caller: Principal, run_id: str) -> SessionInfo:
    """Return a run of the caller's tenant; others, and sessions, do not exist for it."""
    unknown = UnknownRun(f"there is no run {run_id:.64}", run=run_id[:64])
    try:
        info = await backend.owned_session(caller, run_id)
    except UnknownSession:
        raise unknown from None
    if info.mode != "run":
        raise unknown
    return info
