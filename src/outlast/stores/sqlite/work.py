"""The topic `work` in SQLite: workers with their signs of life, claims of lanes, hints.

See `outlast.store.work` for the promises. A worker shows that it lives by a lock on a file
(`liveness.py`) and by its lease (`worker_lease.py`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from outlast.core.instant import milliseconds_at
from outlast.core.record import FORMAT
from outlast.store import NO_LIMITS, Claim, TakeoverEvidence, Unfinished, WorkerInfo
from outlast.store.work import MOST_COUNTED, NO_PIN, DeploymentInfo, Pin
from outlast.stores.listener import EVERYTHING, Heard
from outlast.stores.lock_file import LockFile, machine
from outlast.stores.sqlite import listing
from outlast.stores.sqlite.access import Access
from outlast.stores.sqlite.database import (
    Database,
    Row,
    to_json,
)
from outlast.stores.sqlite.file import FileAccess
from outlast.stores.sqlite.liveness import LivenessObserver, lock_path, workers_directory
from outlast.stores.sqlite.worker_lease import SqliteLease, bury


def write_claim(
    db: Database,
    worker: str,
    limit: int,
    held: Sequence[tuple[str, str]],
    agents: Sequence[str] | None,
    version: int,
    lanes: Sequence[str] | None,
    most: Mapping[str, int],
) -> list[Claim]:
    """Give lanes to the worker, fairly among tenants; those ready for longest first."""
    # A store without deployments pays for none of the questions about them.
    since, deployment, is_pinned = db.one("claimer", {"worker": worker}) or (0, "", 0)
    others, served = pins_for(db, deployment) if is_pinned else (None, None)
    rows = db.all(
        "claim",
        {
            "worker": worker,
            "limit": max(0, limit),
            "held": to_json([f"{session_id} {lane}" for session_id, lane in held]),
            "agents": None if agents is None else to_json(list(agents)),
            "lanes": None if lanes is None else to_json([to_glob(name) for name in lanes]),
            "most": to_json(dict(most)),
            "version": version,
            "now": db.clock.now(),
            "arrived_since": since,
            "deployment": deployment,
            "others": others,
            "served": served,
        },
    )
    # RETURNING gives rows in no certain order.
    rows.sort(key=lambda row: row[-2:])
    return [claim_of(row) for row in rows]


def pins_for(db: Database, deployment: str) -> tuple[str, str]:
    """Return the agents of which another deployment is current, and who serves which, as JSON."""
    current = db.all("current_deployments", {})
    others = [agent for agent, name, _ in current if name != deployment]
    served = [name for (name,) in db.all("served", {"now": db.clock.now()})]
    return to_json(others), to_json(served)


def read_unfinished(
    db: Database, agents: Sequence[str], lanes: Sequence[str] | None, living: Sequence[str]
) -> Unfinished:
    now = db.clock.now()
    rows = db.all(
        "unfinished",
        {
            "agents": to_json(list(agents)),
            "lanes": None if lanes is None else to_json([to_glob(name) for name in lanes]),
            "living": to_json(list(living)),
            "version": FORMAT,
            "now": now,
            "limit": MOST_COUNTED + 1,
        },
    )
    unserved = db.all(
        "unserved", {"agents": to_json(list(agents)), "now": now, "limit": MOST_COUNTED}
    )
    oldest_at = min((ready_at for *_, ready_at in rows), default=None)
    is_whole = sum(found for _, _, found, _ in rows) <= MOST_COUNTED
    sessions = {agent: count for agent, count, *_ in rows}
    return Unfinished(sessions, oldest_at, now, is_whole, dict(unserved))


def claim_of(row: Row) -> Claim:
    *known, evidence, permits, pinned, _, _ = row
    calls = tuple(msgspec.json.decode(permits))
    pin = pin_of(*msgspec.json.decode(pinned)) if pinned else NO_PIN
    return replace(Claim(*known), permits=calls, evidence=evidence, pin=pin)


def pin_of(deployment: str, stays: int) -> Pin:
    return Pin(deployment, bool(stays))


def to_glob(pattern: str) -> str:
    """Return a pattern in which only `*` is special, as SQLite's GLOB takes it."""
    return "".join(f"[{char}]" if char in "?[" else char for char in pattern)


