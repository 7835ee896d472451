"""One soak: a worker process, turns that begin at a steady rate, and its vital signs meanwhile.

Between two turns as many commits as a turn makes are made by hand, now and then: what the disk, and
whatever else keeps it or the machine busy, does to those, it does to turns as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from math import nan
from statistics import quantiles

from msgspec import Struct, field

from benchmarks.place import Database, Floor
from benchmarks.process import WorkerProcess
from benchmarks.work import stepper
from outlast import Outlast

STEPS = 3
"""Model calls with a tool call each in a turn, before its last one."""
COMMITS = 2 * STEPS + 2
"""The commits that stand for a turn where they are made by hand."""
BY_HAND_EVERY = 5
"""After so many turns there are commits by hand."""
GOAL = 3.0
"""How many times its median the p99 of a turn may be."""
PATIENCE = 60.0
"""Seconds that the last turns of a soak have."""


class Soak(Struct, frozen=True, kw_only=True):
    """For how many minutes, how many turns a second, and seconds between two looks.

    `lane_cache` is how many MiB of lanes the worker keeps: so many grow before its memory is full.
    """

    minutes: float = 15.0
    rate: float = 5.0
    interval: float = 30.0
    lane_cache: float = 64.0


class Interval(Struct, kw_only=True):
    """What was seen up to an instant, and the seconds that its own turns took."""

    seconds: float
    turns: int
    errors: int
    memory: float
    descriptors: int
    size: int
    vitals: dict[str, float] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    by_hand: list[float] = field(default_factory=list)

    @property
    def p50(self) -> float:
        return percentile(self.latencies, 50)

    @property
    def p99(self) -> float:
        return percentile(self.latencies, 99)

    def row(self) -> dict[str, float]:
        return {
            "seconds": self.seconds,
            "turns": self.turns,
            "errors": self.errors,
            "memory (MiB)": self.memory,
            "descriptors": self.descriptors,
            "database (KiB)": self.size / 1024,
            **self.vitals,
            "p50 (ms)": self.p50 * 1e3,
            "p99 (ms)": self.p99 * 1e3,
            "p99 / p50": self.p99 / self.p50,
            "by hand p99 / p50": ratio(self.by_hand),
        }


class Turns:
    """Begins turns and notes how long each took, from its start to its answer."""

    def __init__(self, app: Outlast) -> None:
        self.begun = 0
        self.count = 0
        self.errors = 0
        self.latencies: list[float] = []
        self._app = app
        self._open: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        self.begun += 1
        task = asyncio.create_task(self._take())
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def end(self) -> None:
        if self._open:
            await asyncio.wait(self._open, timeout=PATIENCE)
        self.errors += len(self._open)

    async def _take(self) -> None:
        began = time.perf_counter()
        session = await self._app.start("stepper", "Go on.")
        result = await session.wait()
        self.latencies.append(time.perf_counter() - began)
        self.count += 1
        self.errors += result.status != "completed"


class CommitsByHand:
    """Makes as many commits as a turn, and notes how long all of them took."""

    def __init__(self, floor: Floor) -> None:
        self.latencies: list[float] = []
        self._floor = floor
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(asyncio.to_thread(self._make))

    async def end(self) -> None:
        if self._task:
            await self._task

    def _make(self) -> None:
        began = time.perf_counter()
        for _ in range(COMMITS):
            self._floor.add((1, b"by hand"))
        self.latencies.append(time.perf_counter() - began)


async def run(
    soak: Soak, database: Database, floor: Floor, show: Callable[[Interval, bool], None]
) -> list[Interval]:
    """Begin turns until the time is up; return, and show as they end, the intervals."""
    found: list[Interval] = []
    agents = [stepper(STEPS)]
    async with Outlast(agents, store=database.url, worker=None) as app:
        with WorkerProcess(database.url, steps=STEPS, lane_cache=soak.lane_cache) as worker:
            await asyncio.to_thread(worker.open)
            turns, by_hand, began = Turns(app), CommitsByHand(floor), time.perf_counter()
            ends_at, due = began + 60 * soak.minutes, began
            looks_at, loop = began + soak.interval, asyncio.get_running_loop()
            while (now := time.perf_counter()) < ends_at:
                turns.begin()
                if turns.begun % BY_HAND_EVERY == 0:
                    loop.call_later(0.5 / soak.rate, by_hand.begin)
                due += 1 / soak.rate  # of the clock: turns that are late do not slow the rest
                await asyncio.sleep(max(0.0, due - now))
                if time.perf_counter() >= looks_at:
                    looks_at += soak.interval
                    if turns.latencies:  # on a slow machine the first turns may take longer
                        found.append(look(turns, by_hand, database, worker, began))
                        show(found[-1], len(found) == 1)
            await turns.end()
            await by_hand.end()
            if found:  # the rest is no interval of its own: too few turns for a percentile
                found[-1].latencies += turns.latencies
            elif turns.latencies:
                found.append(look(turns, by_hand, database, worker, began))
                show(found[-1], True)
    return found


def look(
    turns: Turns, by_hand: CommitsByHand, database: Database, worker: WorkerProcess, began: float
) -> Interval:
    """Return the interval that ends now; at least one turn ended in it."""
    taken, turns.latencies = turns.latencies, []
    made, by_hand.latencies = by_hand.latencies, []
    return Interval(
        seconds=time.perf_counter() - began,
        turns=turns.count,
        errors=turns.errors,
        memory=worker.memory,
        descriptors=worker.descriptors,
        size=database.size,
        vitals=database.vitals(),
        latencies=taken,
        by_hand=made,
    )


def percentile(values: Sequence[float], percent: int) -> float:
    if not values:
        return nan
    return quantiles(values, n=100, method="inclusive")[percent - 1] if values[1:] else values[0]


def ratio(values: Sequence[float]) -> float:
    return percentile(values, 99) / percentile(values, 50)
