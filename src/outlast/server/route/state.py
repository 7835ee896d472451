"""A session's state from outside: a snapshot of it, and changes that the owner of `main` makes."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Response

from outlast.agents.runtime.json_value import to_json
from outlast.agents.state.change_request import event_for, values_for
from outlast.agents.state.snapshot import Snapshot, checked_slices
from outlast.core.instant import date_of
from outlast.core.record import SliceValue
from outlast.core.slice import KeptSlice
from outlast.errors import InvalidInput
from outlast.server.body import JsonRoute
from outlast.server.dependency import Admin, Insider, Served, answers
from outlast.server.model.delivery import ReceiptOut, receipt_out
from outlast.server.model.state import SliceIn, SliceValueIn, SnapshotOut, StateChangeIn
from outlast.session import Receipt, Session

router = APIRouter(prefix="/sessions/{session_id}", tags=["state"], route_class=JsonRoute)


@router.get("/state", response_model=SnapshotOut, responses=answers(404))
async def read_state(session_id: str, caller: Insider, backend: Served) -> Response:
    """Return a snapshot: all slices of the session, and what it is known by."""
    session, _ = await backend.handle(caller, session_id)
    return Response((await session.snapshot()).to_json(), media_type="application/json")


@router.post("/state", status_code=202, responses=answers(404, 409, body=True))
async def change_state(
    session_id: str, body: StateChangeIn, caller: Admin, backend: Served
) -> ReceiptOut:
    """Change a session's state; its owner makes the change between two steps.

    Values are checked against the classes that the server's app declares.
    `GET …/result?delivery_id=` tells what became of it.
    """
    session, _ = await backend.handle(caller, session_id)
    now = date_of(backend.app.store.clock.date())
    return ReceiptOut(**receipt_out(await changed(session, body, caller.name, now)))


async def changed(
    session: Session[Any], body: StateChangeIn, principal: str, now: datetime
) -> Receipt[Any]:
    """Ask for a change as code in this process would; what does not fit its `op` is refused."""
    check_fields(body)
    values = [stored(each) for each in body.values]
    everything = session.mutate(principal=principal)
    if body.op == "reset":
        return await everything.reset(dispatch_id=body.dispatch_id)
    if body.op == "rollback":
        snapshot = snapshot_of(session.id, body.slices or {}, now)
        return await everything.rollback(snapshot, dispatch_id=body.dispatch_id)
    if body.op == "dispatch":
        event = event_for(body.slice or "", body.event or "", values[0])
        if not body.slice:
            return await everything.dispatch(event, dispatch_id=body.dispatch_id)
        kind, _ = values_for(body.slice, ())
        one = session.mutate(kind, principal=principal)
        return await one.dispatch(event, dispatch_id=body.dispatch_id)
    kind, loaded = values_for(body.slice or "", values)
    changes = session.mutate(kind, principal=principal)
    if body.op == "append":
        return await changes.append(loaded[0], dispatch_id=body.dispatch_id)
    return await changes.seed(*loaded, dispatch_id=body.dispatch_id)


def stored(given: SliceValueIn) -> SliceValue:
    return SliceValue(to_json(given.value), given.version)


def snapshot_of(session_id: str, given: dict[str, SliceIn], now: datetime) -> Snapshot:
    """Return slices as a snapshot that is taken now; nobody brings along those of Outlast's own."""
    slices = {
        name: KeptSlice(tuple(stored(value) for value in each.values), each.log)
        for name, each in given.items()
    }
    return Snapshot(
        session_id=session_id,
        created_at=now,
        taken_at=now,
        offset=0,
        slices=checked_slices(slices),
    )


NEEDS = {
    "seed": {"slice"},
    "append": {"slice", "values"},
    "dispatch": {"event", "values"},
    "reset": set[str](),
    "rollback": {"slices"},
}
MAY_HAVE = {"seed": {"values"}, "dispatch": {"slice"}}


def check_fields(body: StateChangeIn) -> None:
    """Refuse a change that lacks what its `op` needs, or has what means nothing to it."""
    given = {name for name in ("slice", "event", "values") if getattr(body, name)}
    given |= {"slices"} if body.slices is not None else set()
    needed = NEEDS[body.op]
    if missing := sorted(needed - given):
        raise InvalidInput(f"{body.op} needs {' and '.join(missing)}")
    if extra := sorted(given - needed - MAY_HAVE.get(body.op, set())):
        raise InvalidInput(f"{body.op} takes no {' and no '.join(extra)}: leave it out")
    if body.op != "seed" and len(body.values) > 1:
        raise InvalidInput(f"{body.op} takes one value, not {len(body.values)}: ask once for each")
