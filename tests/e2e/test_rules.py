"""Rules on both databases: what they said stands after a stop, and readers see it everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_scene import Scene
from scene import FAST, PATIENT, Watched, log_of, the

from outlast import Agent, Outlast, tool
from outlast.core.message import UserMessage, text_of
from outlast.log.verify import verify
from outlast.rules import (
    Every,
    ReadBeforeWrite,
    SequentialDependency,
    TurnContext,
    completion,
    feedback,
)
from outlast.server.asgi import create
from outlast.stores.sqlite import SqliteStore
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import calls, say


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


@tool(readonly=True, reads="path")
async def read(path: str) -> str:
    return "text"


@tool(idempotent=True, writes="path")
async def write(path: str) -> str:
    return "written"


@tool
async def publish() -> str:
    return "published"


def writer(
    model: Watched, check: Callable[[TurnContext], Any], advice: Callable[[TurnContext], Any]
) -> Agent[Any, Any]:
    rules = [SequentialDependency(tool="publish", after="write"), ReadBeforeWrite()]
    return Agent(
        "writer",
        model,
        tools=[read, write, publish],
        rules=[*rules, completion(name="check")(check), feedback(every=Every(calls=2))(advice)],
    )


SCRIPT = [
    calls(("publish", {}), ("write", {"path": "a"})),
    calls(("read", {"path": "a"})),
    calls(("write", {"path": "a"})),
    say("Written."),
    calls(("publish", {})),
    say("Published."),
]


async def test_what_rules_said_stands_after_a_stop_in_the_middle_of_a_check(store: str) -> None:
    first, second = Watched(SCRIPT), Watched(SCRIPT)
    is_checking = asyncio.Event()
    advised: list[int] = []

    async def advice(turn: TurnContext) -> str | None:
        advised.append(turn.step)
        return f"{turn.calls} calls"

    async def hangs(turn: TurnContext) -> str | None:
        is_checking.set()
        await asyncio.Event().wait()
        return None

    async def check(turn: TurnContext) -> str | None:
        return None if "publish" in turn.succeeded else "publish it"

    async with Outlast([writer(first, hangs, advice)], store=store, worker=FAST) as app:
        session = await app.start("writer", "Write and publish.")
        await is_checking.wait()
    async with Outlast([writer(second, check, advice)], store=store, worker=FAST) as app:
        session = await app.session(session.id)

        assert (await session.wait()).output == "Published."
        assert len(first.requests) == 4
        assert [request.call_id for request in second.requests] == ["t1.s5", "t1.s6"]
        shown = [text_of(m.content) for m in second.seen[0] if isinstance(m, UserMessage)]
        assert shown[1] == "Feedback (advice): 2 calls"
        assert shown[2] == "Feedback (advice): 4 calls"
        assert shown[3].endswith("- check: publish it")
        assert advised == [1, 3]
        reasons = [event.data["reason"] for event in await the(session, "tool.denied")]
        assert [reason.partition(" ")[0] for reason in reasons] == ["publish", "write"]
        assert not await verify(app.store, session.id)


async def test_time_until_feedback_goes_on_counting_while_nobody_works(tmp_path: Path) -> None:
    clock = ManualClock()
    is_entered = asyncio.Event()
    may_return = False

    @tool(idempotent=True)
    async def work() -> str:
        if not may_return:
            clock.advance(40_000)
            is_entered.set()
            await asyncio.Event().wait()
        return "worked"

    @feedback(every=Every(seconds=60))
    async def hurry(turn: TurnContext) -> str | None:
        return f"{turn.elapsed.total_seconds():g} seconds"

    model = Watched([calls(("work", {})), calls(("work", {})), say("done")])

    def app() -> Outlast:
        agent = Agent("a", model, tools=[work], rules=[hurry])
        store = SqliteStore(tmp_path / "outlast.db", clock)
        return Outlast([agent], store=store, clock=clock, worker=PATIENT)

    async with app() as first:
        session = await first.start("a", "go")
        await is_entered.wait()
    clock.advance(30_000)
    may_return = True
    async with app() as second:
        session = await second.session(session.id)
        await session.wait()

        [given] = await the(session, "feedback.given")
        assert given.data["text"] == "70 seconds"
        assert (given.turn, given.step) == ("t1", 1)


async def test_readers_over_http_see_feedback_and_refusals(store: str) -> None:
    async def advice(turn: TurnContext) -> str | None:
        return "go on"

    async def check(turn: TurnContext) -> str | None:
        return None if "publish" in turn.succeeded else "publish it"

    async with Outlast([writer(Watched(SCRIPT), check, advice)], store=store, worker=FAST) as app:
        session = await app.start("writer", "Write and publish.")
        await session.wait()
        mine = [event for event in await log_of(session) if event.type in SHOWN]
        scene = Scene(app, create(app, None))
        async with scene.caller() as caller:
            theirs = [e for e in await caller.events(session.id) if e["type"] in SHOWN]
        scene.api.state.backend.feeds.close()

        assert [each["type"] for each in theirs] == [event.type for event in mine]
        assert {each["type"] for each in theirs} == SHOWN


SHOWN = {"feedback.given", "completion.refused", "tool.denied"}
