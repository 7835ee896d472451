"""Whoever waits for a session is told what it waits for, and a provider's outage once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from notices import noticed
from scene import FAST, PATIENT, agent, at_standstill, running, the, until

from outlast import Agent, Context, ModelOptions, Outlast, Session, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.instant import milliseconds_at
from outlast.errors import InvalidInput, StillWaiting
from outlast.session.run import RunResult
from outlast.session.waiting import KINDS, WaitingFor, WaitKind
from outlast.stores.sqlite import SqliteStore
from outlast.testing.clock import ManualClock
from outlast.testing.provider_server import (
    ErrorStatus,
    NoAnswer,
    Scripted,
    StreamsCut,
    WireOutage,
    WireServer,
    openai_model,
    reply,
    words,
)
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, say

ONCE = ModelOptions(max_attempts=1)
AT_ONCE = ModelOptions(max_attempts=1, provider_patience=0)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{path}"
    return str(request.getfixturevalue("postgres_url"))


@asynccontextmanager
async def asked(
    url: str, *script: Scripted, options: ModelOptions = ONCE
) -> AsyncIterator[tuple[Outlast, Session[Any]]]:
    """A session whose model is behind a provider that gives these answers."""
    async with WireServer(*script) as provider:
        model = openai_model(provider)
        support = Agent("support", model, model_options=options)
        async with Outlast([support], store=url, worker=FAST) as app:
            yield app, await app.start(support, "hi")


OUTAGES = {
    "503": (ErrorStatus(503, "overloaded"), "MODEL_UNAVAILABLE", "openai:gpt-wire is asked again"),
    "401": (ErrorStatus(401, "bad key"), "CREDENTIALS_REJECTED", "OPENAI_API_KEY"),
    "404": (
        ErrorStatus(404, "no such model", code="model_not_found"),
        "MODEL_NOT_FOUND",
        "instead of openai:gpt-wire",
    ),
    "429": (
        ErrorStatus(429, "slow down", headers={"Retry-After": "3600"}),
        "RATE_LIMITED",
        "the rate that the provider of openai:gpt-wire allows",
    ),
}


@pytest.mark.parametrize("case", OUTAGES)
async def test_when_the_time_is_up_a_session_that_waits_for_its_provider_says_so(
    url: str, case: str
) -> None:
    answer, code, mends = OUTAGES[case]
    began = datetime.now(UTC) - timedelta(minutes=1)
    async with asked(url, answer) as (_, session):
        with noticed() as notices:
            waiting = asyncio.create_task(session.wait())
            [(level, line)] = await notices.count(1)
            result = await session.wait(timeout=0)
            receipt = await session.receipt.result(timeout=timedelta(0))  # type: ignore[union-attr]
            await session.cancel("enough")
            assert (await waiting).status == "cancelled"

        found = result.waiting_for
        assert found is not None
        assert found.error is not None
        assert (result.status, found.kind, found.session_id) == ("running", "provider", session.id)
        assert (found.agent, found.lane, found.error.code) == ("support", "main", code)
        assert found.blocked == (case in ("401", "404"))
        assert mends in found.error.hint
        assert found.since is not None
        assert found.next_try_at is not None
        assert began < found.since < found.next_try_at
        if case == "429":
            assert found.next_try_at > found.since + timedelta(minutes=59)
        assert receipt.waiting_for == found
        with pytest.raises(StillWaiting, match=f"waits for its provider since .*: {code}"):
            result.unwrap()
        assert level == "WARNING"
        for word in (session.id, "support", code, mends, answer.message, "tried again at 20"):
            assert word in line


async def test_without_patience_the_turn_fails_after_its_tries(url: str) -> None:
    script = (ErrorStatus(503, "overloaded"), reply(words("there")))
    async with asked(url, *script, options=AT_ONCE) as (_, session):
        with noticed() as notices:
            result = await session.wait(timeout=60)

            assert (result.status, result.waiting_for) == ("failed", None)
            assert result.error is not None
            assert result.error.code == "MODEL_UNAVAILABLE"
            assert (await (await session.retry()).result()).output == "there"
            assert notices.lines == []


async def test_an_outage_is_told_once_however_often_it_is_tried_and_so_is_its_end(
    path: Path,
) -> None:
    clock = ManualClock()
    down = ScriptedError("transient", "overloaded")
    support = agent([ScriptedReply(text="there", fails=(down,) * 4)], model_options=ONCE)
    store = SqliteStore(path, clock)
    async with running(support, settings=PATIENT, store=store, clock=clock) as app:
        session = await app.start("a", "hi")
        with noticed() as notices:
            waiting = asyncio.create_task(session.wait())
            gone = await until(session, "provider.unavailable")
            await notices.count(1)
            clock.set(milliseconds_at(gone.data["not_before"]))
            for times in range(1, 4):
                again = await until(session, "provider.still_unavailable", times, internals=True)
                # While it waits, with another process that looks: the same outage.
                assert (await session.wait(timeout=0)).status == "running"
                clock.set(milliseconds_at(again.data["not_before"]))
            assert (await waiting).output == "there"

            assert [level for level, _ in notices.lines] == ["WARNING", "INFO"]
            assert notices.lines[1][1] == f"session {session.id} waits for no provider any more"


async def test_the_outage_of_a_child_is_told_to_who_waits_for_its_parent(url: str) -> None:
    def follow(request: ModelRequest) -> ScriptedReply:
        raise ScriptedError("blocked", "wrong key")

    @tool
    async def delegate(ctx: Context) -> str:
        """Ask the other one."""
        return str(await ctx.agent("helper").ask("do it"))

    parent = Agent("boss", ScriptedModel([call("delegate"), say("done")]), tools=[delegate])
    helper = Agent("helper", ScriptedModel(follow))
    async with Outlast([parent, helper], store=url, worker=FAST) as app:
        session = await app.start("boss", "go")
        with noticed() as notices:
            waiting = asyncio.create_task(session.wait())
            [(level, line)] = await notices.count(1)
            found = (await session.wait(timeout=0)).waiting_for
            await session.cancel()
            await waiting

            assert found is not None
            assert (found.kind, found.agent, found.blocked) == ("provider", "helper", True)
            assert found.session_id != session.id
            assert level == "WARNING"
            assert f"session {session.id} waits for its child {found.session_id}" in line
            assert "SCRIPTED: wrong key" in line


async def test_other_waits_are_named_too() -> None:
    @tool
    async def nap(ctx: Context) -> str:
        """Sleep."""
        await ctx.sleep(timedelta(hours=1))
        return "rested"

    sleepy = agent([call("nap"), say("good morning")], tools=[nap])
    async with at_standstill(sleepy) as (app, clock):
        session = await app.start("a", "hi")
        waiting = await until(session, "session.waiting")
        found = (await session.wait(timeout=0)).waiting_for
        assert found is not None
        assert (found.kind, found.error) == ("timer", None)
        assert found.since == waiting.data["since"]
        assert found.next_try_at == waiting.data["since"] + timedelta(hours=1)

        clock.advance(3_600_000)
        assert (await session.wait(timeout=60)).output == "good morning"
        assert (await session.wait(timeout=0)).output == "good morning"


@pytest.mark.parametrize("kind", KINDS)
def test_every_wait_can_be_said_in_words(kind: WaitKind) -> None:
    wait = WaitingFor(kind=kind, session_id="ses_1", agent="a", lane="main")
    with pytest.raises(StillWaiting, match="waits for "):
        RunResult(status="waiting", waiting_for=wait).unwrap()


async def test_a_session_without_a_worker_waits_for_one() -> None:
    idle = agent([say("never")])
    async with Outlast([idle], store="memory://", worker=None) as app:
        session = await app.start("a", "hi")
        result = await session.wait(timeout=0)
        assert result.waiting_for is not None
        assert (result.status, result.waiting_for.kind) == ("running", "worker")


async def test_a_session_at_work_waits_for_nothing() -> None:
    began, may_go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        """Work until told."""
        began.set()
        await may_go_on.wait()
        return "worked"

    async with running(agent([call("work"), say("done")], tools=[work])) as app:
        session = await app.start("a", "hi")
        await began.wait()
        result = await session.wait(timeout=0.01)
        assert (result.status, result.waiting_for) == ("running", None)
        with pytest.raises(StillWaiting, match="is at work"):
            result.unwrap()
        may_go_on.set()
        assert (await session.wait()).output == "done"
        assert await the(session, "provider.unavailable") == []


async def test_a_timeout_is_a_span_of_time() -> None:
    async with running(agent([say("hi")])) as app:
        session = await app.start("a", "hi")
        with pytest.raises(InvalidInput, match="a number of seconds"):
            await session.wait(timeout="soon")  # type: ignore[arg-type]


@pytest.mark.parametrize("outage", [NoAnswer(), StreamsCut()])
async def test_a_try_that_comes_to_nothing_is_no_end_of_the_wait(outage: WireOutage) -> None:
    options = ModelOptions(max_attempts=1, idle_timeout=0.3)
    async with WireServer(otherwise=lambda _: reply(words(*"there"))) as provider:
        await provider.go_away(outage)
        support = Agent("support", openai_model(provider), model_options=options)
        async with running(support) as app:
            session = await app.start("support", "hi")
            with noticed() as notices:
                waiting = asyncio.create_task(session.wait())
                await notices.count(1)
                for times in range(1, 3):
                    await app.providers.try_now()
                    await until(session, "model.started", times + 1, internals=True)
                    found = (await session.wait(timeout=0)).waiting_for
                    [lane] = (await session.explain()).lanes
                    await until(session, "provider.still_unavailable", times, internals=True)

                    assert found is not None
                    assert found.kind == "provider"
                    assert "provider" in [link.kind for link in lane.links]
                await provider.come_back()
                await app.providers.try_now()
                await waiting

                assert [level for level, _ in notices.lines] == ["WARNING", "INFO"]
