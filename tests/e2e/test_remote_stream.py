"""The stream of a remote session, read through the session that asks it."""

from __future__ import annotations

from typing import Any

import pytest
from http_scene import FAST
from remote_scene import two_apps

from outlast import Agent, Context, Outlast, tool
from outlast.integration.remote.agent import RemoteAgent
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say


async def test_the_events_of_a_remote_session_come_between_those_of_its_caller() -> None:
    async with two_apps("hello") as pair:
        session = await pair.near.start("boss", "go")
        read = [event async for event in session.events(children=True)]
        [child] = await pair.children()

        theirs = [event for event in read if event.session_id == child]
        assert {event.path for event in theirs} == {(child,)}
        peer = await pair.peer.session(child)
        assert [e.offset for e in theirs] == [e.offset async for e in peer.events(follow=False)]
        mine = [event for event in read if event.session_id == session.id]
        assert {event.path for event in mine} == {()}
        assert [e.offset for e in mine] == [e.offset async for e in session.events(follow=False)]
        started = next(place for place, e in enumerate(read) if e.type == "subagent.started")
        assert all(event.session_id == session.id for event in read[:started])


async def test_children_of_a_remote_session_are_read_through_its_caller_too() -> None:
    scribe: Agent[Any, Any] = Agent("scribe", ScriptedModel([say("written")]))
    asked: Agent[Any, Any] = Agent(
        "teller", ScriptedModel([call("scribe", message="write"), say("done")]), subagents=[scribe]
    )
    async with two_apps("hello", asked=asked) as pair:
        session = await pair.near.start("boss", "go")
        paths = {event.path async for event in session.events(children=True)}

        scribes = [i.session_id for i in await pair.peer.sessions() if i.agent == "scribe"]
        tellers = [i.session_id for i in await pair.peer.sessions() if i.agent == "teller"]
        assert paths == {(), tuple(tellers), (*tellers, *scribes)}


async def test_a_reader_behind_a_cut_wire_gets_all_once_it_is_whole_again() -> None:
    async with two_apps("refund", timeout=0.2, poll=0.05) as pair:
        session = await pair.near.start("boss", "go")
        [request] = (await session.wait()).requests
        pair.wire.lets_nobody_through = True
        pair.wire.cut()
        await session.answer(request.request_id, "approve")
        read: list[Any] = []
        async for event in session.events(children=True):
            read.append(event)
            if event.type == "subagent.started":
                pair.wire.lets_nobody_through = False

        [child] = await pair.children()
        theirs = [event.offset for event in read if event.session_id == child]
        peer = await pair.peer.session(child)
        assert theirs == [e.offset async for e in peer.events(follow=False)]
        assert read[-1].type in ("session.waiting", "session.completed")


async def test_a_peer_that_stays_away_does_not_hold_up_the_callers_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with two_apps("hello", timeout=0.2) as pair:
        session = await pair.near.start("boss", "go")
        await session.wait()
        pair.wire.lets_nobody_through = True
        pair.wire.cut()
        read = [event async for event in session.events(children=True)]

        assert [e.offset for e in read] == [e.offset async for e in session.events(follow=False)]
        assert "a remote session cannot be read" in caplog.messages


async def test_progress_of_another_tool_names_no_remote_session() -> None:
    @tool
    async def pretend(ctx: Context) -> str:
        await ctx.heartbeat({"remote": "teller", "session_id": "ses_of_somebody"})
        return "so"

    peer = RemoteAgent("teller", "http://127.0.0.1:9", timeout=0.1)
    script: list[ScriptedReply] = [call("pretend"), say("done")]
    agent: Agent[Any, Any] = Agent("a", ScriptedModel(script), tools=[pretend], subagents=[peer])
    async with Outlast([agent], store="memory://", worker=FAST) as app:
        session = await app.start(agent, "go")
        assert {event.session_id async for event in session.events(children=True)} == {session.id}
