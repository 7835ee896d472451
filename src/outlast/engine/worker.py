"""A worker: claims lanes that are ready and runs them, many at once.

Owns the worker's lease, the tasks of its lanes and the cache of lanes it gave back. Refuses to
know models and tools: an `Executor` per agent does. What happens to one claimed lane is in
`lane_runner.py`.
"""

import asyncio
import os
import socket
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from importlib.metadata import version

from outlast.clock import Clock
from outlast.core.instant import date_of, seconds
from outlast.engine.backlog import read_unfinished, sentence, unserved_sentence
from outlast.engine.budget_gate import BudgetDirectory
from outlast.engine.counters import WorkerCounters
from outlast.engine.executor import Executor
from outlast.engine.lane_folds import HistoryChanged, LaneLost, insist
from outlast.engine.lane_runner import LaneRunner
from outlast.engine.lease_keeper import LeaseKeeper
from outlast.engine.maintenance import (
    ArrivalPoller,
    DeadWorkerDetector,
    OrphanEraser,
    StalePermitReaper,
)
from outlast.engine.owned_lane import OwnedLane
from outlast.engine.pin import PinRule
from outlast.engine.provider_breaker import ProviderBreakers
from outlast.engine.service import Service, ServiceLoop
from outlast.engine.settings import WorkerSettings
from outlast.errors import StoreError
from outlast.log_context import enter, get_logger
from outlast.store import Claim, Store, WorkerInfo
from outlast.store.work import NO_DIGESTS

LANE_OVERHEAD = 16 * 1024
"""About how many bytes a lane takes besides its texts."""


class LaneCache:
    """The most recent lanes, of about `size` bytes all together.

    A lane counts as much as its session's log: nearly all that is kept of it are the log's texts,
    and measuring the objects themselves would cost more than folding them anew.
    """

    def __init__(self, size: int) -> None:
        self._free = size
        self._lanes: OrderedDict[tuple[str, str], OwnedLane] = OrderedDict()

    def keep(self, lane: OwnedLane) -> None:
        self._drop((lane.session_id, lane.name))
        self._lanes[lane.session_id, lane.name] = lane
        self._free -= cost_of(lane)
        while self._free < 0:
            self._drop(next(iter(self._lanes)))

    def take(self, session_id: str, lane: str, number: int) -> OwnedLane | None:
        """Return the lane as it was given back, if nothing was written to it since."""
        # An arrival does not change the number: `OwnedLane.renew` folds in what has arrived since.
        kept = self._drop((session_id, lane))
        return kept if kept and kept.number == number else None

    def _drop(self, key: tuple[str, str]) -> OwnedLane | None:
        if lane := self._lanes.pop(key, None):
            self._free += cost_of(lane)
        return lane


def cost_of(lane: OwnedLane) -> int:
    return LANE_OVERHEAD + lane.size


log = get_logger("outlast.engine")

Key = tuple[str, str]

PAGE = 500
LARGE = 1024 * 1024
HEAD_START = 1.0


def may_be_too_large(claim: Claim) -> bool:
    """Say whether a lane lets others begin first, for HEAD_START seconds.

    A large one that has lost its worker may have been too large for that. It would take the next
    one down as well, and with it the lanes beside it, before they had got past their first call.
    """
    return claim.deaths > 0 and claim.size > LARGE


@cache
def own_version() -> str:
    return version("outlast")


