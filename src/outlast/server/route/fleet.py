"""The routes of the fleet: lanes, the workers that carry them, deployments, and providers.

Owns the cursor over lanes. Lanes are a tenant's own; workers, deployments and providers are the
same for all tenants. What each looks like over the wire is in `server/model/fleet.py`.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated

import msgspec
from fastapi import APIRouter, Body, Path, Query

from outlast.core.instant import rfc3339
from outlast.core.lane import Status
from outlast.engine.counters import counters_of
from outlast.server.backend import is_id
from outlast.server.body import JsonRoute
from outlast.server.dependency import Admin, Insider, Reader, Served, answers
from outlast.server.error import invalid_cursor
from outlast.server.model.fleet import (
    DeploymentOut,
    DeploymentsOut,
    LaneOut,
    LanePage,
    ProviderOut,
    ProvidersOut,
    RetiredOut,
    RetireIn,
    TriedOut,
    TryProvidersIn,
    WorkerOut,
    WorkersOut,
)
from outlast.server.model.session import failure_out, lane_failure_out
from outlast.server.model.shape import Id, rfc3339_or_none
from outlast.server.principal import INTERNALS
from outlast.server.route.session import Limit
from outlast.session.provider import ProviderOutage
from outlast.store import DeploymentInfo, LaneInfo, WorkerInfo

DeploymentName = Annotated[Id, Path(description="The name that its workers have.")]

router = APIRouter(tags=["fleet"], route_class=JsonRoute)


@router.get("/lanes", responses=answers(400, 404))
async def list_lanes(
    caller: Reader,
    backend: Served,
    session_id: Annotated[Id | None, Query(description="Only those of this session.")] = None,
    agent: Annotated[Id | None, Query(description="Only those of this agent.")] = None,
    status: Annotated[Status | None, Query(description="Only those that are this.")] = None,
    cursor: Annotated[Id | None, Query(description="From where the last page ended.")] = None,
    limit: Limit = 50,
) -> LanePage:
    """List lanes, those of the newest session first."""
    if session_id is not None:
        await backend.owned_session(caller, session_id)
    found = await backend.app.workers.lanes(
        session_id=session_id,
        tenant=caller.tenant,
        agent=agent,
        status=status,
        after=place_of(cursor) if cursor else None,
        limit=limit,
    )
    shows_owner = caller.may(INTERNALS)
    place = (found[-1].session_id, found[-1].lane) if found else ("", "")
    return LanePage(
        lanes=[lane_out(info, shows_owner=shows_owner) for info in found],
        next_cursor=cursor_of(place) if len(found) == limit else None,
    )


def lane_out(info: LaneInfo, *, shows_owner: bool) -> LaneOut:
    return LaneOut(
        session_id=info.session_id,
        agent=info.agent,
        lane=info.lane,
        status=info.status,
        turn=info.turn or None,
        queued=info.queued,
        failure=lane_failure_out(info.failure),
        wait=list(info.wait),
        ready_at=rfc3339_or_none(info.ready_at),
        worker=(info.worker or None) if shows_owner else None,
        fence=info.fence if shows_owner else None,
    )


def cursor_of(place: tuple[str, str]) -> str:
    """Return the cursor that stands behind a session's lane."""
    return urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def place_of(cursor: str) -> tuple[str, str]:
    """Return the lane that a cursor stands behind."""
    try:
        raw = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        session_id, lane = msgspec.json.decode(raw, type=tuple[str, str])
    except (ValueError, msgspec.MsgspecError):
        raise invalid_cursor("cursor") from None
    if not (is_id(session_id) and is_id(lane)):
        raise invalid_cursor("cursor")
    return session_id, lane


@router.get("/workers", responses=answers())
async def list_workers(caller: Insider, backend: Served) -> WorkersOut:
    """List the living workers, oldest first. Workers belong to no tenant."""
    return WorkersOut(workers=[worker_out(info) for info in await backend.app.workers.list()])


def worker_out(info: WorkerInfo) -> WorkerOut:
    return WorkerOut(
        worker=info.worker,
        host=info.host,
        pid=info.pid,
        version=info.version,
        started_at=rfc3339(info.started_at),
        seen_at=rfc3339_or_none(info.seen_at),
        lease_until=rfc3339_or_none(info.lease_until),
        agents=list(info.agents),
        lanes=list(info.lanes),
        concurrency=info.concurrency,
        held=info.held,
        draining=info.draining,
        silent=info.silent,
        evidence=list(info.evidence),
        liveness_address=info.liveness_address,
        counters=counters_of(info),
        deployment=info.deployment,
    )


@router.get("/deployments", responses=answers())
async def list_deployments(caller: Insider, backend: Served) -> DeploymentsOut:
    """List the deployments that workers have named, the current one first."""
    found = await backend.app.deployments.list()
    return DeploymentsOut(deployments=[deployment_out(each) for each in found])


@router.post("/deployments/{name}/promote", status_code=204, responses=answers(400, 404))
async def promote_deployment(caller: Admin, backend: Served, name: DeploymentName) -> None:
    """Make a deployment the current one of its agents: a rollback, or the end of one."""
    await backend.app.deployments.promote(name)


@router.post("/deployments/{name}/retire", responses=answers(400, 404, body=True))
async def retire_deployment(
    caller: Admin, backend: Served, name: DeploymentName, body: RetireIn
) -> RetiredOut:
    """Move all that is pinned to a deployment to another one."""
    return RetiredOut(moved=await backend.app.deployments.retire(name, to=body.to))


def deployment_out(info: DeploymentInfo) -> DeploymentOut:
    return DeploymentOut(
        name=info.name,
        agents=list(info.agents),
        current=list(info.current),
        began_at=rfc3339(info.began_at),
        workers=info.workers,
        turns=info.turns,
        runs=info.runs,
        sessions=info.sessions,
        oldest_at=rfc3339_or_none(info.oldest_at),
        can_be_retired=info.can_be_retired,
    )


@router.get("/providers", responses=answers())
async def list_providers(
    caller: Insider,
    backend: Served,
    agent: Annotated[Id | None, Query(description="Only that of this agent.")] = None,
) -> ProvidersOut:
    """List the providers that do not answer. They are the same for all tenants."""
    found = await backend.app.providers.list(agent=agent)
    return ProvidersOut(providers=[provider_out(each) for each in found])


@router.post("/providers/try", status_code=202, responses=answers(body=True))
async def try_providers(
    caller: Insider, backend: Served, body: Annotated[TryProvidersIn | None, Body()] = None
) -> TriedOut:
    """Have the first session in the line of each provider ask it now, not when its time comes."""
    agent = body.agent if body else None
    return TriedOut(tried=await backend.app.providers.try_now(agent=agent))


def provider_out(outage: ProviderOutage) -> ProviderOut:
    return ProviderOut(
        agent=outage.agent,
        model=outage.model,
        address=outage.address,
        state=outage.state,
        since=rfc3339(outage.since),
        error=failure_out(outage.error),
        failures=outage.failures,
        blocked=outage.blocked,
        next_try_at=rfc3339(outage.next_try_at),
        waiting=outage.waiting,
        deployment=outage.deployment,
    )
