"""Runs a scenario of yours with a crash at every commit, and says what happened twice.

Everything is in this process: a crash throws a worker away between one instruction and
the next, and a fresh one takes over its lanes.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from outlast.app import Outlast
from outlast.core.setting import count_of, listed
from outlast.engine.settings import WorkerSettings
from outlast.errors import InvalidDefinition
from outlast.runtime import Deps
from outlast.store import Store
from outlast.stores.sqlite import SqliteStore
from outlast.testing.crash import Crashed, CrashingStore, CrashPoint, When
from outlast.testing.ledger import Defined, Ledger, watch
from outlast.testing.report import CrashedRun, CrashReport
from outlast.testing.wrapped_store import WrappedStore

Scenario = Callable[[Outlast], Coroutine[Any, Any, object]]

# A worker that is thrown away waits for nothing.
ABRUPT = WorkerSettings(grace=0.0, stop_grace=1.0)
UNDISTURBED = CrashPoint(0, "before")


async def crash_everywhere(
    scenario: Scenario,
    *,
    agents: Sequence[Defined],
    ledger: Ledger | None = None,
    deps: Deps | None = None,
    store: Callable[[], Store] | None = None,
    timeout: float = 30.0,
    most: int | None = None,
    **options: Any,
) -> CrashReport:
    """Run the scenario once undisturbed, then once for each crash before and after a commit.

    The scenario is given an open app; it starts sessions, answers requests, waits for what it
    began, and returns what should be the same in every run. Tools record what they do in the
    `ledger`. Each run has a fresh store: a SQLite file, or what `store` makes. A run may take
    `timeout` seconds. Further `options` are those of the app: `public_url`, say.

    With `most` there are so many crashes at most, from the first commit to the last: others
    whenever the number of commits is another.
    """
    check(agents, store, options, most)
    ledger = ledger or Ledger()
    watched = watch(agents, ledger)
    rehearsal = CrashRun(scenario, watched, ledger, deps, store, timeout, options)
    undisturbed, commits = await rehearsal.run(UNDISTURBED)
    runs: list[CrashedRun] = []
    for point in points() if most is None else spread(commits, most):
        run, _ = await rehearsal.run(point)
        if run.point:
            runs.append(run)
        elif point.commit > commits:
            break
    return CrashReport(undisturbed, tuple(runs))


def check(agents: Any, store: Any, options: Mapping[str, Any], most: int | None) -> None:
    """Refuse what would only fail deep within a run."""
    listed("agents", agents)
    if most is not None:
        count_of("most of crash_everywhere", most, least=1)
    if store is not None and not callable(store):
        raise InvalidDefinition(
            "store is a function that makes a new store for each run: MemoryStore, or a lambda"
        )
    if taken := sorted(options.keys() & {"worker", "deps", "store"}):
        raise InvalidDefinition(f"{taken[0]} is the runs' own: each has its worker and its store")


def points() -> Iterator[CrashPoint]:
    for commit in count(1):
        for when in get_args(When):
            yield CrashPoint(commit, when)


def spread(commits: int, most: int) -> Iterator[CrashPoint]:
    """Choose some of the crashes before and after so many commits, at equal distances."""
    every = [
        CrashPoint(commit, when) for commit in range(1, commits + 1) for when in get_args(When)
    ]
    step = max(1, -(-len(every) // most))
    yield from every[len(every) % step :: step]


class SharedStore(WrappedStore):
    """A store that its users share: none of them closes it."""

    async def close(self) -> None:
        """Do nothing: the test that opened the store closes it."""


@dataclass(frozen=True)
class CrashRun:
    """A scenario and all that it takes to run it again and again."""

    scenario: Scenario
    agents: Sequence[Defined]
    ledger: Ledger
    deps: Deps | None
    make_store: Callable[[], Store] | None
    timeout: float
    options: Mapping[str, Any]

    async def run(self, point: CrashPoint) -> tuple[CrashedRun, int]:
        """Run the scenario with a crash at that point; say also how many commits it made."""
        page = self.ledger.turn_page()
        output, error = None, ""
        async with self._fresh_store() as store:
            crashing = CrashingStore(store, point.commit, point.when, how="raise")
            async with self._working(crashing, store) as worker:
                try:
                    output = await self._play(store, worker)
                except Exception as failure:
                    if point is UNDISTURBED:
                        raise
                    error = f"{type(failure).__name__}: {failure}"
            unsettled = await count_unsettled(store)
        effects = tuple(page)
        run = CrashedRun(
            point=crashing.point, effects=effects, output=output, error=error, unsettled=unsettled
        )
        return run, crashing.commits

    async def _play(self, store: Store, worker: asyncio.Task[None]) -> object:
        """Return what the scenario returns, or raise what ended it or its worker."""
        async with Outlast(self.agents, store=store, worker=None, **self.options) as app:
            played = self.scenario(app)
            if not inspect.iscoroutine(played):
                raise InvalidDefinition("the scenario is an `async def` function, given the app")
            scenario = asyncio.create_task(played)
            await asyncio.wait(
                [scenario, worker], timeout=self.timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if scenario.done():
                return scenario.result()
            scenario.cancel()
            await asyncio.wait([scenario])
        if worker.done():
            worker.result()
        raise TimeoutError(f"the scenario did not end within {self.timeout:g} s")

    @asynccontextmanager
    async def _working(
        self, crashing: CrashingStore, store: Store
    ) -> AsyncIterator[asyncio.Task[None]]:
        worker = asyncio.create_task(self._keep_working(crashing, store))
        try:
            yield worker
        finally:
            worker.cancel()
            await asyncio.wait([worker])

    async def _keep_working(self, crashing: CrashingStore, store: Store) -> None:
        """Work until the crash, then go on with a fresh worker."""
        try:
            async with self._worker(crashing):
                await crashing.crashed.wait()
        except Crashed:  # it wanted something more of its store when it was left
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
        async with self._worker(store):
            await asyncio.Event().wait()

    def _worker(self, store: Store) -> Outlast:
        # Leaving a crashed one only ends its lease: its store takes nothing any more.
        return Outlast(self.agents, store=store, worker=ABRUPT, deps=self.deps, **self.options)

    @asynccontextmanager
    async def _fresh_store(self) -> AsyncIterator[Store]:
        with TemporaryDirectory(prefix="outlast-") as directory:
            make = self.make_store or (lambda: SqliteStore(Path(directory) / "crash.db"))
            store = make()
            await store.migrate()
            try:
                yield SharedStore(store)
            finally:
                await store.close()


async def count_unsettled(store: Store) -> int:
    sessions = await store.listing.sessions(limit=10_000)
    found = [await store.listing.deliveries(session.session_id) for session in sessions]
    return sum(delivery.state != "settled" for deliveries in found for delivery in deliveries)