class Worker:
    """Runs lanes of the agents in `executors`. As a service it looks for lanes to claim.

    `keep_lease` makes what renews its lease. Turns of a session with more than `session_bytes`
    fail; 0 is any number. `counts` says what is counted elsewhere in the worker's process.
    """

    def __init__(
        self,
        store: Store,
        executors: Mapping[str, Executor],
        clock: Clock,
        settings: WorkerSettings,
        keep_lease: type[LeaseKeeper] = LeaseKeeper,
        session_bytes: int = 0,
        counts: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.name = settings.name or clock.new_id("wrk")
        self.interval = seconds(settings.poll)
        self._store = store
        self._executors = executors
        self._clock = clock
        self._settings = settings
        self._counters = WorkerCounters(store.counts, counts)
        self._most = {n: e.policy.at_once for n, e in executors.items() if e.policy.at_once}
        self._lane_cache = LaneCache(settings.lane_cache)
        self._pins = PinRule(settings.deployment, settings.pin)
        self._breakers = ProviderBreakers(store, clock)
        self.budgets = BudgetDirectory(store, clock, lambda: not self._tasks)
        self._runners: defaultdict[str, dict[str, LaneRunner]] = defaultdict(dict)
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._stopping = False
        self._keep_lease = keep_lease
        self._session_bytes = session_bytes
        self._lease_keeper: LeaseKeeper | None = None
        self._claiming = ServiceLoop("claim", self, clock)
        self._services = [self._claiming, *self._maintenance()]
        self._lease_tasks: list[asyncio.Task[None]] = []
        self._is_draining = asyncio.Event()
        self._end: asyncio.Task[None] | None = None
        self._arrived_since: datetime | None = None
        self.unfinished: Mapping[str, int] = {}
        """How many sessions of each agent were unfinished when it started."""
        self.resumes = ""
        """The same in a sentence; empty where there was nothing."""
        self.unserved = ""
        """What was ready when it started and no worker serves, in a sentence; mostly empty."""

    def _maintenance(self) -> list[ServiceLoop]:
        services: dict[str, Service] = {
            "dead worker detector": DeadWorkerDetector(
                self._store, seconds(self._settings.watch), self._claiming.hint
            ),
            "arrival poller": ArrivalPoller(
                self._store, seconds(self._settings.poll), self._running
            ),
            "orphan eraser": OrphanEraser(self._store),
            "stale permit reaper": StalePermitReaper(self._store),
            "budget directory": self.budgets,
        }
        return [
            ServiceLoop(name, service, self._clock, spread=service.interval / 10)
            for name, service in services.items()
        ]

    @property
    def held(self) -> int:
        """How many lanes it runs now."""
        return len(self._tasks)

    async def start(self) -> None:
        """Enlist, and begin to look for work."""
        # Before it enlists: what it finds has been left by others, and `arrived_since` is enlisted.
        await self._look_around()
        await self._enlist()
        try:
            self._stop_listening = self._store.work.listen(self._heard)
        except BaseException:
            assert self._lease_keeper is not None
            await self._lease_keeper.end()  # it would renew the lease of a worker that never ran
            raise
        for service in self._services:
            service.start()

    async def _look_around(self) -> None:
        """Say what others have left unfinished, and where it is to be left, remember since when."""
        executors, lanes = tuple(self._executors), self._settings.lanes
        found = await insist(self._clock, read_unfinished, self._store, executors, lanes)
        if not self._settings.resume:
            self._arrived_since = date_of(found.now)
        self.unfinished = found.sessions
        self.resumes = sentence(found, resumes=self._settings.resume)
        if unserved := unserved_sentence(found):
            self.unserved = unserved
            log.warning("%s", unserved, extra={"worker": self.name, "agents": [*found.unserved]})
        await self._breakers.look_around(self._executors)
        await insist(self._clock, self.budgets.look)
        if self.resumes:
            facts = {"worker": self.name, "unfinished": dict(found.sessions)}
            log.info("the worker %s", self.resumes, extra=facts)

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
        """Wait until it is asked to stop, by this process or through the store."""
        await self._is_draining.wait()

    async def until_stopped(self) -> None:
        """Wait until it was asked to stop, and has."""
        await self.until_draining()
        assert self._end is not None
        await asyncio.shield(self._end)

    async def _hand_back(self) -> None:
        self._stopping = True
        if self._settings.deployment:
            with suppress(StoreError):  # so that other deployments take up what it gives back
                await self._store.work.drain(self.name)
        self._stop_listening()
        # Otherwise one of them could enlist this worker again while it leaves.
        for task in self._lease_tasks:
            task.cancel()
        await asyncio.gather(*self._lease_tasks, return_exceptions=True)
        await asyncio.gather(*(service.stop() for service in self._services))
        for runner in self._running():
            runner.stop()
        await self._until_handed_back()
        self._breakers.close()
        # Last: until its lanes are handed back, the lease is what keeps other workers away from
        # them.
        if self._lease_keeper:
            await self._lease_keeper.end()

    async def _until_handed_back(self) -> None:
        """Wait for the lanes to be handed back; a store that is away cannot hold us for ever."""
        given = self._settings
        timeout = seconds(given.grace) + seconds(given.stop_grace) + seconds(given.rest)
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # The lease

    async def _enlist(self) -> None:
        info = WorkerInfo(
            worker=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=date_of(self._store.clock.date()),
            version=own_version(),
            concurrency=self._settings.concurrency,
            agents=tuple(self._executors),
            lanes=self._settings.lanes,
            at_once=self._most,
            liveness_address=self._settings.liveness_address,
            arrived_since=self._arrived_since,
            deployment=self._settings.deployment,
            digests=self._digests() if self._settings.deployment else NO_DIGESTS,
        )
        # Before the question: the store begins the lease at some instant after this one.
        asked_at = self._clock.boottime()
        lease = await self._store.work.enlist(info, int(seconds(self._settings.lease) * 1000))
        self._lease_keeper = self._keep_lease(
            self.name,
            lease,
            seconds(self._settings.lease),
            self._clock,
            self._declared_dead,
            self._lapsed,
            self.drain,
            asked_at=asked_at,
            counters=self._counters.text,
        )
        self._lease_keeper.start()

    def _digests(self) -> dict[str, str]:
        """Return the digests of what the models and the callers of its agents see."""
        found: dict[str, str] = {}
        for executor in self._executors.values():
            found.update(executor.digests())
        return found

    def _declared_dead(self) -> None:
        """Let every lane go, and begin anew under another name: a worker took this one for dead."""
        log.warning("this worker was taken for dead", extra={"worker": self.name})
        for task in self._tasks.values():
            task.cancel()
        self.name = self._clock.new_id("wrk")
        if not self._stopping:
            self._lease_tasks.append(asyncio.create_task(self._enlist_again()))

    def _lapsed(self) -> None:
        """Let go of the lanes that others took while the lease had run out; keep the rest."""
        if self._tasks and not self._stopping:
            self._lease_tasks.append(asyncio.create_task(self._let_go_of_taken(dict(self._tasks))))

    async def _let_go_of_taken(self, running: Mapping[Key, asyncio.Task[None]]) -> None:
        """Stop lanes that others own. Their commits would be refused: stop before more is done."""
        try:
            owned = await self._find_owned()
        except StoreError as error:
            self._warn("lanes that others took are let go of when they commit", error)
            return
        for key in running.keys() - owned:
            log.info("a lane was taken over by another worker", extra={"session": key[0]})
            running[key].cancel()

    async def _find_owned(self) -> set[Key]:
        owned: set[Key] = set()
        after: Key | None = None
        while page := await self._store.listing.lanes(worker=self.name, after=after, limit=PAGE):
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
                await asyncio.sleep(seconds(self._settings.poll))

    def _warn(self, phrase: str, error: StoreError) -> None:
        log.warning(phrase, extra={"worker": self.name, "code": error.code})

    def _confirmation(self) -> Awaitable[None] | None:
        """Return what to wait for before something new may begin; None if that is now."""
        assert self._lease_keeper is not None
        return None if self._lease_keeper.is_confirmed else self._until_confirmed()

    async def _until_confirmed(self) -> None:
        """Wait until something new may begin: a worker taken for dead gets another lease."""
        assert self._lease_keeper is not None
        while not self._lease_keeper.is_confirmed:  # noqa: ASYNC110 - a thread confirms
            await asyncio.sleep(seconds(self._settings.lease) / 100)

    # Lanes

    def _heard(self, session_id: str, arrived: bool) -> None:
        if not arrived:
            return
        if not session_id and self._lease_keeper:
            self._lease_keeper.hurry()  # it may be about this worker
        for runner in self._running(session_id):
            runner.nudge()
        self._claiming.hint()

    def _running(self, session_id: str = "") -> list[LaneRunner]:
        """Return the runners of a session's lanes, or of all lanes."""
        if session_id:
            return list(self._runners.get(session_id, {}).values())
        return [runner for lanes in self._runners.values() for runner in lanes.values()]

    async def run_once(self) -> int:
        """Claim the lanes that are ready, as far as there is room; return how many those were."""
        # The look before this one may have shortened it, for a timer that was due.
        self.interval = seconds(self._settings.poll)
        await self._until_confirmed()
        enter(worker=self.name)
        free = self._settings.concurrency - len(self._tasks)
        if free <= 0:
            return 0  # a lane that ends gives a hint
        claims = await self._store.work.claim(
            self.name,
            free,
            # A lane that was given to this worker in an answer that got lost is not among them, and
            # is given out again.
            list(self._tasks),
            list(self._executors),
            lanes=self._settings.lanes or None,
            most=self._most,
        )
        self._counters.claims += len(claims)
        for claim in sorted(claims, key=may_be_too_large):
            self._begin(claim, after=list(self._tasks.values()) if may_be_too_large(claim) else ())
        # Where there is no room left, the next timer is of no interest: a lane that ends gives a
        # hint.
        if len(claims) < free:
            now = self._store.clock.earliest()
            if ready_at := await self._store.work.next_ready_at(now):
                self.interval = min(self.interval, (ready_at - now) / 1000)
        return len(claims)

    def _begin(self, claim: Claim, after: Sequence[asyncio.Task[None]] = ()) -> None:
        """Run a lane, with a head start for those whose tasks it comes `after`."""
        key = (claim.session_id, claim.lane)
        if key in self._tasks:
            return
        task = asyncio.create_task(self._run_lane(claim, after), name=f"outlast lane {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._done(key))

    def _done(self, key: Key) -> None:
        session_id, lane = key
        self._tasks.pop(key, None)
        self._runners[session_id].pop(lane, None)
        if not self._runners[session_id]:
            del self._runners[session_id]
        self._claiming.hint()

    async def _run_lane(self, claim: Claim, after: Sequence[asyncio.Task[None]]) -> None:
        enter(
            session=claim.session_id,
            agent=claim.agent,
            lane=claim.lane,
            worker=self.name,
            fence=claim.fence,
        )
        if after:
            await asyncio.wait(after, timeout=HEAD_START)
        try:
            if self.budgets.is_old:
                await self.budgets.renew()
            lane = await self._open(claim)
            runner = LaneRunner(
                lane,
                self._executors[claim.agent],
                self._store,
                self._clock,
                self._settings,
                self._confirmation,
                self._breakers,
                self.budgets,
                self._session_bytes,
            )
            self._runners[claim.session_id][claim.lane] = runner
            # `stop` was called while the lane was loaded, when it had no runner that could be told.
            if self._stopping:
                runner.stop()
            await runner.run()
            if not lane.folds.is_outline:
                self._lane_cache.keep(lane)
        except HistoryChanged:
            log.warning("the database has lost a part of a session's log, which is read anew")
        except LaneLost:
            log.info("a lane was taken over by another worker")
            # Not claimed again at once: two workers that take each other for dead would take
            # the lane from each other again and again.
            await asyncio.sleep(self._clock.jitter(seconds(self._settings.poll) / 10))
        # Everything, also a mistake in Outlast itself: it must not end the worker's other lanes.
        except Exception:
            log.exception("a lane cannot go on; it is tried again")
            # The lane stays this worker's meanwhile: another one would fail at once in the same
            # way.
            await asyncio.sleep(seconds(self._settings.rest))

    async def _open(self, claim: Claim) -> OwnedLane:
        lane = self._lane_cache.take(claim.session_id, claim.lane, claim.number)
        if lane:
            try:
                await lane.renew(claim, self.name)
            except HistoryChanged:
                log.warning("the database has lost a part of a session's log, which is read anew")
            else:
                return lane
        lane = OwnedLane(claim, self.name, self._store, self._clock, self._counters, self._pins)
        if self._may_be_too_much(claim):
            await lane.folds.load_outline()
        else:
            await lane.folds.load()
        return lane

    def _may_be_too_much(self, claim: Claim) -> bool:
        """Say whether reading a lane might take this worker down as it did others."""
        # Told by the claim, so that it is known before anything of the log is read.
        has_killed = claim.deaths >= self._executors[claim.agent].policy.max_crashes
        return has_killed or 0 < self._session_bytes < claim.size
