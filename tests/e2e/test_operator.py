"""An operator finds ten failed turns among a thousand sessions, and retries them in one command."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_scene import HERE
from terminal import Place

from outlast import Agent, Outlast, WorkerSettings
from outlast.agents.model.client import ModelRequest
from outlast.server.asgi import create
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, say

SESSIONS, EVERY = 1000, 100
WORKER = WorkerSettings(concurrency=SESSIONS, poll=0.05)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


async def failed_lanes(app: Outlast) -> dict[str, float]:
    """Read the gauge of failed lanes, by code, as Prometheus would."""
    transport = httpx.ASGITransport(create(app, None), client=("127.0.0.1", 4711))
    async with httpx.AsyncClient(transport=transport, base_url=HERE) as http:
        text = (await http.get("/v1/metrics")).text
    found = [line for line in text.splitlines() if line.startswith("outlast_failed_lanes{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in found}


async def test_ten_failed_turns_among_a_thousand_sessions_are_found_and_retried(
    url: str, tmp_path: Path
) -> None:
    is_closed = True

    def follow(request: ModelRequest) -> ScriptedReply:
        if is_closed and "fail" in str(request.view.messages[-1]):
            raise ScriptedError("recoverable", "the bank is closed")
        return say("open")

    place = Place(tmp_path)

    async def run(*args: str) -> Any:
        ended = await asyncio.to_thread(place.run, *args, "--json", store=url)
        assert ended.stderr == ""
        return json.loads(ended.stdout)

    async with Outlast([Agent("clerk", ScriptedModel(follow))], store=url, worker=WORKER) as app:
        sessions = await asyncio.gather(
            *(
                app.start("clerk", "fail" if number % EVERY == 0 else "hello", mode="task")
                for number in range(SESSIONS)
            )
        )
        await asyncio.gather(*(session.wait() for session in sessions))
        broken = {session.id for session in sessions[::EVERY]}
        assert await failed_lanes(app) == {"SCRIPTED": len(broken)}

        found = await run("sessions", "--failed", "--since", "1d")
        is_closed = False
        retried = await run("retry", "--code", "SCRIPTED", "--since", "1d")
        for session in sessions[::EVERY]:
            await session.wait()

        assert {each["session_id"] for each in found} == broken
        assert {each["failure"]["message"] for each in found} == {"the bank is closed"}
        assert retried == {"retried": len(broken), "left": 0}
        assert await failed_lanes(app) == {}
        assert await run("sessions", "--failed") == []
