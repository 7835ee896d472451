"""Lanes whose provider is away: the first in line asks, the others wait and write nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from scene import FAST, agent, at_standstill, log_of, running, the, until

from outlast import Agent, Limit, ModelOptions, Outlast, Result, Session, tool
from outlast.agents.model.client import ModelPiece, ModelRequest
from outlast.core import breaker
from outlast.core.breaker import Breaker, Provider
from outlast.core.policy import HOUR
from outlast.core.record import Failure
from outlast.core.result import ModelFailed
from outlast.engine import maintenance
from outlast.engine.provider_breaker import ProviderBreakers
from outlast.log.breaker import end_pause, list_breakers, put_breaker
from outlast.log.verify import verify
from outlast.rules import PolicyCall, policy
from outlast.store import Document
from outlast.testing import ManualClock
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, say
from outlast.testing.wrapped_store import WrappedStore

ONE_TRY = ModelOptions(max_attempts=1)


class FlakyProvider:
    """A provider that may be away, and how often it was asked."""

    def __init__(self, kind: str = "transient", retry_after: int = 0) -> None:
        self.is_away = True
        self.asked = 0
        self.fail_as(kind, retry_after)

    def fail_as(self, kind: str, retry_after: int = 0) -> None:
        self._error = ScriptedError(kind, "overloaded", retry_after)

    def reply(self, request: ModelRequest) -> ScriptedReply:
        self.asked += 1
        if self.is_away:
            raise self._error
        return say("there")


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes follow each other quickly: in these tests time is real."""
    monkeypatch.setattr(breaker, "FIRST_PAUSE", 100)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", 200)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause ends by itself within these tests."""
    monkeypatch.setattr(breaker, "FIRST_PAUSE", HOUR)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", HOUR)


async def until_true(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


async def start_waiting(app: Outlast, count: int) -> list[Session[Any]]:
    """Start sessions that all wait for the provider by the time that this returns."""
    sessions = [await app.start("a", "hi") for _ in range(count)]
    for session in sessions:
        await until(session, "provider.unavailable")
    return sessions


async def results_of(sessions: list[Session[Any]]) -> list[Result[Any]]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*(session.wait() for session in sessions))


async def all_answered(app: Outlast, sessions: list[Session[Any]]) -> None:
    assert {result.output for result in await results_of(sessions)} == {"there"}
    for session in sessions:
        assert len(await the(session, "provider.unavailable")) == 1
        assert len(await the(session, "provider.available")) == 1
        assert not await verify(app.store, session.id)
    assert await app.store.limit.permits() == []
    assert await list_breakers(app.store) == []


async def test_while_a_provider_is_away_one_lane_asks_and_the_others_write_nothing() -> None:
    provider = FlakyProvider()
    async with at_standstill(agent(provider.reply, model_options=ONE_TRY)) as (app, clock):
        sessions = await start_waiting(app, 30)
        clock.advance(4_000)  # each comes once, and finds others in line before it
        await until_true(lambda: in_line(app, 29))
        before = provider.asked, [len(await log_of(s, internals=True)) for s in sessions]

        [open_now] = await list_breakers(app.store)
        for probes in range(1, 6):
            [open_now] = await list_breakers(app.store)
            clock.set(open_now.next_at)
            await until_true(partial(probed, app, probes))
        after = [len(await log_of(s, internals=True)) for s in sessions]
        assert provider.asked - before[0] <= 6
        # A probe is two internal records of one lane: it began, and it came to nothing.
        assert sum(after) - sum(before[1]) <= 3 * 6
        assert open_now.since + 24 * 3_600_000 > clock.now()

        provider.is_away = False
        clock.advance(60_000)
        await all_answered(app, sessions)


async def test_while_a_breaker_is_open_new_sessions_do_not_ask() -> None:
    provider = FlakyProvider()
    async with at_standstill(agent(provider.reply, model_options=ONE_TRY)) as (app, clock):
        await start_waiting(app, 4)
        asked = provider.asked
        later = await start_waiting(app, 5)
        assert provider.asked == asked
        for session in later:
            [told] = await the(session, "provider.unavailable")
            assert not told.data["asked"]
            assert told.data["error"] == {"code": "SCRIPTED", "message": "overloaded"}

        provider.is_away = False
        clock.advance(4_000)
        results = await results_of(later)
        assert {result.output for result in results} == {"there"}
        [back] = await the(later[0], "provider.available")
        assert back.data["attempts"] == 0


