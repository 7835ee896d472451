"""How the server is: alive, ready, and in numbers."""

from fastapi import APIRouter, Response

from outlast.server.body import JsonRoute
from outlast.server.dependency import Insider, Served, answers
from outlast.server.error import unavailable
from outlast.server.metric import CONTENT_TYPE, exposition
from outlast.server.model.fleet import Health

router = APIRouter(tags=["health"], route_class=JsonRoute)


@router.get("/healthz", responses=answers(is_open=True))
async def is_alive() -> Health:
    """Say that the process is there."""
    return Health()


@router.get("/readyz", responses=answers(is_open=True))
async def is_ready(backend: Served) -> Health:
    """Say whether the store can be reached; looked at once a second at most."""
    if not await backend.readiness.is_ready():
        raise unavailable()
    return Health()


@router.get(
    "/metrics",
    response_class=Response,
    responses={**answers(), 200: {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}}},
)
async def read_metrics(caller: Insider, backend: Served) -> Response:
    """Return metrics as Prometheus reads them. They count all tenants' sessions together."""
    store = backend.app.store
    lines = exposition(
        await store.listing.census(),
        await store.work.workers(),
        await backend.app.providers.list(),
        await backend.app.queues.list(),
        backend.streams.total,
        store.clock.date(),
    )
    return Response("\n".join(lines) + "\n", media_type=CONTENT_TYPE)
