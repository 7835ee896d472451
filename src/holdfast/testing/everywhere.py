"""Runs a scenario of yours with a crash at every commit, and says what happened twice.

Everything is in this process: a crash throws a worker away between one instruction and
the next, and a fresh one takes over its lanes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from holdfast.agents.agent import Agent
from holdfast.app import Deps, Holdfast
from holdfast.engine.settings import WorkerSettings
from holdfast.store import Store
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.crash import CrashingStore, CrashPoint, When
from holdfast.testing.ledger import Ledger, watch
from holdfast.testing.report import Report, Run
from holdfast.testing.wrapped import WrappedStore

Scenario = Callable[[Holdfast], Awaitable[object]]

# A worker that is thrown away waits for nothing.
ABRUPT = WorkerSettings(grace=0.0, stop_grace=1.0)


class KeptOpen(WrappedStore):
    """A store that its users share: none of them closes it."""

    async def close(self) -> None:
        """Leave that to whoever opened it."""


async def crash_everywhere(
    scenario: Scenario,
    *,
    agents: Sequence[Agent[Any, Any]],
    ledger: Ledger | None = None,
    deps: Deps | None = None,
    store: Callable[[], Store] | None = None,
    within: float = 30.0,
) -> Report:
    """Run the scenario once undisturbed, then once for each crash before and after a commit.

    The scenario is given an open app; it starts sessions, answers requests, waits for what it
    began, and returns what should be the same in every run. Tools record what they do in the
    `ledger`. Each run has a fresh store: a SQLite file, or what `store` makes. A run may take
    `within` seconds.
    """
    ledger = ledger or Ledger()
    rehearsal = Rehearsal(scenario, [watch(agent, ledger) for agent in agents], ledger, deps)
    rehearsal.make_store = store
    rehearsal.within = within
    undisturbed = await rehearsal.run(None)
    commits = rehearsal.commits
    runs: list[Run] = []
    for point in points():
        run = await rehearsal.run(point)
        if run.point:
            runs.append(run)
        elif point.commit > commits:
            return Report(undisturbed, tuple(runs))
    raise AssertionError("numbers do not end")


def points() -> Iterator[CrashPoint]:
    for commit in count(1):
        for when in get_args(When):
            yield CrashPoint(commit, when)


class Rehearsal:
    """A scenario and all that it takes to run it again and again."""

    def __init__(
        self,
        scenario: Scenario,
        agents: Sequence[Agent[Any, Any]],
        ledger: Ledger,
        deps: Deps | None,
    ) -> None:
        self.make_store: Callable[[], Store] | None = None
        self.within = 30.0
        self.commits = 0
        self._scenario = scenario
        self._agents = agents
        self._ledger = ledger
        self._deps = deps

    async def run(self, point: CrashPoint | None) -> Run:
        """Run the scenario with a crash at that point; without one, its errors are raised."""
        page = self._ledger.turn_page()
        output, error = None, ""
        async with self._fresh_store() as store:
            at, when = (point.commit, point.when) if point else (0, "before")
            crashing = CrashingStore(store, at, when, how="raise")
            async with Holdfast(self._agents, store=store, worker=None) as app:
                worker = asyncio.create_task(self._keep_working(crashing, store))
                try:
                    output = await asyncio.wait_for(self._scenario(app), self.within)
                except Exception as failure:  # noqa: BLE001 - the user's own; it is reported
                    if point is None:
                        raise
                    error = said(failure, self.within)
                finally:
                    worker.cancel()
                    await asyncio.wait([worker])
                unsettled = await count_unsettled(store)
        self.commits = crashing.commits
        return Run(
            point=crashing.point,
            effects=tuple(page),
            output=output,
            error=error,
            unsettled=unsettled,
        )

    async def _keep_working(self, crashing: CrashingStore, store: Store) -> None:
        """Work until the crash, then go on with a fresh worker."""
        async with self._worker(crashing):
            await crashing.crashed.wait()
        async with self._worker(store):
            await asyncio.Event().wait()

    def _worker(self, store: Store) -> Holdfast:
        # Leaving a crashed one only ends its lease: its store no longer takes anything.
        return Holdfast(self._agents, store=store, worker=ABRUPT, deps=self._deps)

    @asynccontextmanager
    async def _fresh_store(self) -> AsyncIterator[Store]:
        with TemporaryDirectory(prefix="holdfast-") as directory:
            make = self.make_store or (lambda: SqliteStore(Path(directory) / "crash.db"))
            store = make()
            await store.migrate()
            try:
                yield KeptOpen(store)
            finally:
                await store.close()


def said(failure: Exception, within: float) -> str:
    if isinstance(failure, TimeoutError) and not str(failure):
        return f"the scenario did not end within {within:g} s"
    return f"{type(failure).__name__}: {failure}"


async def count_unsettled(store: Store) -> int:
    sessions = await store.sessions(limit=10_000)
    found = [await store.deliveries(session.session_id) for session in sessions]
    return sum(delivery.state != "settled" for deliveries in found for delivery in deliveries)
