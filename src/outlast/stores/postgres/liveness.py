"""Tells a dead worker from one that only cannot be reached.

A worker's sign of life is an advisory lock with its number, held on one connection of this process
and on that of the worker's lease (`worker_lease.py`). That it is missing is no evidence of death:
the connections may be cut. Before a lease ends, a worker is dead only if

- the lock that its process holds on a file is free, seen by a process of the same machine that
  finds the very same file (`stores/lock_file.py`); or
- its sign is missing, and its port refuses an observer that it answered within the last minute
  (`liveness_port.py`).

All else is unknown, and the lease decides. A pooler's connections outlive the process, so there is
no sign behind one. The process's connection also receives hints (`notify.py`).
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import psycopg

from outlast.clock import Clock
from outlast.errors import InvalidDefinition, StoreError
from outlast.store import TakeoverEvidence
from outlast.stores.lock_file import (
    FileIdentity,
    LockFile,
    is_free,
    machine,
    own_directory,
    remove_leftovers,
)
from outlast.stores.postgres.error import explain
from outlast.stores.postgres.liveness_port import LivenessPort, join_address, local_host, probe
from outlast.stores.postgres.pipeline import PipelinedConnection, Rows
from outlast.stores.postgres.reconnect import FIRST_PAUSE, LONGEST_PAUSE
from outlast.stores.postgres.statement import Query, Statement
from outlast.stores.postgres.timeline import ServerGuard
from outlast.stores.postgres.url import StoreAddress

log = logging.getLogger("outlast.postgres")

MISSING_FOR = 0.3
LONG_GONE = 24 * 3_600_000
PING_EVERY = 15.0
PROBE_EVERY = 10.0
MOST_PROBES = 50
"""How many ports are asked in a round, of which there is one in `PROBE_EVERY` seconds."""
ANSWERED_WITHIN = 60.0
LOCK_NAME = re.compile(r"[A-Za-z0-9_-]+\.lock")


class HeartbeatConnection:
    """This process's own connection: it shows the workers' signs and receives hints.

    When it is lost it is opened again at once, with all signs.
    """

    def __init__(
        self,
        place: StoreAddress,
        guard: ServerGuard,
        clock: Clock,
        queries: Mapping[str, Query],
        heard: Callable[[str], None],
    ) -> None:
        self._place = place
        self._guard = guard
        self._clock = clock
        self._queries = queries
        self._heard = heard
        self._signs: dict[int, str] = {}
        self._opening = asyncio.Lock()
        self._link: PipelinedConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_wanted = False
        self.is_possible = bool(place.direct)

    def want(self) -> None:
        """Open the connection soon, if there can be one, and keep it open."""
        if self.is_possible and not self._is_wanted:
            self._is_wanted = True
            self._task = asyncio.create_task(self._reopen(), name="outlast direct")

    async def show(self, worker: str) -> int | None:
        """Show a sign of life for a worker, and return its number, or None behind a pooler."""
        self._is_wanted = True
        link = await self._open()
        if link is None:
            return None
        try:
            [(sign,)] = await link.ask(self._queries["next_sign"].bind({}))
            await link.ask(self.lock("show_sign", sign))
        except psycopg.Error as error:
            raise explain(error, self._place.label) from error
        self._signs[sign] = worker
        return int(sign)

    @property
    def descriptor(self) -> int | None:
        """The socket of the connection, if it is open."""
        return self._link.descriptor if self._link and self._link.is_open else None

    async def hide(self, sign: int) -> None:
        """Remove a sign: other workers see that this one is gone."""
        if sign in self._signs:
            del self._signs[sign]
            if self._link and self._link.is_open:
                await self._link.ask(self.lock("hide_sign", sign))

    def lock(self, name: str, sign: int) -> Statement:
        return self._queries[name].bind({"class": self._place.number, "sign": sign})

    async def _open(self) -> PipelinedConnection | None:
        """Open the connection, show the signs again, and listen; return None at a pooler."""
        async with self._opening:
            if not self.is_possible:
                return None
            if self._link and self._link.is_open:
                return self._link
            link = await PipelinedConnection.open(
                self._place.direct, self._place.label, self._guard
            )
            link.on_notice = self._heard
            try:
                # Asked before the first sign is shown: it would outlive this process at a pooler,
                # and look like life.
                if not self._signs and not await self._is_direct(link):
                    link.close()
                    return None
                signs = [self.lock("show_sign", sign) for sign in self._signs]
                await link.send([*signs, self._queries["listen"].bind({})])
            except BaseException as error:
                link.close()
                if isinstance(error, psycopg.Error):
                    raise explain(error, self._place.label) from error
                raise
            # Only now: one that is lost while it is opened is tried again by whoever opens it.
            link.on_lost = self._lost
            self._link = link
            self._ping_later(link)
            return link

    def _ping_later(self, link: PipelinedConnection) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(PING_EVERY, self._ping, link)

    def _ping(self, link: PipelinedConnection) -> None:
        """Ask something now and then: a connection that only listens would not notice silence."""
        if link is self._link and link.is_open:
            answer = link.send([self._queries["find_backend"].bind({})])
            # Its failure is told by the loss of the connection; unread, asyncio would report it as
            # well.
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._ping_later(link)

    async def _is_direct(self, link: PipelinedConnection) -> bool:
        """Whether the server itself answers: at a pooler our signs would outlive this process."""
        [(backend,)] = await link.ask(self._queries["find_backend"].bind({}))
        self.is_possible = backend == link.backend
        if not self.is_possible:
            log.warning(
                "a pooler answers for the database, so the death of a worker on another host is"
                " seen only when its lease ends, and new work is found by polling; name the"
                " database itself, or none, in the parameter direct of the store's URL",
                extra={"store": self._place.label},
            )
        return self.is_possible

    def _lost(self) -> None:
        self._task = asyncio.create_task(self._reopen(), name="outlast direct")

    async def _reopen(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._open()
            except StoreError as error:
                missed = sorted(self._signs.values())
                log.warning("no direct connection", extra={"workers": missed, "code": error.code})
            else:
                self._heard("")  # hints that came meanwhile are lost: look everywhere
                return
            await asyncio.sleep(self._clock.jitter(pause))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def close(self) -> None:
        """Remove all signs: other workers see that this process is gone."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._timer:
            self._timer.cancel()
        if self._link:
            # It would be opened again.
            self._link.on_lost = None
            if self._link.load:  # the server would keep a statement that hangs
                await self._link.cancel()
            self._link.close()


