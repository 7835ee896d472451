"""An agent asks one of another Outlast, over real sockets."""

from __future__ import annotations

from typing import Any

import pytest
from client_scene import Plan
from free_port import free_port
from http_scene import FAST, on_a_socket, teller
from remote_scene import boss, output_of, peer_app, the, told, two_apps, until

from outlast import Agent, Budget, Outlast, Session
from outlast.agents.model.client import ModelRequest
from outlast.agents.subagent import MAX_DEPTH
from outlast.core.amount import BudgetKey
from outlast.errors import OutlastError
from outlast.integration.remote.agent import RemoteAgent
from outlast.log.verify import verify
from outlast.server import ServerSettings
from outlast.stores.sqlite import MemoryStore
from outlast.testing import crash_everywhere
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say


async def test_a_remote_agent_is_asked_and_its_answer_is_the_calls_result() -> None:
    async with two_apps("hello") as pair:
        session = await pair.near.start("boss", "go")

        assert await output_of(session) == "done"
        assert await told(session) == ["You said: hello"]
        [child] = await pair.peer.sessions()
        assert (child.mode, child.over) == ("task", "completed")
        [called] = await the(session, "subagent.called")
        [started] = await the(session, "subagent.started")
        [completed] = await the(session, "subagent.completed")
        assert (called.data["agent"], called.data["message"]) == ("teller", "hello")
        assert started.data["child"] == completed.data["child"] == child.session_id
        assert started.data["url"] == called.data["url"]
        assert not await verify(pair.near.store, session.id)


async def test_what_a_remote_agent_used_counts_in_budgets_when_it_has_ended() -> None:
    async with two_apps("hello") as pair:
        session = await pair.near.start("boss", "go", budget=Budget(model_calls=2))
        [request] = (await session.wait()).requests
        key = BudgetKey("session", session.id)
        [state] = await pair.near.store.budget.find_budgets("default", [key])
        used = (await session.usage()).total
        assert (state.spent.model_calls, state.spent.tokens) == (used.model_calls, used.tokens)
        assert used.model_calls == 2  # one here, and one there
        await session.answer(request.request_id, "extend")
        assert await output_of(session) == "done"
        assert not await verify(pair.near.store, session.id)


async def test_the_callback_wakes_the_caller_and_no_poll_is_needed() -> None:
    slow: Agent[Any, Any] = Agent("teller", ScriptedModel([ScriptedReply(text="well", delay=0.5)]))
    async with two_apps("hello", asked=slow, poll=600.0) as pair:
        session = await pair.near.start("boss", "go")
        assert await output_of(session) == "done"

        called, _ = await the(session, "callback.closed")
        assert called.data.get("how", "answered") == "answered"
        assert await pair.peer.store.outbox.dead_letters() == []


async def test_agents_that_ask_each_other_over_the_wire_come_to_an_end() -> None:
    port = free_port()
    itself = RemoteAgent("echo", f"http://127.0.0.1:{port}", poll=0.05)

    def again(request: ModelRequest) -> ScriptedReply:
        return say("done") if len(request.view.messages) > 1 else call("echo", message="again")

    echo = Agent("echo", ScriptedModel(again), subagents=[itself])
    async with (
        Outlast([echo], store="memory://", worker=FAST) as app,
        on_a_socket(app, ServerSettings(port=port)),
    ):
        session = await app.start("echo", "go")
        await until(app, session, "turn.completed")

        assert len(await app.sessions()) == 1 + MAX_DEPTH
        deepest = await app.session((await app.sessions())[0].session_id)
        [told_there] = await told(deepest)
        assert "5 sessions below the first" in told_there


async def test_without_an_address_of_its_own_the_caller_polls() -> None:
    async with two_apps("hello", calls_back=False) as pair:
        session = await pair.near.start("boss", "go")

        assert await output_of(session) == "done"
        assert not await the(session, "callback.opened")


async def test_what_a_remote_agent_asks_is_asked_here() -> None:
    async with two_apps("refund", poll=0.05) as pair:
        session = await pair.near.start("boss", "go")
        [request] = (await session.wait()).requests
        assert request.prompt.startswith("teller: May refund run?")
        assert [option.id for option in request.options] == ["approve", "deny"]
        await session.answer(request.request_id, "approve")

        assert await output_of(session) == "done"
        assert await told(session) == ["That is done."]
        child = await pair.peer.session((await pair.children())[0])
        assert await the(child, "tool.completed")