class CrowdedModel(ScriptedModel):
    """A scripted model that takes a moment, and knows how many have asked it at once."""

    def __init__(self, provider: FlakyProvider) -> None:
        super().__init__(provider.reply)
        self.at_once: list[int] = []
        self._inside = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        self._inside += 1
        self.at_once.append(self._inside)
        try:
            await asyncio.sleep(0.05)
            async for piece in super().stream(request):
                yield piece
        finally:
            self._inside -= 1


async def test_lanes_go_on_in_growing_groups() -> None:
    provider = FlakyProvider()
    model = CrowdedModel(provider)
    async with at_standstill(Agent("a", model, model_options=ONE_TRY)) as (app, clock):
        sessions = await start_waiting(app, 40)
        await until_true(lambda: in_line(app, 39))
        provider.is_away = False
        model.at_once.clear()
        clock.advance(4_000)
        await all_answered(app, sessions)
        assert model.at_once[0] == 1
        assert max(model.at_once[:7]) <= 4
        assert max(model.at_once) > 4


async def test_an_answer_that_had_ended_before_the_last_failure_lets_nobody_through() -> None:
    provider, failed = FlakyProvider(), ModelFailed(Failure("AWAY", "gone again"), "transient")

    @tool
    async def pay() -> str:
        return "paid"

    @policy
    async def slow(asked: PolicyCall) -> None:
        """Look at what the probe was answered while another worker's call fails."""
        clock.advance(1_000)
        other = ProviderBreakers(app.store, clock)
        name = Provider("a", "scripted")
        await other.note(name, failed, "ses_1", "t1.s1", parks=True, probes=False)
        provider.is_away = True

    def reply(request: ModelRequest) -> ScriptedReply:
        said = provider.reply(request)
        return call("pay") if "pay" in str(request.view.messages[0]) else said

    asking = agent(reply, tools=[pay], rules=[slow], model_options=ONE_TRY)
    async with at_standstill(asking) as (app, clock):
        first = await app.start("a", "pay")
        await until(first, "session.waiting")  # now it is the first in line
        await start_waiting(app, 3)
        asked, provider.is_away = provider.asked, False
        clock.advance(10_000)
        await until(first, "tool.completed")

        [known] = await list_breakers(app.store)
        assert (known.state, known.error.code) == ("open", "AWAY")
        await until_true(lambda: in_line(app, 3))
        assert provider.asked == asked + 1


class SlowAnswer(WrappedStore):
    """A store whose next answer comes late: something else happens first."""

    meanwhile: Callable[[], Awaitable[Any]] | None = None

    async def get(self, kind: str, tenant: str, name: str) -> Document | None:
        found = await super().get(kind, tenant, name)
        happens, self.meanwhile = self.meanwhile, None
        if happens:
            await happens()
        return found


async def test_a_probe_looks_again_where_another_may_have_failed_while_the_store_was_slow(
    store: str,
) -> None:
    name, clock = Provider("a", "scripted"), ManualClock()
    over = Breaker(
        provider=name, since=1, error=Failure("AWAY", ""), failures=1, is_open=True, next_at=1
    )
    async with Outlast(store=store, worker=None) as app:
        slow = SlowAnswer(app.store)
        await put_breaker(slow, over, 0)
        prolonged = replace(over, failures=2, next_at=app.clock.now() + HOUR)

        async def fail() -> None:
            clock.advance(13_000)
            assert await put_breaker(app.store, prolonged, 1)

        slow.meanwhile = fail
        found = await ProviderBreakers(slow, clock).look(name, fresh=True)

    assert found == prolonged