def make_current(db: Database, deployment: str) -> bool:
    is_there = db.one("promote", {"name": deployment, "now": db.clock.now()}) is not None
    have_look_first(db, deployment)
    # Lanes may be another worker's to claim from now on: each has to look.
    db.tell("", arrived=True)
    return is_there


def have_look_first(db: Database, deployment: str) -> None:
    """Give what waits for code to the workers of a deployment where it is the current one, now.

    Otherwise those of a bad version, which are still there, might look first again and again.
    """
    now = db.clock.now()
    served = {name for (name,) in db.all("served", {"now": now})}
    known = db.all("current_deployments", {})
    ours = [a for a, name, _ in known if name == deployment and f"{name} {a}" in served]
    agents = to_json(ours)
    for (lid,) in db.all("find_waiting_for_code", {"agents": agents}):
        db.run("pin_to_current", {"name": deployment, "lid": lid})
        db.run("look_now", {"now": now, "lid": lid})


LONG_GONE = 24 * 3_600_000

Deaths = dict[str, TakeoverEvidence]


class LaneWork:
    """The part of `outlast.store.WorkStore` that is the same on a file and in memory."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def claim(
        self,
        worker: str,
        limit: int,
        held: Sequence[tuple[str, str]] = (),
        agents: Sequence[str] | None = None,
        version: int = FORMAT,
        lanes: Sequence[str] | None = None,
        most: Mapping[str, int] = NO_LIMITS,
    ) -> Sequence[Claim]:
        (claims,) = await self._access.write(
            partial(
                write_claim,
                worker=worker,
                limit=limit,
                held=held,
                agents=agents,
                version=version,
                lanes=lanes,
                most=most,
            )
        )
        return list(claims)

    async def find_arrivals(
        self, heads: Sequence[tuple[str, str, int]]
    ) -> Sequence[tuple[str, str]]:
        return await self._access.read(lambda db: listing.find_arrivals(db, heads))

    async def next_ready_at(self, after: int) -> int | None:
        return await self._access.read(lambda db: listing.next_ready_at(db, after))

    async def find_unfinished(
        self, agents: Sequence[str], lanes: Sequence[str] | None, living: Sequence[str]
    ) -> Unfinished:
        return await self._access.read(lambda db: read_unfinished(db, agents, lanes, living))

    def listen(self, heard: Heard, session_id: str = EVERYTHING) -> Callable[[], None]:
        return self._access.listen(heard, session_id)

    async def drain(self, worker: str) -> bool:
        def ask(db: Database) -> bool:
            is_there = db.one("drain", {"worker": worker, "now": db.clock.now()}) is not None
            if is_there:
                db.tell("", arrived=True)
            return is_there

        (is_there,) = await self._access.write(ask)
        return bool(is_there)

    async def deployments(self) -> Sequence[DeploymentInfo]:
        return await self._access.read(listing.deployments)

    async def promote(self, deployment: str) -> bool:
        def change(db: Database) -> bool:
            return make_current(db, deployment)

        (is_there,) = await self._access.write(change)
        return bool(is_there)

    async def retire(self, deployment: str, to: str) -> int | None:
        def move(db: Database) -> int | None:
            names = [each.name for each in listing.deployments(db)]
            if not {deployment, to} <= {*names}:
                return None
            was_current = {n for _, n, _ in db.all("current_deployments", {})}
            db.run("demote", {"name": deployment, "to": to})
            if deployment in was_current:
                make_current(db, to)
            db.tell("", arrived=True)
            return db.run("move_pins", {"name": deployment, "to": to})

        (moved,) = await self._access.write(move)
        return moved if moved is None else int(moved)

    async def _bury(self, dead: Deaths) -> Deaths:
        """Strike dead workers and free their lanes; return those that were still registered."""

        def strike(db: Database) -> Deaths:
            found = {worker: why for worker, why in dead.items() if bury(db, worker, why)}
            if found:
                db.tell("", arrived=True)
            return found

        (found,) = await self._access.write(strike)
        return dict(found)


class SqliteWork(LaneWork):
    """See `outlast.store.WorkStore`."""

    def __init__(self, access: FileAccess) -> None:
        super().__init__(access)
        self._file = access
        self._clock = access.clock
        self._directory = workers_directory(access.path)
        self._observer = LivenessObserver(self._directory, access.clock)
        self._machine = machine()
        self._leases: dict[str, SqliteLease] = {}

    async def enlist(self, worker: WorkerInfo, lease: int) -> SqliteLease:
        self._file.open_writer()
        # A worker of this process that enlists again under its name: its own lock would stand in
        # its way.
        if earlier := self._leases.pop(worker.worker, None):
            earlier.let_go()
        # The lock comes before the row: a registered worker without a lock would look dead.
        lock = LockFile(lock_path(self._directory, worker.worker))
        await asyncio.to_thread(lock.take)
        held = SqliteLease(
            worker.worker, lease, lock, self._file.path, self._file.watch, self._clock
        )
        try:
            await self._access.write(
                partial(register, info=worker, length=lease, machine=self._machine)
            )
        except BaseException:
            held.let_go()
            raise
        self._leases[worker.worker] = held
        return held

    async def find_dead(self) -> Deaths:
        dead = await self._access.read(self._look)
        if not dead:
            return {}
        found = await self._bury(dead)
        # Only after the deaths are recorded: a file that is missing says nothing, so no other
        # observer could find them.
        for worker in found:
            LockFile(lock_path(self._directory, worker)).remove()
        return found

    def _look(self, db: Database) -> Deaths:
        """Return, on a reader's thread, the visibly dead and those not heard of for a day."""
        gone = db.all("long_gone_workers", {"before": self._clock.now() - LONG_GONE})
        dead: Deaths = {worker: "lease_expired" for (worker,) in gone}
        # Written over what is only old: the lock is the better evidence.
        for worker in self._observer.find_dead(self._within_sight(db)):
            dead[worker] = "lock_file"
        return dead

    async def workers(self) -> Sequence[WorkerInfo]:
        return await self._access.read(self._living)

    def _living(self, db: Database) -> list[WorkerInfo]:
        """Return, on a reader's thread, those with a lease that do not lack their sign of life."""
        missing = self._observer.find_missing(self._within_sight(db))
        living = (info for info in listing.workers(db) if info.worker not in missing)
        return [replace(info, evidence=("lock_file",)) for info in living]

    def _within_sight(self, db: Database) -> list[str]:
        rows = db.all("workers_on_machine", {"machine": self._machine})
        return [worker for (worker,) in rows]

    async def close(self) -> None:
        """Remove all signs of life of this store's workers. The rows stay, as after a crash."""
        leases, self._leases = list(self._leases.values()), {}
        for lease in leases:
            await asyncio.to_thread(lease.let_go)


def register(db: Database, info: WorkerInfo, length: int, machine: str) -> None:
    """Write a worker's row. `machine` is where its sign of life can be seen."""
    db.run(
        "enlist",
        {
            "worker": info.worker,
            "machine": machine,
            "host": info.host,
            "pid": info.pid,
            "started_at": milliseconds_at(info.started_at),
            "version": info.version,
            "lease": length,
            "now": db.clock.now(),
            "concurrency": info.concurrency,
            "agents": to_json(info.agents),
            "lanes": to_json(info.lanes),
            "at_once": to_json(info.at_once),
            "counters": info.counters,
            "arrived_since": milliseconds_at(info.arrived_since) if info.arrived_since else 0,
            "deployment": info.deployment,
        },
    )
    if info.deployment:
        named = {"deployment": info.deployment, "agents": to_json(info.agents)}
        digests = to_json(info.digests)
        db.run("add_deployment", {**named, "digests": digests, "now": db.clock.now()})
        have_look_first(db, info.deployment)