async def test_a_lost_answer_to_the_start_starts_nothing_twice() -> None:
    async with two_apps("hello") as pair:
        pair.wire.to = b"POST /v1/sessions"
        pair.wire.instead = [b""] * 3
        session = await pair.near.start("boss", "go")

        assert await output_of(session) == "done"
        assert len(await pair.children()) == 1


async def test_a_start_that_is_tried_again_in_a_later_attempt_starts_nothing_twice() -> None:
    async with two_apps("hello", timeout=0.01, poll=0.05) as pair:
        pair.wire.to = b"POST /v1/sessions"
        pair.wire.instead = [b""] * 2
        session = await pair.near.start("boss", "go")

        assert await output_of(session) == "done"
        assert await told(session) == ["You said: hello"]
        assert len(await pair.children()) == 1


async def test_a_wire_that_is_cut_for_a_while_changes_nothing() -> None:
    async with two_apps("hello", timeout=0.1, poll=0.1) as pair:
        pair.wire.lets_nobody_through = True
        session = await pair.near.start("boss", "go")
        await pair.wire.refused.wait()
        pair.wire.lets_nobody_through = False

        assert await output_of(session) == "done"
        assert len(await pair.children()) == 1


async def test_a_failed_remote_agent_is_a_failure_that_the_model_sees() -> None:
    async with two_apps("fail") as pair:
        session = await pair.near.start("boss", "go")

        assert await output_of(session) == "done"
        [said] = await told(session)
        assert said.startswith("SUBAGENT_FAILED: teller failed: ")


async def test_an_agent_that_is_not_there_is_told_to_the_model() -> None:
    async with two_apps("hello", agent="nobody") as pair:
        session = await pair.near.start("boss", "go")

        assert await output_of(session) == "done"
        assert "UNKNOWN_AGENT" in (await told(session))[0]


async def test_a_typed_output_is_of_its_type() -> None:
    remote = RemoteAgent("planner", "http://127.0.0.1:9", output_type=Plan)
    assert remote.host.parse('{"title": "move", "hours": 3}') == Plan(title="move", hours=3)


def test_a_remote_agent_that_cannot_be_reached_is_refused_at_once() -> None:
    with pytest.raises(OutlastError):
        RemoteAgent("peer", "not a url")
    with pytest.raises(OutlastError):
        RemoteAgent("peer", "https://agents.example", "two\nlines")
    assert "token" not in repr(RemoteAgent("peer", "https://agents.example", "outlast_token"))


async def test_a_caller_that_is_killed_at_every_commit_asks_once() -> None:
    async with peer_app() as (peer, url, token):
        asked: list[int] = []

        async def ask(app: Outlast) -> str | None:
            before = len(await peer.sessions(limit=1000))
            session: Session[Any] = await app.start("boss", "go")
            request = await until(app, session, "request.opened")
            await session.answer(request.data["request_id"], "approve")
            await until(app, session, "turn.completed")
            asked.append(len(await peer.sessions(limit=1000)) - before)
            assert not await verify(app.store, session.id)
            return await output_of(session)

        report = await crash_everywhere(
            ask,
            agents=[boss(url, "refund", poll=0.05, token=token)],
            store=MemoryStore,
            public_url="http://127.0.0.1:9",
        )

        report.assert_nothing_lost()
        report.assert_same_output()
        assert len(asked) > 15
        assert set(asked) == {1}


async def test_an_agent_that_is_killed_at_every_commit_while_it_is_asked_answers_once() -> None:
    async def ask(peer: Outlast) -> str | None:
        async with on_a_socket(peer) as (host, port):
            asker = boss(f"http://{host}:{port}", "refund", poll=0.05)
            async with Outlast([asker], store="memory://", worker=FAST) as near:
                session: Session[Any] = await near.start("boss", "go")
                [request] = (await session.wait()).requests
                await session.answer(request.request_id, "approve")
                output = await output_of(session)
                assert await told(session) == ["That is done."]
        [child] = await peer.sessions()
        assert not await verify(peer.store, child.session_id)
        return output

    report = await crash_everywhere(ask, agents=[teller], store=MemoryStore)

    assert len(report.runs) > 6
    report.assert_nothing_lost()
    report.assert_same_output()