async def test_patience_ends_in_line_while_the_probe_takes_its_time() -> None:
    provider, is_asked, go_on = FlakyProvider(), asyncio.Event(), asyncio.Event()

    class SlowModel(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
            if provider.asked > 4:
                is_asked.set()
                await go_on.wait()
            async for piece in super().stream(request):
                yield piece

    options = ModelOptions(max_attempts=1, provider_patience=60, idle_timeout=600)
    slow = Agent("a", SlowModel(provider.reply), model_options=options)
    async with at_standstill(slow) as (app, clock):
        sessions = await start_waiting(app, 5)
        await until_true(lambda: in_line(app, 4))
        clock.advance(4_000)
        await is_asked.wait()
        clock.advance(60_000)
        [holder] = [p.session_id for p in await app.store.limit.permits() if p.held]
        others = [session for session in sessions if session.id != holder]
        results = await results_of(others)
        assert {result.status for result in results} == {"failed"}
        go_on.set()


async def in_line(app: Outlast, count: int) -> bool:
    waiting = [permit for permit in await app.store.limit.permits() if not permit.held]
    lanes = await app.store.listing.lanes(limit=100)
    return len(waiting) >= count and not any(lane.worker for lane in lanes)


async def probed(app: Outlast, times: int) -> bool:
    [known] = await list_breakers(app.store)
    return known.probes >= times


@pytest.mark.usefixtures("quick")
async def test_all_sessions_of_two_workers_go_on_when_the_provider_is_back(store: str) -> None:
    provider = FlakyProvider()
    asking = agent(provider.reply, model_options=ONE_TRY)
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(running(asking, store=store)) for _ in range(2)]
        sessions = [*await start_waiting(apps[0], 12), *await start_waiting(apps[1], 12)]
        await until_true(lambda: probed(apps[0], 3))
        asked = provider.asked
        await until_true(lambda: probed(apps[0], 6))
        assert provider.asked - asked <= 5

        provider.is_away = False
        await all_answered(apps[0], sessions)


@pytest.mark.usefixtures("quick")
async def test_a_call_that_fails_by_its_own_fault_does_not_hold_others_up(store: str) -> None:
    def script(request: ModelRequest) -> ScriptedReply:
        said = request.view.messages[0].content[0].text  # type: ignore[union-attr]
        if said == "poison":
            raise ScriptedError("blocked", "not for you")
        return say("there")

    async with running(agent(script, model_options=ONE_TRY), store=store) as app:
        poison = [await app.start("a", "poison") for _ in range(5)]
        for session in poison:
            await until(session, "provider.unavailable")
        assert [known.is_open for known in await list_breakers(app.store)] == [True]

        others = [await app.start("a", "hi") for _ in range(10)]
        results = await results_of(others)
        assert {result.output for result in results} == {"there"}
        for session in poison:
            assert (await the(session, "session.waiting"))[-1].data["wait"] == ("provider",)


async def test_an_agent_without_patience_stands_in_no_line() -> None:
    provider = FlakyProvider()
    options = ModelOptions(max_attempts=1, provider_patience=0)
    async with running(agent(provider.reply, model_options=options)) as app:
        sessions = [await app.start("a", "hi") for _ in range(6)]
        results = await results_of(sessions)
        assert {result.status for result in results} == {"failed"}
        assert provider.asked == 6
        assert await list_breakers(app.store) == []


async def test_lanes_in_line_lose_patience_and_deadlines_as_if_they_asked_themselves() -> None:
    provider = FlakyProvider()
    options = ModelOptions(max_attempts=1, provider_patience=3600)
    async with at_standstill(agent(provider.reply, model_options=options)) as (app, clock):
        sessions = await start_waiting(app, 8)
        clock.advance(4_000)
        await until_true(lambda: in_line(app, 7))
        clock.advance(3_600_000)
        results = await results_of(sessions)
        assert {(r.status, r.error.code) for r in results if r.error} == {("failed", "SCRIPTED")}
        await until_true(lambda: nothing_held(app))

        provider.is_away = False
        clock.advance(120_000)
        retried = [await session.retry() for session in sessions]
        assert {(await each.result()).output for each in retried} == {"there"}


async def nothing_held(app: Outlast) -> bool:
    return await app.store.limit.permits() == []


async def test_a_probe_that_is_cancelled_makes_way_for_the_next_in_line() -> None:
    provider = FlakyProvider()
    async with at_standstill(agent(provider.reply, model_options=ONE_TRY)) as (app, clock):
        sessions = await start_waiting(app, 5)
        clock.advance(4_000)
        await until_true(lambda: in_line(app, 4))
        [holder] = [p.session_id for p in await app.store.limit.permits() if p.held]
        await (await app.session(holder)).cancel()
        provider.is_away = False
        clock.advance(60_000)
        others = [session for session in sessions if session.id != holder]
        results = await results_of(others)
        assert {result.output for result in results} == {"there"}