class ProcessEvidence:
    """Signs of life of a worker's process beside its connections: a locked file, perhaps a port.

    Where no file can be locked, the rest has to do.
    """

    def __init__(self, worker: str, name: str, wanted: str, now: int) -> None:
        self.machine = machine()
        self._lock: LockFile | None = None
        self._identity = FileIdentity("", "")
        if directory := own_directory():
            self._lock = LockFile(directory / f"{name}.lock")
            self._identity = self._lock.take()
            remove_leftovers(directory, now)
        else:
            log.warning(
                "there is no directory for lock files, so the death of this worker is not seen on"
                " its machine before its lease ends",
                extra={"worker": worker},
            )
        try:
            self._port = LivenessPort(worker, wanted) if wanted else None
        except BaseException:
            self.drop()
            raise

    def row(self, descriptor: int | None) -> Mapping[str, str]:
        """Return the columns of the worker's row.

        A port on all addresses is announced at the one by which this host reaches the database,
        through the connection with this descriptor. Without one there is no sign of life, and a
        port proves nothing without it.
        """
        address = ""
        if self._port and descriptor is None:
            log.warning(
                "the liveness port is of no use without a direct connection to the database"
            )
        elif self._port and descriptor is not None:
            host = local_host(descriptor) if self._port.is_everywhere else self._port.host
            address = join_address(host, self._port.port)
        return {
            "machine": self.machine if self._lock else "",
            "lock_name": self._lock.path.name if self._lock else "",
            "lock_device": self._identity.device,
            "lock_inode": self._identity.inode,
            "liveness_address": address,
        }

    def drop(self) -> None:
        """Release the lock and refuse at the port: from here on the worker is seen to be gone."""
        if self._lock:
            self._lock.drop()
        if self._port:
            self._port.close()

    def remove(self) -> None:
        """Leave nothing behind; the worker's end was recorded."""
        self.drop()
        if self._lock:
            self._lock.remove()


class ObservedWorker(NamedTuple):
    """A worker's row as an observer needs it; see the query `observed_workers`."""

    worker: str
    is_long_gone: bool
    machine: str
    lock_name: str
    lock_device: str
    lock_inode: str
    address: str
    is_missing: bool


