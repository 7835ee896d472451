"""Who is alive, and who owns which lane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from math import inf

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.store import Claim, Renewal, WorkerInfo
from outlast.stores.memory.permit import permits_of
from outlast.stores.memory.table import LaneRow, SessionRow, Tables, WorkerRow

Place = tuple[SessionRow, LaneRow]


class MemoryLease:
    """A worker's hold on life: its row, until it is released or found dead."""

    def __init__(self, tables: Tables, row: WorkerRow, clock: Clock) -> None:
        self._tables = tables
        self._row = row
        self._clock = clock

    def renew(self, tally: str = "") -> Renewal:
        """Extend the lease; say whether the worker is still known, and may go on."""
        if self._tables.workers.get(self._row.info.worker) is not self._row:
            return Renewal(alive=False)
        now = self._clock.now()
        lapsed = self._row.lease_until <= now
        self._row.lease_until = now + self._row.lease
        self._row.info = replace(self._row.info, tally=tally or self._row.info.tally)
        return Renewal(True, self._row.draining, lapsed)

    def release(self) -> None:
        """Give up the lease; the worker's lanes are free."""
        if self._tables.workers.get(self._row.info.worker) is self._row:
            del self._tables.workers[self._row.info.worker]


def enlist(tables: Tables, worker: WorkerInfo, lease: int, clock: Clock) -> MemoryLease:
    row = WorkerRow(worker, lease, clock.now() + lease)
    tables.workers[worker.worker] = row
    return MemoryLease(tables, row, clock)


def living(tables: Tables, now: int) -> list[WorkerInfo]:
    held = Counter(lane.worker for _, lane in all_lanes(tables))
    known = tables.workers.values()
    rows = [row for row in known if row.lease_until > now and not row.looks_dead]
    return [
        replace(
            row.info,
            seen_at=row.lease_until - row.lease,
            lease_until=row.lease_until,
            held=held[row.info.worker],
            draining=row.draining,
        )
        for row in sorted(rows, key=lambda row: (row.info.started_at, row.info.worker))
    ]


def drain(tables: Tables, worker: str, now: int) -> bool:
    is_there = is_living(tables, worker, now)
    if is_there:
        tables.workers[worker].draining = True
    return is_there


def is_living(tables: Tables, worker: str, now: int) -> bool:
    row = tables.workers.get(worker)
    return row is not None and row.lease_until > now


def bury_dead(tables: Tables) -> list[str]:
    """Strike those that look dead from the registry, and free their lanes."""
    dead = [worker for worker, row in tables.workers.items() if row.looks_dead]
    for worker in dead:
        del tables.workers[worker]
    for _, lane in all_lanes(tables):
        if lane.worker in dead:
            lane.worker = ""
    return dead


def claim(
    tables: Tables,
    worker: str,
    limit: int,
    held: Collection[tuple[str, str]],
    agents: Collection[str] | None,
    version: int,
    lanes: Collection[str] | None,
    most: Mapping[str, int],
    now: int,
) -> list[Claim]:
    """Give lanes to the worker one by one: each time to the tenant that has the fewest at work."""
    if not is_living(tables, worker, now):
        return []

    def is_suitable(place: Place) -> bool:
        session, lane = place
        fits = lanes is None or any(fnmatchcase(lane.name, pattern) for pattern in lanes)
        return fits and (agents is None or session.agent in agents) and lane.version <= version

    def is_free(place: Place) -> bool:
        session, lane = place
        if lane.worker == worker:
            return (session.id, lane.name) not in held
        return is_ready(lane, now) and not is_living(tables, lane.worker, now)

    free = [place for place in all_lanes(tables) if is_free(place) and is_suitable(place)]
    free.sort(key=lambda place: place[1].ready_at or 0)
    at_work = [place for place in all_lanes(tables) if is_living(tables, place[1].worker, now)]
    tenants = Counter(session.tenant for session, _ in at_work)
    busy = Counter(session.agent for session, _ in at_work)
    given: list[Claim] = []
    while free and len(given) < limit:
        session, lane = place = min(free, key=lambda place: tenants[place[0].tenant])
        free.remove(place)
        if lane.worker == worker or busy[session.agent] < most.get(session.agent, inf):
            tenants[session.tenant] += 1
            busy[session.agent] += 1
            given.append(take(tables, session, lane, worker, now))
    return given


def all_lanes(tables: Tables) -> Iterator[Place]:
    for session in tables.sessions.values():
        for lane in session.lanes.values():
            yield session, lane


def is_ready(lane: LaneRow, now: int) -> bool:
    return lane.ready_at is not None and lane.ready_at <= now


def take(tables: Tables, session: SessionRow, lane: LaneRow, worker: str, now: int) -> Claim:
    lane.worker = worker
    lane.fence += 1
    permits = (row.call_id for row in permits_of(tables, session.id, lane.name))
    return Claim(
        session.id,
        session.tenant,
        lane.name,
        session.agent,
        lane.fence,
        lane.number,
        lane.last_arrival,
        tuple(dict.fromkeys(permits)),
        now,
    )


def find_arrivals(tables: Tables, heads: Sequence[tuple[str, str, int]]) -> list[tuple[str, str]]:
    lanes = {(session.id, lane.name): lane.last_arrival for session, lane in all_lanes(tables)}
    return [
        (session, lane) for session, lane, seen in heads if lanes.get((session, lane), 0) > seen
    ]


def next_ready_at(tables: Tables, after: int, now: int) -> int | None:
    instants = (
        lane.ready_at
        for _, lane in all_lanes(tables)
        if lane.ready_at is not None
        and lane.ready_at > after
        and not is_living(tables, lane.worker, now)
    )
    return min(instants, default=None)
