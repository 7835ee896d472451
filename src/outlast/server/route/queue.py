"""Queues: how many turns run and wait in each, and what bounds them. They are the fleet's."""

from fastapi import APIRouter

from outlast.server.body import JsonRoute
from outlast.server.dependency import Admin, Insider, Served, answers
from outlast.server.model.queue import QueueIn, QueueOut, QueuesOut, queue_out

router = APIRouter(prefix="/queues", tags=["fleet"], route_class=JsonRoute)


@router.get("", responses=answers())
async def list_queues(caller: Insider, backend: Served) -> QueuesOut:
    """List all queues. They are the same for all tenants."""
    return QueuesOut(queues=[queue_out(each) for each in await backend.app.queues.list()])


@router.get("/{name}", responses=answers(404))
async def show_queue(name: str, caller: Insider, backend: Served) -> QueueOut:
    """Show one queue."""
    return queue_out(await backend.app.queues.get(name))


@router.post("/{name}", responses=answers(body=True))
async def change_queue(name: str, body: QueueIn, caller: Admin, backend: Served) -> QueueOut:
    """Change settings of a queue, or make it; that holds at once, in all workers."""
    return queue_out(await backend.app.queues.set(name, **body.model_dump()))


@router.delete("/{name}", status_code=204, responses=answers(404))
async def remove_queue(name: str, caller: Admin, backend: Served) -> None:
    """Forget a queue's settings: nothing bounds its turns any more."""
    await backend.app.queues.remove(name)
