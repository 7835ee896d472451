"""The events of a session and of all that it started, read over the wire or at the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from http_scene import FAST, on_a_socket
from terminal import Place

from outlast import Agent, Outlast, tool
from outlast.client import Client
from outlast.core.event import cursor_of
from outlast.testing.scripted import ScriptedModel, call, say


@tool(approval="always")
async def pay() -> str:
    return "paid"


def troupe() -> Agent[Any, Any]:
    """An agent that asks another one, which asks a third one, which asks a human."""
    third = Agent("third", ScriptedModel([call("pay"), say("paid")]), tools=[pay])
    script = [call("third", message="go"), say("so it is")]
    second = Agent("second", ScriptedModel(script), subagents=[third])
    return Agent(
        "first", ScriptedModel([call("second", message="go"), say("done")]), subagents=[second]
    )


async def test_a_client_reads_all_that_a_session_started_and_may_answer_meanwhile() -> None:
    async with (
        Outlast([troupe()], store="memory://", worker=FAST) as app,
        on_a_socket(app) as (host, port),
        Client(f"http://{host}:{port}") as client,
    ):
        session = await client.start("first", "go")
        read: dict[str, list[int]] = {}
        async for event in session.events(children=True):
            read.setdefault(event.session_id, []).append(event.offset)
            if event.type == "request.opened" and not event.path:
                await session.answer(event.data["request_id"], "approve")

        assert len(read) == 3
        for session_id, offsets in read.items():
            alone = client.session(session_id).events(follow=False)
            assert offsets == [event.offset async for event in alone]
        assert cursor_of(session.bookmark["after"]).offset == read[session.id][-1]
        again = [e async for e in session.events(0, children=True, follow=False)]
        here = await app.session(session.id)
        local = [e async for e in here.events(children=True, follow=False)]
        assert {(e.path, e.offset) for e in again} == {(e.path, e.offset) for e in local}


async def test_a_client_reads_on_though_a_child_was_erased() -> None:
    writer = Agent("writer", ScriptedModel([say("a poem")]))
    script = [call("writer", message="go"), say("done")]
    boss: Agent[Any, Any] = Agent("boss", ScriptedModel(script), subagents=[writer])
    async with (
        Outlast([boss], store="memory://", worker=FAST) as app,
        on_a_socket(app) as (host, port),
        Client(f"http://{host}:{port}") as client,
    ):
        session = await client.start("boss", "go")
        await session.wait()
        [called] = [e async for e in session.events(follow=False) if e.type == "subagent.called"]
        await app.erase(called.data["child"])

        assert {e.session_id async for e in session.events(0, children=True)} == {session.id}


def test_the_log_of_a_session_is_printed_with_those_of_its_children(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/outlast.db"

    async def play() -> str:
        async with Outlast([troupe()], store=store, worker=FAST) as app:
            session = await app.start("first", "go")
            async for event in session.events(children=True):
                if event.type == "request.opened" and not event.path:
                    await session.answer(event.data["request_id"], "approve")
            return session.id

    session_id, place = asyncio.run(play()), Place(tmp_path)
    lines = place.run("logs", session_id, "--children").stdout.splitlines()
    printed = place.run("logs", session_id, "--children", "--json").stdout.splitlines()

    assert len(lines) == len(printed)
    events = [json.loads(line) for line in printed]
    assert {len(event["path"]) for event in events} == {0, 1, 2}
    deepest = next(event["path"][-1] for event in events if len(event["path"]) == 2)
    assert any(line.endswith(f"[{deepest}]") for line in lines)
    with place.terminal("logs", session_id, "--children", "-f") as terminal:
        terminal.until(f"[{deepest}]")
        terminal.type("\x03")
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.shown
