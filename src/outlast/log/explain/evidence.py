"""Everything an explanation may look at, and how it is read from a store.

Owns the reads. The explanation itself is pure: see `lane.py`, `turn.py`, `owner.py`, `obstacle.py`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from types import UnionType

from msgspec import Struct

from outlast.core import record as r
from outlast.core.amount import BudgetState
from outlast.core.breaker import Breaker, is_line
from outlast.core.budget import keys_of, on_day
from outlast.core.fold import fold_all
from outlast.core.instant import date_of
from outlast.core.lane import BUDGET, Lane
from outlast.errors import UnknownSession
from outlast.log.breaker import list_breakers
from outlast.log.reader import EntriesBefore
from outlast.log.snapshot import load_start
from outlast.store import (
    DeliveryInfo,
    DeploymentInfo,
    EffectClaim,
    LaneInfo,
    OutboxCursor,
    PermitInfo,
    Pin,
    RequestInfo,
    SessionInfo,
    Store,
    WorkerInfo,
)


class ExplainEvidence(Struct, frozen=True, kw_only=True):
    """All that an explanation is made of.

    `states` are the folds of the lanes by name. `entries` are those of the log, in order, as
    far back as the open turns began, or as the session's end. `permits` are the session's own,
    `holders` those that others have and it waits for, `keys` the idempotency keys of its open calls
    that some call holds, `at_work` the lanes of its agent at work, if there is a limit to them, and
    `breakers` the providers that do not answer, if it stands in the line of one. `pins` are those
    of its lanes, and `deployments` all that there are. `cursors` are those by which it is told.
    """

    session: SessionInfo
    states: dict[str, Lane]
    entries: tuple[r.Entry, ...]
    deliveries: tuple[DeliveryInfo, ...] = ()
    requests: tuple[RequestInfo, ...] = ()
    workers: tuple[WorkerInfo, ...] = ()
    permits: tuple[PermitInfo, ...] = ()
    holders: tuple[PermitInfo, ...] = ()
    keys: Mapping[r.IdempotencyKey, EffectClaim] = {}
    at_work: tuple[LaneInfo, ...] = ()
    breakers: tuple[Breaker, ...] = ()
    pins: Mapping[str, Pin] = {}
    deployments: tuple[DeploymentInfo, ...] = ()
    now: datetime
    budgets: tuple[BudgetState, ...] = ()
    cursors: tuple[OutboxCursor, ...] = ()

    def find(self, lane: str, kind: type | UnionType, **facts: object) -> r.Entry | None:
        """Return the last entry of a lane with a record of this kind and with these facts."""
        ours = (e for e in reversed(self.entries) if e.lane == lane and isinstance(e.record, kind))
        wanted = facts.items()
        return next((e for e in ours if all(getattr(e.record, k) == v for k, v in wanted)), None)

    def when(self, lane: str, kind: type, **facts: object) -> datetime | None:
        """Return the instant of that entry, if there is one."""
        entry = self.find(lane, kind, **facts)
        return date_of(entry.at) if entry else None


async def gather(store: Store, session_id: str, now: datetime) -> ExplainEvidence:
    """Read all that an explanation of a session needs."""
    session = await store.listing.session(session_id)
    if session is None:
        raise UnknownSession(f"there is no session {session_id}", session=session_id)
    states = {info.lane: await read_state(store, session_id, info.lane) for info in session.lanes}
    workers = await store.work.workers()
    permits = await store.limit.permits(session_id)
    return ExplainEvidence(
        session=session,
        states=states,
        entries=await read_entries(store, session, states),
        deliveries=tuple(await store.listing.deliveries(session_id)),
        requests=tuple(await store.listing.requests(session_id)),
        workers=tuple(workers),
        permits=tuple(permits),
        holders=tuple(await read_holders(store, permits)),
        keys=await read_keys(store, states),
        at_work=tuple(await read_at_work(store, session.agent, workers)),
        breakers=tuple(await list_breakers(store)) if any_in_line(permits) else (),
        pins=await store.listing.pins(session_id),
        deployments=tuple(await store.work.deployments()),
        budgets=tuple(await read_budgets(store, session.tenant, states, now)),
        cursors=tuple(await store.outbox.cursors(session_id)),
        now=now,
    )


async def read_budgets(
    store: Store, tenant: str, states: Mapping[str, Lane], now: datetime
) -> Sequence[BudgetState]:
    """Read how the budgets stand that lanes wait for."""
    day = int(now.timestamp() * 1000)
    waiting = [state for state in states.values() if BUDGET in state.waiting]
    keys = dict.fromkeys(on_day(key, day) for state in waiting for key in keys_of(state))
    return await store.budget.find_budgets(tenant, tuple(keys)) if keys else ()


def any_in_line(permits: Sequence[PermitInfo]) -> bool:
    return any(is_line(permit.name) for permit in permits)


async def read_state(store: Store, session_id: str, lane: str) -> Lane:
    found = await load_start(partial(store.log.load, session_id, lane), session_id, lane)
    state = found.state or Lane(session=session_id, name=lane)
    return fold_all(state, (e for e in found.loaded.entries if e.offset > found.offset))


async def read_holders(store: Store, permits: Sequence[PermitInfo]) -> list[PermitInfo]:
    """Read which calls hold the permits that a session's calls wait for."""
    names = dict.fromkeys(permit.name for permit in permits if not permit.held)
    return [
        permit for name in names for permit in await store.limit.permits(name=name) if permit.held
    ]


async def read_keys(
    store: Store, states: Mapping[str, Lane]
) -> dict[r.IdempotencyKey, EffectClaim]:
    """Read which calls hold the keys that open calls are under."""
    calls = [call for lane in states.values() if lane.turn for call in lane.turn.calls.values()]
    held = {}
    for key in dict.fromkeys(call.dedupe for call in calls if call.dedupe and not call.is_done):
        effect = await store.log.effect(key.scope, key.key)
        if effect and effect.state == "held":
            held[key] = effect
    return held


async def read_at_work(store: Store, agent: str, workers: Sequence[WorkerInfo]) -> list[LaneInfo]:
    """Read which lanes of an agent are at work, as far as its limit counts them."""
    most = max((worker.at_once.get(agent, 0) for worker in workers), default=0)
    return [
        lane
        for worker in (workers if most else ())
        for lane in await store.listing.lanes(agent=agent, worker=worker.worker, limit=most)
    ]


async def read_entries(
    store: Store, session: SessionInfo, states: dict[str, Lane]
) -> tuple[r.Entry, ...]:
    """Read back to where the open turns began, and to the session's end if it is over."""
    wanted = {state.turn.id for state in states.values() if state.turn}
    wanted |= {session.over} if session.over else set()
    found: list[r.Entry] = []
    if wanted:
        async for entry in EntriesBefore(store.log, session.session_id, session.end + 1):
            found.append(entry)
            match entry.record:
                case r.TurnStarted(turn=turn):
                    wanted.discard(turn)
                case r.SessionCompleted() | r.SessionFailed() | r.SessionEnded():
                    wanted.discard(session.over)
            if not wanted:
                break
    return tuple(reversed(found))
