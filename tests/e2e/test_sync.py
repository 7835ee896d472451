"""The bridge for scripts: the same product without await."""

from __future__ import annotations

from pathlib import Path

import pytest

import outlast.sync
from outlast import Agent, Outlast, tool
from outlast.errors import StoreUnavailable, UnknownAgent
from outlast.testing.scripted import ScriptedModel, call, say


def an_app(path: object) -> Outlast:
    agent = Agent("greeter", ScriptedModel([say("Hello!"), say("Again!")]))
    return Outlast([agent], store=f"sqlite:///{path}/sync.db")


def test_a_script_starts_reads_and_waits_without_await(tmp_path: Path) -> None:
    with outlast.sync.opened(an_app(tmp_path)) as app:
        session = app.start("greeter", "Hi")
        types = [event.type for event in session.events()]
        assert session.wait().output == "Hello!"
        assert types[0] == "session.started"
        assert types[-1] == "session.waiting"
        assert session.send("More").result().output == "Again!"


def test_an_error_reaches_the_script_as_it_is(tmp_path: Path) -> None:
    with outlast.sync.opened(an_app(tmp_path)) as app, pytest.raises(UnknownAgent):
        app.start("nobody", "Hi")


def test_leaving_a_stream_early_closes_it(tmp_path: Path) -> None:
    with outlast.sync.opened(an_app(tmp_path)) as app:
        session = app.start("greeter", "Hi")
        for event in session.events():
            if event.type == "turn.started":
                break
        assert session.wait().status == "completed"


def test_an_app_that_was_closed_says_so(tmp_path: Path) -> None:
    with outlast.sync.opened(an_app(tmp_path)) as app:
        session = app.start("greeter", "Hi")
        left = iter(session.events())
        next(left)

    for use in (app.sessions, session.wait, lambda: list(session.events()), lambda: next(left)):
        with pytest.raises(StoreUnavailable):
            use()


def test_an_async_tool_that_uses_the_bridge_is_told_that_it_would_wait_for_itself(
    tmp_path: Path,
) -> None:
    @tool
    async def delegate() -> str:
        return str(bridge.start("greeter", "Hi").wait().output)

    model = ScriptedModel([call("delegate"), say("done")])
    agents = [Agent("boss", model, tools=[delegate]), Agent("greeter", ScriptedModel([]))]
    app = Outlast(agents, store=f"sqlite:///{tmp_path}/sync.db")
    with outlast.sync.opened(app) as bridge:
        session = bridge.start("boss", "Greet them")
        assert session.wait().output == "done"
        [told] = [event.data["error"] for event in session.events() if event.type == "tool.failed"]

    assert told["code"] == "INVALID_INPUT"
    assert "this call would wait for itself" in told["message"]


def test_a_sync_tool_may_use_the_bridge(tmp_path: Path) -> None:
    @tool
    def delegate() -> str:
        return str(bridge.start("greeter", "Hi").wait().output)

    boss = Agent("boss", ScriptedModel([call("delegate"), say("done")]), tools=[delegate])
    greeter = Agent("greeter", ScriptedModel([say("Hello!")]))
    app = Outlast([boss, greeter], store=f"sqlite:///{tmp_path}/sync.db")
    with outlast.sync.opened(app) as bridge:
        session = bridge.start("boss", "Greet them")
        assert session.wait().output == "done"
        [done] = [event for event in session.events() if event.type == "tool.completed"]

    assert done.data["value"] == "Hello!"


def test_what_the_bridge_gives_says_what_it_is_and_can(tmp_path: Path) -> None:
    with outlast.sync.opened(an_app(tmp_path)) as app:
        session = app.start("greeter", "Hi")

        assert repr(session) == f"SyncSession({session._target!r})"
        assert session.id in repr(session)
        assert {"start", "sessions"} <= set(dir(app))
        assert {"wait", "send", "events", "id"} <= set(dir(session))