class LivenessObserver:
    """Gathers evidence that workers are dead. What it cannot see or reach it takes for alive."""

    def __init__(self, place: StoreAddress, clock: Clock, queries: Mapping[str, Query]) -> None:
        self._clock = clock
        self._machine = machine()
        self._directory = own_directory()
        self._query = queries["observed_workers"]
        self._class = place.number
        self._looked_at = float("-inf")
        self._probed_at = float("-inf")
        self._near: dict[str, ObservedWorker] = {}
        self._long_gone: list[str] = []
        self._missing: dict[str, float] = {}
        self._answered: dict[str, float] = {}
        self._refused: dict[str, float] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}

    def is_due(self, after: float) -> bool:
        """Whether the last look was so many seconds ago, or found a sign missing."""
        return bool(self._missing) or self._clock.monotonic() - self._looked_at >= after

    def look(self) -> Statement:
        values = {
            "class": self._class,
            "machine": self._machine,
            "long_gone": LONG_GONE,
            "all_ports": self._ports_are_due,
        }
        return self._query.bind(values)

    @property
    def _ports_are_due(self) -> bool:
        return self._clock.monotonic() - self._probed_at >= PROBE_EVERY

    def note(self, rows: Rows) -> None:
        """Note the answer to a look, and ask at the ports of those that show no sign."""
        now = self._looked_at = self._clock.monotonic()
        observed = [ObservedWorker(*row) for row in rows]
        # Since when a sign is missing counts from the first look of this observer that missed it.
        before = self._missing
        self._missing = {o.worker: before.get(o.worker, now) for o in observed if o.is_missing}
        self._long_gone = [o.worker for o in observed if o.is_long_gone]
        self._near = {o.worker: o for o in observed if o.machine == self._machine}
        due = [o for o in observed if o.is_missing]
        if self._ports_are_due:
            self._probed_at = now
            others = [o for o in observed if o.address and not o.is_missing]
            # Those first that were not asked for longest: a refusal is evidence only after a recent
            # answer.
            due += sorted(others, key=lambda o: self._answered.get(o.worker, 0.0))[:MOST_PROBES]
            recent = now - ANSWERED_WITHIN
            self._answered = {w: at for w, at in self._answered.items() if at > recent}
            self._refused = {w: at for w, at in self._refused.items() if at > recent}
        for each in due:
            if each.worker not in self._probes:
                self._probes[each.worker] = asyncio.create_task(
                    self._probe(each.worker, each.address), name="outlast liveness"
                )

    async def _probe(self, worker: str, address: str) -> None:
        try:
            answer = await probe(address, worker)
        except InvalidDefinition:  # a row of another version, say
            return
        finally:
            del self._probes[worker]
        now = self._clock.monotonic()
        if answer == "answered":
            self._answered[worker] = now
            # It has answered since: an earlier refusal is no evidence any more.
            self._refused.pop(worker, None)
        elif answer == "refused":
            self._refused[worker] = now

    def find_dead(self) -> dict[str, TakeoverEvidence]:
        """Return the workers of which there is evidence by now; lock files are looked at anew."""
        dead: dict[str, TakeoverEvidence] = dict.fromkeys(self._long_gone, "lease_expired")
        dead |= dict.fromkeys((w for w in self._missing if self._is_refused(w)), "port_refused")
        dead |= dict.fromkeys(
            (o.worker for o in self._near.values() if self.is_over(o)), "lock_file"
        )
        return dead

    def is_over(self, observed: ObservedWorker) -> bool:
        """Whether the process is seen to be gone: the lock on its file is free."""
        if observed.machine != self._machine or self._directory is None:
            return False
        if not LOCK_NAME.fullmatch(observed.lock_name):  # a name from the database, never a path
            return False
        # Containers of one kernel may have different files under the same name.
        identity = FileIdentity(observed.lock_device, observed.lock_inode)
        return is_free(self._directory / observed.lock_name, identity)

    def _is_refused(self, worker: str) -> bool:
        """Whether it has shown no sign for a while, and its port refused since, after answers."""
        missing_since, refused_at = self._missing[worker], self._refused.get(worker, 0.0)
        answered_at = self._answered.get(worker, float("-inf"))
        is_long = round(self._clock.monotonic() - missing_since, 3) >= MISSING_FOR
        return (
            is_long and refused_at >= missing_since and refused_at - answered_at <= ANSWERED_WITHIN
        )

    def forget(self, worker: str) -> None:
        """Drop what is known of a worker whose end was recorded, and its lock file."""
        self._missing.pop(worker, None)
        self._refused.pop(worker, None)
        self._long_gone = [each for each in self._long_gone if each != worker]
        if (near := self._near.pop(worker, None)) and self._directory and self.is_over(near):
            LockFile(self._directory / near.lock_name).remove()

    async def close(self) -> None:
        probes = list(self._probes.values())
        for task in probes:
            task.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