async def overdue(app: Outlast) -> bool:
    [known] = await list_breakers(app.store)
    return known.is_overdue(app.store.clock.earliest())


async def start_in_lane(app: Outlast, lane: str) -> Session[Any]:
    session = await app.start("a", "hi", lane=lane)
    await until(session, "provider.unavailable")
    return session


@pytest.mark.usefixtures("quick")
async def test_lanes_in_line_behind_those_that_no_worker_takes_go_on(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "PERMIT_KEPT", 50)
    monkeypatch.setattr(maintenance.StalePermitReaper, "interval", 0.05)
    provider = FlakyProvider()
    asking = agent(provider.reply, model_options=ONE_TRY)
    async with running(asking, store=store) as app:
        left = [await start_in_lane(app, "bulk") for _ in range(3)]
        session = await start_in_lane(app, "main")
        await until_true(lambda: in_line(app, 3))
    provider.is_away = False
    async with running(asking, store=store, settings=replace(FAST, lanes=("main",))) as app:
        [result] = await results_of([await app.session(session.id)])
        assert result.output == "there"
        assert {(await (await app.session(each.id)).info()).status for each in left} == {"sleeping"}
    async with running(asking, store=store) as app:
        await all_answered(app, [await app.session(each.id) for each in left])


@pytest.mark.usefixtures("quick")
async def test_a_new_session_asks_itself_where_the_first_in_line_does_not(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "OVERDUE", 0)
    monkeypatch.setattr(maintenance.StalePermitReaper, "interval", 3600.0)
    provider = FlakyProvider()
    asking = agent(provider.reply, model_options=ONE_TRY)
    async with running(asking, store=store) as app:
        await start_waiting(app, 5)
        await until_true(lambda: in_line(app, 4))
    provider.is_away = False
    async with running(asking, store=store, settings=replace(FAST, resume=False)) as app:
        await until_true(lambda: overdue(app))
        for _ in range(3):
            assert (await (await app.start("a", "hi")).wait()).output == "there"


@pytest.mark.usefixtures("quick")
async def test_a_limit_of_the_model_is_not_held_by_lanes_in_line(store: str) -> None:
    provider = FlakyProvider()
    options = ModelOptions(max_attempts=1, limit=Limit(concurrency=1))
    async with running(agent(provider.reply, model_options=options), store=store) as app:
        sessions = await start_waiting(app, 6)
        await until_true(lambda: probed(app, 2))
        provider.is_away = False
        await all_answered(app, sessions)


@pytest.mark.usefixtures("quick")
async def test_other_agents_and_other_models_go_on_meanwhile() -> None:
    provider = FlakyProvider()
    other = Agent("b", ScriptedModel([say("there")]))
    async with running(agent(provider.reply, model_options=ONE_TRY), other) as app:
        await start_waiting(app, 4)
        [known] = await list_breakers(app.store)
        assert (known.provider.agent, known.provider.model) == ("a", "scripted")
        session = await app.start(other, "hi")
        assert (await session.wait()).output == "there"


async def test_a_provider_that_answers_is_never_looked_up() -> None:
    class CountingReads(Exception):
        """A read of a breaker, which must not happen."""

    async with running(agent([say("one")])) as app:

        async def refuse(*_: Any) -> None:
            raise CountingReads

        app.store.document.get = refuse  # type: ignore[method-assign,assignment]
        session = await app.start("a", "hi")
        assert (await session.wait()).output == "one"


def test_a_breaker_is_stored_without_loss() -> None:
    import msgspec

    known = breaker.after_failure(
        None,
        breaker.Provider("a", "m", "x"),
        ModelFailed(Failure("C", "m"), "blocked"),
        3,
        5,
        opens=True,
    )
    assert msgspec.json.decode(msgspec.json.encode(known), type=Breaker) == known


