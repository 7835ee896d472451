"""A tool asks an agent of another Outlast, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from client_scene import Plan, planner
from free_port import free_port
from http_scene import FAST, on_a_socket, teller
from msgspec import Struct
from msgspec.structs import replace
from remote_scene import output_of, peer_app, told, until

from outlast import Agent, Context, Image, Outlast, Session, tool
from outlast.errors import InvalidDefinition, UnknownAgent
from outlast.integration.remote.agent import RemoteAgent
from outlast.log.reader import Wakeups
from outlast.log.verify import verify
from outlast.server import ServerSettings
from outlast.stores.sqlite import MemoryStore
from outlast.testing import crash_everywhere
from outlast.testing.scripted import ScriptedModel, call, say


@tool(on_interrupt="rerun")
async def ask(ctx: Context, name: str, message: str) -> str:
    return repr(await ctx.agent(name).ask(message))


@tool
async def ask_all(ctx: Context, names: list[str], message: str) -> list[Any]:
    return list(await ctx.gather(*(ctx.agent(name).ask(message) for name in names)))


@tool
async def show(ctx: Context, name: str) -> Any:
    return await ctx.agent(name).ask(["look: ", Image(b"\0", media_type="image/png")])


class Draft(Struct):
    """What the planner answers with, as another type."""

    title: str
    hours: int


def boss(*others: Any, **args: Any) -> Agent[Any, Any]:
    """Have an agent whose only call is of one of the tools above, by the arguments of that."""
    principal = ask_all if "names" in args else ask if "message" in args else show
    script = [call(principal.name, **args), say("done")]
    return Agent("boss", ScriptedModel(script), tools=[ask, ask_all, show], subagents=others)


@asynccontextmanager
async def asking(
    boss: Agent[Any, Any], **options: Any
) -> AsyncIterator[tuple[Outlast, Session[Any]]]:
    """Give an app, and a session of an agent of it that has just been started."""
    async with Outlast([boss], **{"store": "memory://", "worker": FAST, **options}) as near:
        yield near, await near.start("boss", "go")
        for each in await near.sessions():
            assert not await verify(near.store, each.session_id)


async def until_over(app: Outlast) -> str:
    """Wait for the end of the only session of an app."""
    [info] = await app.sessions()
    session = await app.session(info.session_id)
    with Wakeups(app.store, session.id) as wakeups:
        while True:
            wakeups.clear()
            if found := (await session.info()).over:
                return found
            await wakeups.wait()


async def test_a_tool_asks_a_remote_agent_and_gets_its_answer() -> None:
    async with peer_app() as (peer, url, token):
        remote = RemoteAgent("teller", url, token, poll=0.05)
        async with asking(boss(remote, name="teller", message="hello")) as (_, session):
            assert await output_of(session) == "done"
            assert await told(session) == ["'You said: hello'"]
            [child] = await peer.sessions()
            assert (child.mode, child.over) == ("task", "completed")


async def test_the_callback_wakes_the_one_that_asks_and_no_poll_is_needed() -> None:
    port = free_port()
    async with peer_app() as (peer, url, token):
        remote = RemoteAgent("teller", url, token, poll=600.0)
        agent = boss(remote, name="teller", message="refund")
        address = f"http://127.0.0.1:{port}"
        async with (
            Outlast([agent], store="memory://", worker=FAST, public_url=address) as near,
            on_a_socket(near, ServerSettings(port=port)),
        ):
            session = await near.start("boss", "go")
            asked = await until(near, session, "request.opened")
            await session.answer(asked.data["request_id"], "approve")

            await until(near, session, "turn.completed")
            assert await told(session) == ["'That is done.'"]
            assert await until_over(peer) == "completed"


async def test_an_answer_is_the_value_that_it_was() -> None:
    text = '{"title": "a text"}' + "!" * 300_000
    quoting: Agent[Any, Any] = Agent("quoting", ScriptedModel([say(text)]))
    async with peer_app(planner) as (_, plans, token), peer_app(quoting) as (_, texts, key):
        struct = RemoteAgent("struct", plans, token, agent="planner", output_type=Draft, poll=0.05)
        typed = RemoteAgent("typed", plans, token, agent="planner", output_type=Plan, poll=0.05)
        plain = RemoteAgent("plain", plans, token, agent="planner", poll=0.05)
        quoted = RemoteAgent("quoting", texts, key, poll=0.05)
        expected = {
            struct: Draft(title="move", hours=3),
            typed: Plan(title="move", hours=3),
            plain: {"title": "move", "hours": 3},
            quoted: text,
        }
        for remote, value in expected.items():
            async with asking(boss(remote, name=remote.name, message="go")) as (_, session):
                await session.wait()
                assert await told(session) == [repr(value)]


async def test_remote_agents_and_those_that_are_here_are_asked_at_once() -> None:
    async with peer_app() as (peer, url, token):
        one = RemoteAgent("one", url, token, agent="teller", poll=0.05)
        two = RemoteAgent("two", url, token, agent="teller", poll=0.05)
        here = Agent("here", teller.model, tools=[*teller.tools.values()])
        agent = boss(one, two, here, names=["one", "here", "two"], message="refund")
        async with asking(agent) as (near, session):
            with Wakeups(near.store, session.id) as wakeups:
                while len(asked := await session.requests()) < 3:
                    wakeups.clear()
                    await wakeups.wait()
            for request in asked:
                await session.answer(request.request_id, "approve")

            assert await output_of(session) == "done"
            assert await told(session) == ['["That is done.","That is done.","That is done."]']
            assert len(await peer.sessions()) == 2


async def test_a_remote_agent_that_fails_is_a_failure_of_the_tool() -> None:
    async with peer_app() as (_, url, token):
        remote = RemoteAgent("teller", url, token, poll=0.05)
        async with asking(boss(remote, name="teller", message="fail")) as (_, session):
            await session.wait()
            [said] = await told(session)
            assert said.startswith("SUBAGENT_FAILED: teller failed: ")
            assert "the bank is closed" in said


async def test_what_is_no_text_is_not_said_to_a_remote_agent() -> None:
    async with peer_app() as (peer, url, token):
        remote = RemoteAgent("teller", url, token, poll=0.05)
        async with asking(boss(remote, name="teller")) as (_, session):
            await session.wait()
            [said] = await told(session)
            assert said.startswith("INVALID_MESSAGE: ")
            assert said.endswith("teller is remote: it takes text only")
            assert await peer.sessions() == []


@pytest.mark.parametrize("stop", ["cancel", "end"])
async def test_who_stops_the_tool_stops_what_it_asked_for(stop: str) -> None:
    async with peer_app() as (peer, url, token):
        remote = RemoteAgent("teller", url, token, poll=0.05)
        async with asking(boss(remote, name="teller", message="refund")) as (near, session):
            await until(near, session, "request.opened")

            await getattr(session, stop)("enough")
            assert await until_over(peer) == "ended"
            await session.wait()


async def test_who_erases_the_session_of_the_tool_ends_what_it_asked_for() -> None:
    async with peer_app() as (peer, url, token):
        remote = RemoteAgent("teller", url, token, poll=0.05)
        async with asking(boss(remote, name="teller", message="refund")) as (near, session):
            await until(near, session, "request.opened")

            await near.erase(session.id)

            assert await near.sessions() == []
            assert await until_over(peer) == "ended"


async def test_the_events_of_what_a_tool_asked_for_come_between_its_own() -> None:
    async with peer_app() as (peer, url, token):
        remote = RemoteAgent("teller", url, token, poll=0.05)
        async with asking(boss(remote, name="teller", message="hello")) as (_, session):
            await session.wait()
            events = [event async for event in session.events(children=True)]

            [child] = await peer.sessions()
            assert {event.path for event in events} == {(), (child.session_id,)}


async def test_a_deploy_without_the_remote_agent_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = f"sqlite:///{tmp_path / 'near.db'}"
    async with peer_app() as (peer, url, token):
        known = boss(RemoteAgent("teller", url, token, poll=0.05), name="teller", message="refund")
        without = boss(name="teller", message="refund")
        async with Outlast([known], store=store, worker=FAST) as app:
            session = await app.start("boss", "go")
            request = await until(app, session, "request.opened")
        async with Outlast([without], store=store, worker=FAST) as app:
            session = await app.session(session.id)
            await session.answer(request.data["request_id"], "approve")
            await until(app, session, "request.resolved")
            with Wakeups(app.store, session.id) as wakeups:
                while (await session.info()).status != "sleeping":
                    wakeups.clear()
                    await wakeups.wait()
        assert "a remote agent is not known here any more" in caplog.messages
        async with Outlast([known], store=store, worker=FAST) as app:
            session = await app.session(session.id)
            await until(app, session, "turn.completed")
            assert await told(session) == ["'That is done.'"]
            assert len(await peer.sessions()) == 1


async def test_explain_says_what_a_tool_waits_for_behind_which_server() -> None:
    async with peer_app() as (peer, url, token):
        remote = RemoteAgent("teller", url, token, poll=600.0)
        async with asking(boss(remote, name="teller", message="refund")) as (near, session):
            await until(near, session, "session.waiting")
            [lane] = (await session.explain()).lanes
            [child] = [link for link in lane.links if link.kind == "child"]

            [there] = await peer.sessions()
            assert child.text == (
                f"it waits for its child {there.session_id} of teller at {url},"
                " which is looked at again"
            )
            assert child.until is not None
            assert child.call == "t1.s1.c1"


async def test_a_tool_that_is_killed_at_every_commit_asks_once() -> None:
    async with peer_app() as (peer, url, token):
        asked: list[int] = []
        remote = RemoteAgent("teller", url, token, poll=0.05)

        async def go(app: Outlast) -> str | None:
            before = len(await peer.sessions(limit=1000))
            session: Session[Any] = await app.start("boss", "go")
            request = await until(app, session, "request.opened")
            await session.answer(request.data["request_id"], "approve")
            await until(app, session, "turn.completed")
            asked.append(len(await peer.sessions(limit=1000)) - before)
            return await output_of(session)

        report = await crash_everywhere(
            go, agents=[boss(remote, name="teller", message="refund")], store=MemoryStore
        )

        report.assert_nothing_lost()
        report.assert_same_output()
        assert len(asked) > 15
        assert set(asked) == {1}


async def test_a_worker_for_an_agent_asks_the_remote_ones_that_this_one_knows() -> None:
    async with peer_app() as (_, url, token):
        remote = RemoteAgent("teller", url, token, poll=0.05)
        agent = boss(remote, name="teller", message="hello")
        async with asking(agent, worker=replace(FAST, agents=("boss",))) as (_, session):
            assert await output_of(session) == "done"


async def test_nobody_starts_a_session_of_a_remote_agent_from_outside() -> None:
    remote = RemoteAgent("teller", "http://127.0.0.1:9")
    async with Outlast([boss(remote, name="teller", message="hi")], store="memory://") as app:
        assert list(app.agents) == ["boss"]
        with pytest.raises(UnknownAgent, match=r"it has: boss$"):
            await app.start("teller", "hello")


async def test_a_name_of_several_remote_agents_means_none_of_them() -> None:
    one, other = (RemoteAgent("teller", f"http://127.0.0.1:{port}") for port in (8, 9))
    clerk = Agent("clerk", ScriptedModel([]), subagents=[other])
    async with asking(boss(one, clerk, name="teller", message="hi")) as (_, session):
        await session.wait()
        assert "UNKNOWN_AGENT" in (await told(session))[0]


async def test_an_agent_here_goes_before_a_remote_one_of_its_name() -> None:
    remote = RemoteAgent("helper", "http://127.0.0.1:9")
    helper = Agent("helper", ScriptedModel([say("I am here")]))
    agents = [boss(remote, name="helper", message="hi"), helper]
    async with Outlast(agents, store="memory://", worker=FAST) as app:
        session = await app.start("boss", "go")
        await session.wait()
        assert await told(session) == ["'I am here'"]


def test_a_remote_agent_is_called_as_an_agent_can_be() -> None:
    with pytest.raises(InvalidDefinition, match="cannot be an agent's name"):
        RemoteAgent("2nd", "http://127.0.0.1:9")
