"""A worker: claims lanes that are ready and carries them forward, many at once.

Owns its lease, the tasks of its lanes and the cache of those it gave back. Knows
nothing of models or tools: a performer per agent does.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import defaultdict
from collections.abc import Awaitable, Mapping
from functools import cache
from importlib.metadata import version

from outlast.clock import Clock
from outlast.engine.counters import WorkerCounters
from outlast.engine.executor import Executor
from outlast.engine.lane_cache import LaneCache
from outlast.engine.lane_runner import LaneRunner
from outlast.engine.lease_keeper import LeaseKeeper
from outlast.engine.maintenance import (
    ArrivalPoller,
    DeadWorkerDetector,
    MaintenanceTask,
    OrphanEraser,
    StalePermitReaper,
    keep_up,
)
from outlast.engine.owned_lane import LaneLost, OwnedLane
from outlast.engine.settings import WorkerSettings
from outlast.errors import StoreError
from outlast.log_context import enter, get_logger
from outlast.store import Claim, Store, WorkerInfo

log = get_logger("outlast.engine")

Key = tuple[str, str]

PAGE = 500


@cache
def own_version() -> str:
    return version("outlast")


class Worker:
    """One process's hands."""

    def __init__(
        self,
        store: Store,
        performers: Mapping[str, Executor],
        clock: Clock,
        settings: WorkerSettings,
        ownership: type[LeaseKeeper] = LeaseKeeper,
    ) -> None:
        self.name = settings.name or clock.new_id("wrk")
        self._store = store
        self._performers = performers
        self._clock = clock
        self._settings = settings
        self._tally = WorkerCounters(store.counts)
        self._most = {n: p.policy.at_once for n, p in performers.items() if p.policy.at_once}
        self._hot = LaneCache(settings.hot)
        self._carriers: defaultdict[str, dict[str, LaneRunner]] = defaultdict(dict)
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._hint = asyncio.Event()
        self._stopping = False
        self._keep: type[LeaseKeeper] = ownership
        self._ownership: LeaseKeeper | None = None
        self._services: list[asyncio.Task[None]] = []
        self._is_draining = asyncio.Event()
        self._end: asyncio.Task[None] | None = None

    @property
    def held(self) -> int:
        """How many lanes it carries now."""
        return len(self._tasks)

    async def start(self) -> None:
        """Enlist, and begin to look for work."""
        await self._enlist()
        try:
            self._stop_listening = self._store.listen(self._heard)
        except BaseException:
            assert self._ownership is not None
            await self._ownership.end()  # nobody would renew for a worker that never was
            raise
        duties: list[MaintenanceTask] = [
            DeadWorkerDetector(self._store, self._settings.watch, self._hint.set),
            ArrivalPoller(self._store, self._settings.poll, self._at_work),
            OrphanEraser(self._store),
            StalePermitReaper(self._store),
        ]
        self._services = [
            asyncio.create_task(self._claim_repeatedly(), name="outlast claim"),
            *(
                asyncio.create_task(keep_up(duty), name=f"outlast {type(duty).__name__}")
                for duty in duties
            ),
        ]

    def drain(self) -> None:
        """Begin to stop: claim nothing more, and hand back lanes when what runs has ended."""
        if self._end is None:
            log.info("the worker drains", extra={"worker": self.name, "held": self.held})
            self._end = asyncio.create_task(self._hand_back(), name="outlast drain")
            self._is_draining.set()

    async def stop(self) -> None:
        """Hand back every lane, losing nothing, and leave the registry."""
        self.drain()
        await self.until_stopped()

    async def until_draining(self) -> None:
        """Wait until this process or somebody else asks it to stop."""
        await self._is_draining.wait()

    async def until_stopped(self) -> None:
        """Wait until it was asked to stop, and has."""
        await self.until_draining()
        assert self._end is not None
        await asyncio.shield(self._end)

    async def _hand_back(self) -> None:
        self._stopping = True
        self._stop_listening()
        for service in self._services:
            service.cancel()
        await asyncio.gather(*self._services, return_exceptions=True)
        for carrier in self._at_work():
            carrier.stop()
        await self._until_handed_back()
        if self._ownership:
            await self._ownership.end()

    async def _until_handed_back(self) -> None:
        """Wait for the lanes to be handed back; a store that is away cannot hold us for ever."""
        patience = self._settings.grace + self._settings.stop_grace + self._settings.rest
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=patience)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # Life

    async def _enlist(self) -> None:
        info = WorkerInfo(
            worker=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._clock.now(),
            version=own_version(),
            concurrency=self._settings.concurrency,
            agents=tuple(self._performers),
            lanes=self._settings.lanes,
            at_once=self._most,
        )
        asked_at = self._clock.monotonic()
        lease = await self._store.enlist(info, int(self._settings.lease * 1000))
        self._ownership = self._keep(
            self.name,
            lease,
            self._settings.lease,
            self._clock,
            self._declared_dead,
            self._lapsed,
            self.drain,
            asked_at=asked_at,
            tally=self._tally.text,
        )
        self._ownership.start()

    def _declared_dead(self) -> None:
        """Somebody took us for dead: let everything go, and begin anew under another name."""
        log.warning("this worker was taken for dead", extra={"worker": self.name})
        for task in self._tasks.values():
            task.cancel()
        self.name = self._clock.new_id("wrk")
        if not self._stopping:
            self._services.append(asyncio.create_task(self._enlist_again()))

    def _lapsed(self) -> None:
        """Our lease had run out: let go of what others have taken, and go on with the rest."""
        if self._tasks and not self._stopping:
            self._services.append(asyncio.create_task(self._let_go_of_taken(dict(self._tasks))))

    async def _let_go_of_taken(self, carried: Mapping[Key, asyncio.Task[None]]) -> None:
        """What they would come to is refused; the sooner they end, the less is done twice."""
        try:
            owned = await self._find_owned()
        except StoreError as error:
            self._warn("lanes that others took are let go of when they commit", error)
            return
        for key in carried.keys() - owned:
            log.info("a lane was taken over by another worker", extra={"session": key[0]})
            carried[key].cancel()

    async def _find_owned(self) -> set[Key]:
        owned: set[Key] = set()
        after: Key | None = None
        while page := await self._store.lanes(worker=self.name, after=after, limit=PAGE):
            owned.update((lane.session_id, lane.lane) for lane in page)
            after = (page[-1].session_id, page[-1].lane)
        return owned

    async def _enlist_again(self) -> None:
        """Enlist for as long as it takes: a store that is away may come back."""
        while True:
            try:
                return await self._enlist()
            except StoreError as error:
                self._warn("the worker could not be enlisted", error)
                await asyncio.sleep(self._settings.poll)

    def _warn(self, phrase: str, error: StoreError) -> None:
        log.warning(phrase, extra={"worker": self.name, "code": error.code})

    def _confirmation(self) -> Awaitable[None] | None:
        """Return what to wait for before something new may begin, if there is something."""
        assert self._ownership is not None
        return None if self._ownership.is_confirmed else self._until_confirmed()

    async def _until_confirmed(self) -> None:
        """Wait until something new may begin: a worker taken for dead gets another lease."""
        assert self._ownership is not None
        while not self._ownership.is_confirmed:  # noqa: ASYNC110 - a thread confirms
            await asyncio.sleep(self._settings.lease / 100)

    # Work

    def _heard(self, session_id: str, arrived: bool) -> None:
        if not arrived:
            return
        if not session_id and self._ownership:
            self._ownership.hurry()  # it may be about this worker
        for carrier in self._at_work(session_id):
            carrier.nudge()
        self._hint.set()

    def _at_work(self, session_id: str = "") -> list[LaneRunner]:
        """Return those who carry lanes of a session, or all."""
        if session_id:
            return list(self._carriers.get(session_id, {}).values())
        return [carrier for lanes in self._carriers.values() for carrier in lanes.values()]

    async def _claim_repeatedly(self) -> None:
        while True:
            self._hint.clear()
            await self._until_confirmed()
            try:
                wait = await self._claim()
            except StoreError as error:
                self._warn("lanes could not be claimed", error)
                wait = self._settings.poll
            except Exception:
                log.exception("lanes could not be claimed", extra={"worker": self.name})
                wait = self._settings.poll
            await self._until_hint(wait)

    async def _until_hint(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._hint.wait()
        except TimeoutError:
            return

    async def _claim(self) -> float:
        """Claim what is ready and fits; return how long there will be nothing more to claim."""
        free = self._settings.concurrency - len(self._tasks)
        if free <= 0:
            return self._settings.poll
        claims = await self._store.claim(
            self.name,
            free,
            list(self._tasks),
            list(self._performers),
            lanes=self._settings.lanes or None,
            most=self._most,
        )
        self._tally.claims += len(claims)
        for claim in claims:
            self._carry(claim)
        if len(claims) == free:
            return self._settings.poll
        now = self._clock.now()
        ready_at = await self._store.next_ready_at(now)
        return min(self._settings.poll, (ready_at - now) / 1000 if ready_at else 60.0)

    def _carry(self, claim: Claim) -> None:
        key = (claim.session_id, claim.lane)
        if key in self._tasks:
            return
        task = asyncio.create_task(self._carry_one(claim), name=f"outlast lane {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._done(key))

    def _done(self, key: Key) -> None:
        session_id, lane = key
        self._tasks.pop(key, None)
        self._carriers[session_id].pop(lane, None)
        if not self._carriers[session_id]:
            del self._carriers[session_id]
        self._hint.set()

    async def _carry_one(self, claim: Claim) -> None:
        enter(
            session=claim.session_id,
            agent=claim.agent,
            lane=claim.lane,
            worker=self.name,
            fence=claim.fence,
        )
        try:
            lane = await self._open(claim)
            carrier = LaneRunner(
                lane,
                self._performers[claim.agent],
                self._store,
                self._clock,
                self._settings,
                self._confirmation,
            )
            self._carriers[claim.session_id][claim.lane] = carrier
            if self._stopping:
                carrier.stop()
            await carrier.run()
            self._hot.keep(lane)
        except LaneLost:
            log.info("a lane was taken over by another worker")
            # Not to be claimed again at once: two that take each other for dead would take turns.
            await asyncio.sleep(self._clock.jitter(self._settings.poll / 10))
        except Exception:
            log.exception("a lane cannot go on; it is tried again")
            await asyncio.sleep(self._settings.rest)

    async def _open(self, claim: Claim) -> OwnedLane:
        lane = self._hot.take(claim.session_id, claim.lane, claim.number)
        if lane:
            await lane.renew(claim, self.name)
            return lane
        lane = OwnedLane(claim, self.name, self._store, self._clock, self._tally)
        await lane.load()
        return lane