async def test_an_operator_sees_who_is_away_and_has_it_asked_at_once() -> None:
    provider = FlakyProvider("blocked")
    async with at_standstill(agent(provider.reply)) as (app, clock):
        [session] = await start_waiting(app, 1)
        await until_true(lambda: waiting(app, 1))
        [outage] = await app.providers.list()
        assert (outage.agent, outage.model, outage.state) == ("a", "scripted", "failing")
        assert (outage.error.code, outage.blocked, outage.failures) == ("SCRIPTED", True, 1)
        assert (outage.next_try_at - outage.since).total_seconds() == 60
        assert await app.providers.list(agent="other") == ()

        provider.is_away = False
        assert await app.providers.try_now() == 1
        assert (await session.wait()).output == "there"
        assert await app.providers.list() == ()
        assert await app.providers.try_now() == 0
        assert clock.now() == 1_700_000_000_000


async def waiting(app: Outlast, count: int) -> bool:
    return sum(outage.waiting for outage in await app.providers.list()) == count


async def test_explain_says_whose_turn_it_is_to_ask() -> None:
    provider = FlakyProvider()
    async with at_standstill(agent(provider.reply, model_options=ONE_TRY)) as (app, _):
        sessions = await start_waiting(app, 3)
        await until_true(lambda: in_line(app, 2))
        links = [
            link
            for session in sessions
            for lane in (await session.explain()).lanes
            for link in lane.links
            if link.kind in ("provider", "permit")
        ]
        [outage] = await app.providers.list()
        assert [link.kind for link in links] == ["provider"] * 3
        assert {link.until for link in links} == {outage.next_try_at}
        texts = sorted(link.text.split(":")[0] for link in links)
        assert texts == [
            f"the model scripted cannot be had, and {whose}"
            for whose in (
                "1 before this one in line have to be answered first",
                "2 before this one in line have to be answered first",
                "this session is the next to ask it",
            )
        ]


async def test_an_outage_that_somebody_has_to_mend_by_now_is_told_once_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider = FlakyProvider()
    async with at_standstill(agent(provider.reply, model_options=ONE_TRY)) as (app, clock):
        sessions = await start_waiting(app, 3)
        for kind in ("transient", "blocked", "blocked", "transient"):
            provider.fail_as(kind)
            [open_now] = await list_breakers(app.store)
            clock.set(open_now.next_at)
            await until_true(partial(probed, app, open_now.probes + 1))
        provider.is_away = False
        clock.advance(60_000)
        await all_answered(app, sessions)

    told = [each.message for each in caplog.records if "cannot be had" in each.message]
    assert ["is probed until it answers" in each for each in told] == [True, False]
    assert "has to be mended by somebody" in told[1]


@pytest.mark.usefixtures("slow")
async def test_a_worker_that_starts_asks_at_once_where_somebody_had_to_mend_something(
    store: str,
) -> None:
    provider = FlakyProvider("blocked")
    asking = agent(provider.reply, model_options=ONE_TRY)
    async with running(asking, store=store) as old:
        sessions = await start_waiting(old, 4)
        assert [known.blocked for known in await list_breakers(old.store)] == [True]
    provider.is_away = False  # a key in the environment is mended by a deployment
    async with running(asking, store=store) as new:
        later = [await new.session(session.id) for session in sessions]
        await all_answered(new, later)


@pytest.mark.usefixtures("slow")
async def test_a_worker_that_starts_leaves_alone_who_does_not_answer_the_others(store: str) -> None:
    provider = FlakyProvider()
    asking = agent(provider.reply, model_options=ONE_TRY)
    async with running(asking, store=store) as old:
        await start_waiting(old, 4)
        [before] = await list_breakers(old.store)
        asked = provider.asked
        async with running(asking, store=store) as new:
            [after] = await list_breakers(new.store)
            assert (after.next_at, after.probes) == (before.next_at, before.probes)
    assert provider.asked == asked


@pytest.mark.parametrize("blocked", [True, False])
async def test_a_worker_that_starts_ends_no_pause_that_has_become_another_meanwhile(
    blocked: bool,
) -> None:
    known = Breaker(
        provider=Provider("a", "scripted"),
        since=0,
        error=Failure("AWAY", "no"),
        failures=3,
        is_open=True,
        next_at=2**50,
        blocked=blocked,  # by now; it was when the worker looked
    )
    async with running(agent([])) as app:
        await put_breaker(app.store, known, 0)
        await end_pause(app.store, known.provider, if_blocked=True)
        [after] = await list_breakers(app.store)
    assert (after.next_at < known.next_at) == blocked
