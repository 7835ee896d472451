"""Lanes that wait for a model which a deployment replaces go on with the new one, together."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from scene import FAST, running, until

from outlast import Agent, ModelOptions, Outlast, Session
from outlast.agents.model.client import ModelRequest
from outlast.core import breaker
from outlast.core.policy import HOUR
from outlast.log.breaker import list_breakers
from outlast.log.verify import verify
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, say

ONE_TRY = ModelOptions(max_attempts=1)
NEW = Agent("a", ScriptedModel(lambda _: say("here"), name="new"), model_options=ONE_TRY)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


def away(*models: str, kind: str, options: ModelOptions = ONE_TRY) -> Agent[Any, Any]:
    def fail(request: ModelRequest) -> ScriptedReply:
        raise ScriptedError(kind, "not now")

    clients = [ScriptedModel(fail, name=model) for model in models]
    return Agent("a", clients, model_options=options)


async def start_waiting(app: Outlast, count: int) -> list[Session[Any]]:
    sessions = [await app.start("a", "hi") for _ in range(count)]
    for session in sessions:
        await until(session, "provider.unavailable")
    return sessions


async def all_answered(app: Outlast, sessions: list[Session[Any]]) -> None:
    async with asyncio.timeout(60):
        for session in sessions:
            assert (await (await app.session(session.id)).wait()).output == "here"
            assert not await verify(app.store, session.id)
    assert await list_breakers(app.store) == []
    assert await app.store.limit.permits() == []


@pytest.mark.parametrize("models", [("old",), ("old", "older")], ids=["one", "two"])
@pytest.mark.parametrize("kind", ["transient", "blocked"])
async def test_who_waits_for_a_model_goes_on_at_once_when_another_takes_its_place(
    store: str, kind: str, models: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "FIRST_PAUSE", HOUR)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", HOUR)
    async with running(away(*models, kind=kind), store=store) as app:
        sessions = await start_waiting(app, 6)
    async with running(NEW, store=store) as app:
        await all_answered(app, sessions)


async def test_who_waits_for_a_model_fails_at_once_when_a_deployment_has_no_patience(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "FIRST_PAUSE", HOUR)
    async with running(away("old", kind="transient"), store=store) as app:
        sessions = await start_waiting(app, 5)
    hasty = ModelOptions(max_attempts=1, provider_patience=0)
    async with running(away("old", kind="transient", options=hasty), store=store) as app:
        async with asyncio.timeout(60):
            results = [await (await app.session(session.id)).wait() for session in sessions]
        assert {result.status for result in results} == {"failed"}
        assert await app.providers.list() == ()
        assert await app.store.limit.permits() == []


async def test_the_line_of_a_replaced_model_is_left_by_all_when_newer_code_gets_its_first(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "FIRST_PAUSE", 100)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", 200)
    go_on = asyncio.Event()

    class HeldModel(ScriptedModel):
        async def stream(self, request: ModelRequest) -> Any:
            await go_on.wait()
            async for piece in super().stream(request):
                yield piece

    other = Agent("other", HeldModel([say("done")]))
    one_lane = replace(FAST, concurrency=1)
    async with running(NEW, other, store=store, settings=one_lane) as new:
        held = await new.start("other", "hi")  # so it takes no lane of the other agent
        await until(held, "model.started", internals=True)
        async with running(away("old", kind="transient"), store=store) as old:
            sessions = await start_waiting(old, 6)  # under a breaker that is younger than `new`
        go_on.set()
        await all_answered(new, sessions)
