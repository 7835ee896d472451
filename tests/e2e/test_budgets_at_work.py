"""Budgets that are changed over HTTP while sessions run: who waits, who goes on, who sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from http_scene import FAST, Caller, Scene

from outlast import Agent, Outlast
from outlast.log.verify import verify, verify_budgets
from outlast.server.asgi import create
from outlast.testing.scripted import ScriptedModel, say

SESSIONS = 20


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


@asynccontextmanager
async def bank(url: str) -> AsyncIterator[Scene]:
    """An app whose two workers know the budgets that were set before."""
    teller = Agent("teller", ScriptedModel(lambda _: say("well")))
    async with (
        Outlast([teller], store=url, worker=FAST) as app,
        Outlast([teller], store=url, worker=FAST),
    ):
        yield Scene(app, create(app, None))


async def allow(caller: Caller, budget: dict[str, Any] | None, **whose: Any) -> Any:
    body = {"budget": budget, **whose}
    return (await caller.ask("PUT", "/budgets", json=body))["budget"]


async def begin(caller: Caller) -> list[str]:
    body = {"agent": "teller", "message": "go"}
    started = [await caller.ask("POST", "/sessions", 202, json=body) for _ in range(SESSIONS)]
    return [each["session_id"] for each in started]


async def waits(caller: Caller, session: str) -> bool:
    [lane] = (await caller.ask("GET", f"/sessions/{session}"))["lanes"]
    return "budget" in lane["wait"]


async def at_rest(caller: Caller, sessions: list[str]) -> list[bool]:
    """Wait until each session waits for the budget or has its answer; say which of them wait."""
    async with asyncio.timeout(60):
        while True:
            waiting = [await waits(caller, each) for each in sessions]
            [line] = (await caller.ask("GET", "/budgets"))["budgets"] or [None]
            if line and waiting.count(False) == line["spent"]["model_calls"]:
                return waiting
            await asyncio.sleep(0.02)


async def test_all_that_wait_for_a_tenants_budget_go_on_when_it_is_raised(url: str) -> None:
    async with bank(url) as before, before.caller() as caller:
        await allow(caller, {"model_calls": 3})
    async with bank(url) as here, here.caller() as caller:
        sessions = await begin(caller)
        assert sum(await at_rest(caller, sessions)) == SESSIONS - 3

        # Below what is spent: nobody goes on, and what is spent stays.
        lowered = await allow(caller, {"model_calls": 1})
        assert lowered["spent"]["model_calls"] == 3
        assert sum(await at_rest(caller, sessions)) == SESSIONS - 3

        await allow(caller, {"model_calls": 1000})
        for session in sessions:
            assert (await caller.result(session))["output"] == "well"
        [line] = (await caller.ask("GET", "/budgets"))["budgets"]
        assert line["spent"]["model_calls"] == SESSIONS
        assert not any(line["reserved"][name] for name in ("tokens", "model_calls", "steps"))
        used = await caller.ask("GET", "/usage/total")
        assert used["total"]["model_calls"] == SESSIONS
        assert line["spent"]["tokens"] == (
            used["total"]["input_tokens"] + used["total"]["output_tokens"]
        )
        assert await verify_budgets(here.app.store) == []
        for session in sessions:
            assert await verify(here.app.store, session) == []
