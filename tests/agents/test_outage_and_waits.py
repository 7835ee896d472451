"""An outage, a failure or a deployment while a session waits for something else."""

from __future__ import annotations

from pathlib import Path

import pytest
from scene import agent, results_of, running, seen, until

from outlast import Agent, Context, ModelOptions, tool
from outlast.agents.model.client import ModelRequest
from outlast.core import breaker
from outlast.core.policy import HOUR
from outlast.log.verify import verify
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, say

ONE_TRY = ModelOptions(max_attempts=1)
IMPATIENT = ModelOptions(max_attempts=1, provider_patience=0)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


class KeyedProvider:
    """A provider that pays first and then says that it is done, while its key is valid."""

    def __init__(self) -> None:
        self.is_expired = False

    def reply(self, request: ModelRequest) -> ScriptedReply:
        if self.is_expired:
            raise ScriptedError("blocked", "the key has expired")
        return call("pay", cents=5) if len(request.view.messages) == 1 else say("done")


async def test_a_key_that_expires_during_an_approval_costs_neither_answer_nor_effect(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", HOUR)
    paid: list[int] = []

    @tool(approval="always")
    async def pay(ctx: Context, cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    provider = KeyedProvider()
    async with running(
        agent(provider.reply, tools=[pay], model_options=ONE_TRY), store=store
    ) as app:
        sessions = [await app.start("a", "go", mode="task") for _ in range(4)]
        for session in sessions:
            await until(session, "request.opened")
        provider.is_expired = True
        for session in sessions:
            [request] = await session.requests()
            await session.answer(request.request_id, "approve")
        for session in sessions:
            await until(session, "provider.unavailable")
            waiting = (await session.wait(timeout=0)).waiting_for
            assert waiting is not None
            assert (waiting.kind, waiting.blocked) == ("provider", True)
        assert paid == [5] * 4

        provider.is_expired = False
        assert await app.providers.try_now() == 1
        assert {(await session.wait()).output for session in sessions} == {"done"}
        assert paid == [5] * 4


async def test_tasks_that_rest_after_a_failure_are_retried_in_bulk_until_they_end(
    store: str,
) -> None:
    is_away = True

    def follow(request: ModelRequest) -> ScriptedReply:
        if is_away:
            raise ScriptedError("blocked", "wrong key")
        return say("there")

    async with running(agent(follow, model_options=IMPATIENT), store=store) as app:
        sessions = [
            await app.start("a", "hi", mode="task", dispatch_id=f"d{number}") for number in range(4)
        ]
        assert {(await session.wait()).status for session in sessions} == {"failed"}
        assert (await app.bulk.retry()).retried == 4
        for session in sessions:
            await seen(session, "turn.failed", 2)
        assert (await app.bulk.cancel()).cancelled == 0  # a task that rests has nothing open
        await app.start("a", "hi", mode="task", dispatch_id="d0", retry_failed=True)
        await seen(sessions[0], "turn.failed", 3)

        is_away = False
        assert (await app.bulk.retry()).retried == 4
        assert {(await session.wait()).output for session in sessions} == {"there"}
        assert (await app.bulk.retry()).retried == 0
        again = await app.start("a", "hi", mode="task", dispatch_id="d0", retry_failed=True)
        assert again.id == sessions[0].id
        for session in sessions:
            assert not await verify(app.store, session.id)


@tool(name="pay")
async def pay_unasked(ctx: Context, cents: int) -> str:
    """Pay without approval."""
    return f"paid {cents}"


async def test_a_tool_that_needs_no_approval_any_more_is_run_after_the_one_that_was_asked_for(
    store: str,
) -> None:
    @tool(approval="always")
    async def pay(ctx: Context, cents: int) -> str:
        """Pay."""
        return "paid by the old code"

    follow = KeyedProvider().reply
    async with running(agent(follow, tools=[pay]), store=store) as old:
        session = await old.start("a", "go")
        await until(session, "request.opened")
        [request] = await session.requests()
    async with running(agent(follow, tools=[pay_unasked]), store=store) as new:
        session = await new.session(session.id)
        await session.answer(request.request_id, "approve")
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["paid 5"]
        assert not await verify(new.store, session.id)


async def test_an_answer_to_an_agent_that_is_gone_is_kept_until_it_is_back(store: str) -> None:
    @tool(approval="always")
    async def pay(ctx: Context, cents: int) -> str:
        """Pay."""
        return "paid"

    known = agent(KeyedProvider().reply, tools=[pay])
    async with running(known, store=store) as app:
        session = await app.start("a", "go")
        await until(session, "request.opened")
        [request] = await session.requests()
    async with running(Agent("b", ScriptedModel([])), store=store) as app:
        session = await app.session(session.id)
        await session.answer(request.request_id, "approve")
        waiting = (await session.wait(timeout=0)).waiting_for
        assert waiting is not None
        assert (waiting.kind, waiting.agent) == ("worker", "a")
    async with running(known, store=store) as app:
        session = await app.session(session.id)
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["paid"]
