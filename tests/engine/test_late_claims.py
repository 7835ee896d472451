"""Claims that are answered late: the store's clock is not taken for slow by as much.

On SQLite the store's clock is this machine's, and what is late is a process that was stopped. On
PostgreSQL the answers of a real server are held up on their way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from known import known_as
from msgspec.structs import replace
from postgres_proxy import Wire, through
from scene import FAST, PATIENT, at_standstill, running, the, until

from outlast import Agent, Approval, Context, Outlast, tool
from outlast.clock import Clock
from outlast.core import record as r
from outlast.core.instant import date_of, milliseconds_at
from outlast.engine import lane_runner
from outlast.engine.lease_keeper import LeaseKeeper
from outlast.log.reader import Wakeups
from outlast.log.verify import verify
from outlast.store import Claim, Store, WorkerInfo
from outlast.stores.postgres import PostgresStore
from outlast.stores.sqlite import MemoryStore, SqliteStore
from outlast.stores.url import open_store
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import ScriptedModel, calls, say
from outlast.testing.wrapped_store import WrappedStore

Now = Callable[[], int]

LATE = 600
"""Milliseconds: all spans of these tests are shorter."""
SPAN = 400
A_DAY = replace(FAST, lease=86_400.0)

both = pytest.mark.parametrize("database", ["sqlite", "postgres"])


class StoppedAfterClaims(WrappedStore):
    """A store whose process is stopped for a while whenever it has claimed something."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__(store)
        self._by = clock

    async def claim(self, worker: str, limit: int, *args: Any, **options: Any) -> Sequence[Claim]:
        claims = await super().claim(worker, limit, *args, **options)
        if claims:
            self._by.advance(LATE)
        return claims


class Late:
    """An app whose claims are answered late, and the database's clock."""

    def __init__(self, database: str, path: Path, url: Callable[[], str]) -> None:
        self._database = database
        self._path = path
        self._url = url
        self._clock = ManualClock()

    def now(self) -> int:
        if self._database == "sqlite":
            return self._clock.now()
        return time.time_ns() // 1_000_000  # the server is on this machine

    @asynccontextmanager
    async def app(self, *agents: Agent[Any, Any]) -> AsyncIterator[Outlast]:
        if self._database == "sqlite":
            late = StoppedAfterClaims(SqliteStore(self._path, self._clock), self._clock)
            async with running(*agents, settings=PATIENT, store=late, clock=self._clock) as app:
                yield app
            return
        wire = Wire(self._url())
        wire.answers_late_to, wire.late_by = b".claim(", LATE / 1000
        async with wire.opened() as port:
            store = PostgresStore(through(self._url(), port))
            async with running(*agents, settings=FAST, store=store) as app:
                yield app


@pytest.fixture
def late(database: str, path: Path, request: pytest.FixtureRequest) -> Late:
    return Late(database, path, lambda: str(request.getfixturevalue("postgres_url")))


def asking(
    *script: Any, tools: Sequence[Any] = (), heard: Callable[[Any], None] = lambda _: None
) -> Agent[Any, Any]:
    return Agent("a", ScriptedModel(script, on_request=heard), tools=tools)


@both
async def test_a_sleep_is_not_cut_short_by_a_claim_that_was_answered_late(late: Late) -> None:
    began: list[int] = []

    @tool
    async def nap(ctx: Context) -> str:
        began.append(late.now())
        await ctx.sleep(timedelta(milliseconds=SPAN))
        return "rested"

    async with late.app(asking(calls(("nap", {})), say("done"), tools=[nap])) as app:
        session = await app.start("a", "go")
        timer = await until(session, "timer.set")
        assert milliseconds_at(timer.data["due_at"]) >= began[0] + SPAN


@both
async def test_a_question_does_not_expire_early_for_a_claim_that_was_answered_late(
    late: Late,
) -> None:
    began: list[int] = []

    @tool
    async def hurry(ctx: Context) -> str:
        began.append(late.now())
        return (await ctx.ask("Quick!", timeout=timedelta(milliseconds=SPAN))).text

    async with late.app(asking(calls(("hurry", {})), say("done"), tools=[hurry])) as app:
        session = await app.start("a", "go")
        asked = await until(session, "request.opened")
        assert milliseconds_at(asked.data["expires_at"]) >= began[0] + SPAN


@both
async def test_an_approval_does_not_expire_early_for_a_claim_that_was_answered_late(
    late: Late,
) -> None:
    asked: list[int] = []

    @tool(approval=Approval("always", timeout=SPAN / 1000))
    async def pay() -> str:
        return "paid"

    async with late.app(
        asking(
            calls(("pay", {})),
            say("done"),
            tools=[pay],
            heard=lambda _: asked.append(late.now()),
        )
    ) as app:
        session = await app.start("a", "go")
        request = await until(session, "request.opened")
        assert milliseconds_at(request.data["expires_at"]) >= asked[0] + SPAN


@both
async def test_a_model_call_is_dated_when_it_was_made_though_the_claim_was_answered_late(
    late: Late,
) -> None:
    asked: list[int] = []
    async with late.app(asking(say("done"), heard=lambda _: asked.append(late.now()))) as app:
        session = await app.start("a", "go")
        answered = await until(session, "message.completed")
        assert milliseconds_at(answered.at) >= asked[0]
        assert await verify(app.store, session.id) == []


# Clocks that are wrong, or set


class WrongClock(Clock):
    """A worker's wall clock, which is set as the test likes; the database's is another one."""

    off = 0

    def now(self) -> int:
        return super().now() + self.off


