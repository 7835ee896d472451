"""Lanes with several models whose providers are away: none waits for one while another answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from scene import at_standstill, log_of, running, the, until

from outlast import Agent, ModelOptions
from outlast.agents.model.client import ModelRequest
from outlast.core import breaker
from outlast.core.policy import HOUR
from outlast.log.verify import verify
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, say

ONE_TRY = ModelOptions(max_attempts=1)


class AtTimes(ScriptedModel):
    """A model that may be away, and how often it was asked."""

    def __init__(self, name: str, kind: str, *, is_away: bool) -> None:
        super().__init__(self._answer, name=name)
        self.is_away = is_away
        self.asked = 0
        self._error = ScriptedError(kind, "not now")

    def _answer(self, _: ModelRequest) -> ScriptedReply:
        self.asked += 1
        if self.is_away:
            raise self._error
        return say(f"here is {self.name}")


async def test_a_model_that_is_known_to_be_away_is_left_without_being_asked() -> None:
    first = AtTimes("first", "transient", is_away=True)
    second = AtTimes("second", "transient", is_away=False)
    async with at_standstill(Agent("a", [first, second], model_options=ONE_TRY)) as (app, _):
        sessions = [await app.start("a", "hi")]
        assert (await sessions[0].wait()).output == "here is second"
        for _ in range(5):
            sessions.append(await app.start("a", "hi"))
            assert (await sessions[-1].wait()).output == "here is second"

        assert (first.asked, second.asked) == (3, 6)
        [left] = await the(sessions[-1], "model.switched")
        assert left.data["asked"] is False
        assert left.data["error"] == {"code": "SCRIPTED", "message": "not now"}


async def test_those_who_wait_for_one_model_go_on_with_another_that_is_back() -> None:
    first = AtTimes("first", "transient", is_away=True)
    second = AtTimes("second", "blocked", is_away=True)
    async with at_standstill(Agent("a", [first, second], model_options=ONE_TRY)) as (app, clock):
        sessions = [await app.start("a", "hi") for _ in range(8)]
        for session in sessions:
            await until(session, "provider.unavailable")
        second.is_away = False
        waiting = [asyncio.create_task(session.wait()) for session in sessions]
        async with asyncio.timeout(60):
            while not all(task.done() for task in waiting):
                clock.advance(1_000)
                await asyncio.sleep(0.01)  # what is due by now is done

        assert {task.result().output for task in waiting} == {"here is second"}
        logs = [await log_of(session, internals=True) for session in sessions]
        moved = [
            event
            for log in logs
            for event in log
            if event.type == "provider.still_unavailable" and event.data.get("asked") is False
        ]
        assert {event.data["next_model"] for event in moved} == {"second"}
        assert await app.store.limit.permits() == []
        for session in sessions:
            assert not await verify(app.store, session.id)


async def test_a_model_that_nobody_waits_for_is_probed_by_one_turn_at_a_time() -> None:
    first = AtTimes("first", "transient", is_away=True)
    second = AtTimes("second", "transient", is_away=False)
    async with at_standstill(Agent("a", [first, second], model_options=ONE_TRY)) as (app, clock):

        async def ask() -> str | None:
            return (await (await app.start("a", "hi")).wait()).output

        for _ in range(4):
            assert await ask() == "here is second"
        assert first.asked == 3
        for pause in (4_000, 8_000, 16_000, 32_000, 60_000, 60_000):  # it fails, and is left alone
            clock.advance(pause)
            asked = first.asked
            assert {await ask() for _ in range(3)} == {"here is second"}
            assert first.asked == asked + 1

        first.is_away = False
        assert await ask() == "here is second"
        clock.advance(60_000)
        assert {await ask() for _ in range(3)} == {"here is first"}
        assert await app.providers.list() == ()


async def test_a_worker_that_starts_knows_which_model_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "FIRST_PAUSE", HOUR)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", HOUR)
    first = AtTimes("first", "transient", is_away=True)
    second = AtTimes("second", "transient", is_away=False)
    asking = Agent("a", [first, second], model_options=ONE_TRY)
    for asked in (3, 3):  # the second time by a worker that has asked nothing yet
        async with running(asking, store=f"sqlite:///{tmp_path / 'outlast.db'}") as app:
            for _ in range(4):
                assert (await (await app.start("a", "hi")).wait()).output == "here is second"
        assert first.asked == asked
