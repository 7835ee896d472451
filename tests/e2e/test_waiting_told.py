"""Who waits over HTTP, by the client, at the command line or in sync code is told for what."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from http_scene import FAST, Scene, on_a_socket
from notices import noticed
from scene import until
from terminal import Place

from outlast import Agent, ModelOptions, Outlast, RemoteSession
from outlast import sync as outlast_sync
from outlast.agents.model.client import ModelRequest
from outlast.client import Client
from outlast.client import session as client_session
from outlast.errors import ServerUnavailable
from outlast.server.asgi import create
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply

INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def rejects(_: ModelRequest) -> ScriptedReply:
    raise ScriptedError("blocked", "wrong key")


def overloaded(request: ModelRequest) -> ScriptedReply:
    raise ScriptedError("transient", "come later", retry_after=600_000)


locked: Agent[Any, Any] = Agent("support", ScriptedModel(rejects))
hasty: Agent[Any, Any] = Agent(
    "hasty", ScriptedModel(rejects), model_options=ModelOptions(provider_patience=0)
)


@asynccontextmanager
async def served() -> AsyncIterator[Scene]:
    async with Outlast([locked, hasty], store="memory://", worker=FAST) as app:
        scene = Scene(app, create(app))
        yield scene
        scene.api.state.backend.feeds.close()


async def test_http_says_what_a_session_waits_for_to_its_own_tenant_alone() -> None:
    async with served() as scene, await scene.keyed(tenant="acme") as caller:
        body = {"agent": "support", "message": "hi"}
        session = (await caller.ask("POST", "/sessions", 202, json=body))["session_id"]
        path = f"/sessions/{session}"

        early = await caller.ask("GET", f"{path}/result?wait=30&outage=none", 202)
        plain = await caller.ask("GET", f"{path}/result", 202)
        shown = await caller.ask("GET", path)
        [listed] = (await caller.ask("GET", "/sessions"))["sessions"]
        [lane] = (await caller.ask("GET", "/lanes"))["lanes"]

        told = early["waiting_for"]
        assert (early["status"], told["kind"], told["session_id"]) == (
            "running",
            "provider",
            session,
        )
        assert told["error"] == {"code": "SCRIPTED", "message": "wrong key", "hint": ""}
        assert (told["agent"], told["lane"], told["blocked"]) == ("support", "main", True)
        assert INSTANT.fullmatch(told["since"])
        assert INSTANT.fullmatch(told["next_try_at"])
        assert plain["waiting_for"] == shown["waiting_for"] == told
        assert listed["lanes"][0]["wait"] == lane["wait"] == ["provider"]

        async with await scene.keyed(tenant="globex") as other:
            assert await other.refused("GET", path, 404) == "UNKNOWN_SESSION"
            assert await other.refused("GET", f"{path}/result", 404) == "UNKNOWN_SESSION"
            assert (await other.ask("GET", "/sessions"))["sessions"] == []

        # An outage that the caller knows of ends no wait; that it ends does.
        waiting = asyncio.create_task(
            caller.ask("GET", f"{path}/result?wait=30&outage=SCRIPTED", 200)
        )
        await caller.ask("POST", f"{path}/cancel", 202, json={})
        assert (await waiting)["status"] == "cancelled"


async def test_over_http_a_turn_without_patience_fails_at_once() -> None:
    async with served() as scene, scene.caller() as caller:
        body = {"agent": "hasty", "message": "hi"}
        session = (await caller.ask("POST", "/sessions", 202, json=body))["session_id"]
        result = await caller.result(session)
        assert (result["status"], result["error"]["code"]) == ("failed", "SCRIPTED")
        assert result["waiting_for"] is None


async def test_a_client_is_told_as_a_process_with_the_store_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Outlast([locked], store="memory://", worker=FAST) as app:
        async with on_a_socket(app) as (host, port), Client(f"http://{host}:{port}") as client:
            far: RemoteSession[Any] = await client.start("support", "hi")
            with noticed() as notices:
                waiting = asyncio.create_task(far.wait())
                [(level, line)] = await notices.count(1)
                near = await (await app.session(far.id)).wait(timeout=0)
                late = await far.wait(timeout=0.001)
                assert far.receipt is not None
                receipt = await far.receipt.result(timeout=0)
                await far.cancel()

                assert (await waiting).status == "cancelled"
                assert (late, receipt, (await far.info()).waiting_for) == (near, near, None)
                assert near.waiting_for is not None
                # One warning, however many wait by a handle, and none by the server.
                assert [each for each, _ in notices.lines] == ["WARNING", "INFO"]
                assert level == "WARNING"
                assert f"session {far.id} (agent support) waits for its provider since" in line
        monkeypatch.setattr(client_session, "LATE", 0.1)
        async with Client(f"http://{host}:{port}", stream_timeout=None) as client:
            with pytest.raises(ServerUnavailable, match="how the session stands"):
                await client.session(far.id).wait(timeout=0)


def test_sync_code_is_told_too() -> None:
    app = Outlast([locked], store="memory://", worker=FAST)
    with outlast_sync.opened(app) as opened:
        session = opened.start("support", "hi")
        next(event for event in session.events() if event.type == "session.waiting")
        found = session.wait(timeout=0).waiting_for
        assert found is not None
        assert found.kind == "provider"


# The command line


@asynccontextmanager
async def parked(
    path: Path, support: Agent[Any, Any] = locked
) -> AsyncIterator[tuple[Place, str, Outlast]]:
    """A directory whose store has a session that waits for its provider, with a worker at it."""
    store = f"sqlite:///{path}/outlast.db"
    async with Outlast([support, hasty], store=store, worker=FAST) as app:
        session = await app.start("support", "hi")
        await until(session, "session.waiting")
        yield Place(path), session.id, app


async def test_commands_say_in_words_what_a_session_waits_for(tmp_path: Path) -> None:
    async with parked(tmp_path) as (place, session, _):
        listed = place.run("sessions").stdout.splitlines()
        shown = place.run("show", session).stdout
        why = place.run("explain", session).stdout
        logs = place.run("logs", session).stdout
        late = place.run("send", session, "hello?", "--wait", "--timeout", "0s")
        as_json = place.run("send", session, "hello?", "--wait", "--timeout", "0", "--json")

        assert listed[0].split()[-2:] == ["WAITS", "FOR"]
        assert re.search(r"provider: SCRIPTED since \S+ \S+Z, next try \S+ \S+Z$", listed[1])
        assert re.search(
            r"waits for +its provider since \S+Z: SCRIPTED: wrong key; it is tried again at", shown
        )
        assert re.search(r"SCRIPTED: wrong key; .*, since \S+ \S+Z, next try at \S+ \S+Z", why)
        assert "SCRIPTED: wrong key; tried again at 20" in logs
        assert (late.returncode, late.stdout) == (3, "")
        assert f"the time is up: session {session} (agent support) waits for its pro" in late.stderr
        assert as_json.returncode == 3
        assert '"kind":"provider"' in as_json.stdout
        for command in ("show", "sessions"):
            found = place.json(command, *((session,) if command == "show" else ()))
            told = (found if command == "show" else found[0])["waiting_for"]
            assert (told["kind"], told["error"]["code"]) == ("provider", "SCRIPTED")


async def test_a_command_that_waits_is_told_of_the_outage_and_its_end(tmp_path: Path) -> None:
    async with parked(tmp_path) as (place, session, app):
        with place.piped("send", session, "hello?", "--wait") as process:
            assert process.stderr is not None
            line = await asyncio.to_thread(process.stderr.readline)
            assert f"warning: session {session} (agent support) waits for its provider" in line
            await (await app.session(session)).end("enough")
            ended = await asyncio.to_thread(process.stderr.read)
            assert ended.startswith(f"session {session} waits for no provider any more\n")
            assert await asyncio.to_thread(process.wait) == 1


async def test_at_the_command_line_a_turn_without_patience_fails_at_once(tmp_path: Path) -> None:
    async with parked(tmp_path) as (place, _, app):
        session = await app.start("hasty", "hi")
        await session.wait()
        failed = await asyncio.to_thread(
            place.run, "send", session.id, "hello?", "--wait", "--timeout", "60s"
        )
        assert (failed.returncode, failed.stdout) == (1, "")
        assert failed.stderr == "failed: SCRIPTED: wrong key\n"


async def test_a_chat_whose_answer_is_late_is_left_with_what_it_waits_for(tmp_path: Path) -> None:
    # A key that was wrong would be tried at once by the worker of the chat.
    async with parked(tmp_path, Agent("support", ScriptedModel(overloaded))) as (place, session, _):
        pass
    left = place.run("chat", "shop:app", "--session", session, "--timeout", "1s")
    assert left.returncode == 3
    assert "(waiting for the provider: SCRIPTED: come later; tried again at" in left.stdout
    assert f"the time is up: session {session} (agent support) waits for its" in left.stderr
    assert f"--session {session}" in left.stderr


def test_a_timeout_that_is_none_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path)
    session = place.chat("hello")
    for given in (["--timeout", "1s"], ["--wait", "--timeout", "soon"]):
        refused = place.run("send", session, "hello?", *given)
        assert (refused.returncode, "'--timeout'" in refused.stderr) == (2, True)