@pytest.mark.parametrize("off", [-10_000_000, 0, 10_000_000])
async def test_a_span_counts_by_the_servers_clock_whatever_the_workers_shows(
    off: int, postgres_url: str
) -> None:
    began: list[int] = []

    @tool
    async def nap(ctx: Context) -> str:
        began.append(time.time_ns() // 1_000_000)
        await ctx.sleep(timedelta(milliseconds=SPAN))
        return "rested"

    clock = WrongClock()
    clock.off = off
    store = PostgresStore(postgres_url, clock)
    napping = asking(calls(("nap", {})), say("done"), tools=[nap])
    async with running(napping, store=store, clock=clock) as app:
        session = await app.start("a", "go")
        timer = await until(session, "timer.set")
        due_at, hours = milliseconds_at(timer.data["due_at"]), 1_000_000
        assert began[0] + SPAN <= due_at <= time.time_ns() // 1_000_000 + hours
        fired = await until(session, "timer.fired")
        assert due_at <= milliseconds_at(fired.at)
        assert due_at <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("off", [-10_000_000, 10_000_000])
async def test_deadlines_and_expiries_count_by_the_servers_clock_whatever_the_workers_shows(
    off: int, postgres_url: str
) -> None:
    began: list[int] = []

    @tool
    async def hurry(ctx: Context) -> str:
        began.append(time.time_ns() // 1_000_000)
        return (await ctx.ask("Quick!", timeout=timedelta(milliseconds=SPAN))).text

    clock = WrongClock()
    clock.off = off
    store = PostgresStore(postgres_url, clock)
    asked = asking(calls(("hurry", {})), say("done"), tools=[hurry])
    async with running(asked, store=store, clock=clock) as app:
        before = time.time_ns() // 1_000_000
        session = await app.start("a", "go", deadline=timedelta(minutes=1))
        first = (await store.log.read(session.id, 0)).entries[0]
        started = known_as(r.SessionStarted, first.record)
        assert before + 60_000 <= started.deadline_at <= time.time_ns() // 1_000_000 + 120_000
        request = await until(session, "request.opened")
        expires_at = milliseconds_at(request.data["expires_at"])
        assert began[0] + SPAN <= expires_at <= time.time_ns() // 1_000_000 + 120_000
        with Wakeups(store, session.id) as wakeups:  # the session rests before
            while not (expired := await the(session, "request.expired")):
                wakeups.clear()
                await wakeups.wait()
        assert expires_at <= milliseconds_at(expired[0].at)
        assert expires_at <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("jump", [-10_000_000, 10_000_000])
async def test_a_workers_clock_that_is_set_makes_nothing_due_before_its_time_by_the_servers(
    jump: int, postgres_url: str
) -> None:
    clock, set_at = WrongClock(), asyncio.Event()

    @tool
    async def nap(ctx: Context) -> str:
        await ctx.sleep(timedelta(milliseconds=SPAN))
        return "rested"

    @tool
    async def ring(ctx: Context) -> str:
        clock.off += jump
        set_at.set()
        return "set"

    script = [calls(("nap", {}), ("ring", {})), say("done")]
    store = PostgresStore(postgres_url, clock)
    async with running(asking(*script, tools=[nap, ring]), store=store, clock=clock) as app:
        session = await app.start("a", "go")
        await set_at.wait()
        await until(session, "timer.fired")
        [timer] = await the(session, "timer.set")
        assert milliseconds_at(timer.data["due_at"]) <= time.time_ns() // 1_000_000
        dates = [event.at async for event in session.events(follow=False)]
        assert dates == sorted(dates)


@both
async def test_dates_never_fall_within_a_session_though_the_databases_clock_is_set_back(
    database: str, path: Path, request: pytest.FixtureRequest
) -> None:
    clock = ManualClock()
    postgres = database == "postgres"
    url = str(request.getfixturevalue("postgres_url")) if postgres else f"sqlite:///{path}"
    answering = asking(say("one"), say("two"))
    async with running(answering, settings=A_DAY, store=open_store(url, clock), clock=clock) as app:
        session = await app.start("a", "go")
        await session.wait()
        clock.advance(-3_600_000)
        await session.send("go on")

        assert (await session.wait()).output == "two"

        entries = (await app.store.log.read(session.id, 0)).entries
        for before, entry in pairwise(entries):
            assert before.at <= entry.at
            assert before.at <= getattr(entry.record, "since", entry.at)


async def test_a_clock_that_is_set_forward_makes_the_deadline_of_a_lane_at_work_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_runner, "LOOK_EVERY", 0.01)
    begun = asyncio.Event()

    @tool
    async def work() -> str:
        begun.set()
        return await asyncio.Future()

    async with at_standstill(asking(calls(("work", {})), tools=[work])) as (app, clock):
        session = await app.start("a", "go", deadline=timedelta(hours=1))
        await begun.wait()

        clock.advance(3_600_000)  # no timer of the event loop is due

        failed = await until(session, "turn.failed")
        assert failed.data["error"]["code"] == "DEADLINE_EXCEEDED"


class Suspended(Clock):
    """The clocks of a machine that was suspended: the monotonic one has stood still."""

    slept = 0.0

    def now(self) -> int:
        return super().now() + int(self.slept * 1000)

    def boottime(self) -> float:
        return super().boottime() + self.slept


async def test_a_lease_is_not_taken_for_fresh_after_the_machine_was_suspended() -> None:
    clock, store = Suspended(), MemoryStore()
    info = WorkerInfo(worker="w", host="here", pid=1, started_at=date_of(1))
    lease = await store.work.enlist(info, 30_000)
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    keeper = LeaseKeeper(
        "w", lease, 30.0, clock, nothing, nothing, nothing, asked_at=clock.boottime()
    )
    assert keeper.is_confirmed

    clock.slept = 60.0

    assert not keeper.is_confirmed
