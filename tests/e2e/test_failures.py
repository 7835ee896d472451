"""An operator finds the sessions whose last turn failed: by command, over HTTP and in Python."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from http_scene import scene
from terminal import Place

from outlast import Agent, Outlast
from outlast.agents.model.client import ModelRequest
from outlast.errors import InvalidInput
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, say


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_failed_sessions_are_found_by_code_and_time_with_the_reason(place: Place) -> None:
    place.chat("hello")
    failed = place.chat("fail please")

    headers, row = place.run("sessions", "--failed").stdout.splitlines()
    [found] = place.json("sessions", "--code", "SCRIPTED", "--since", "1d")

    assert headers.split() == ["SESSION", "AGENT", "STATUS", "SINCE", "CODE", "MESSAGE"]
    assert row.split()[:3] == [failed, "support", "failed"]
    assert "SCRIPTED" in row
    assert (found["session_id"], found["status"], found["over"]) == (failed, "failed", "")
    assert found["failure"]["code"] == "SCRIPTED"
    assert found["failure"]["turn"] == "t1"
    assert place.json("sessions", "--code", "OTHER") == []
    assert place.json("sessions", "--failed", "--since", "2099-01-31T12:00:00Z") == []
    assert place.json("show", failed)["failure"] == found["failure"]
    assert "SCRIPTED since" in place.run("show", failed).stdout
    assert place.run("verify").stdout == "2 sessions verified: all sound\n"
    refused = place.run("sessions", "--since", "yesterday")
    assert (refused.returncode, "'--since'" in refused.stderr) == (2, True)


async def test_failed_sessions_are_found_over_http() -> None:
    async with scene() as bank, bank.caller() as caller:
        await caller.result((await caller.start())["session_id"])
        session = (await caller.start("fail"))["session_id"]
        result = await caller.result(session)

        [found] = (await caller.ask("GET", "/sessions?failed=true"))["sessions"]
        code, since = result["error"]["code"], found["failure"]["since"]
        [again] = (await caller.ask("GET", f"/sessions?code={code}&since={since}"))["sessions"]
        whole = await caller.ask("GET", f"/sessions/{session}")
        [lane] = (await caller.ask("GET", "/lanes?status=failed"))["lanes"]

        assert (found["session_id"], found["status"], found["over"]) == (session, "failed", None)
        assert found["failure"]["message"] == result["error"]["message"]
        assert found["failure"]["turn"] == result["turn"]
        assert again == found
        assert whole["failure"] == lane["failure"] == found["failure"]
        assert (await caller.ask("GET", "/sessions?code=OTHER"))["sessions"] == []
        assert (await caller.ask("GET", "/sessions?since=2099-01-31T12:00:00Z"))["sessions"] == []
        assert await caller.refused("GET", "/sessions?since=now", 422) == "INVALID_INPUT"


async def test_failed_sessions_are_found_in_python_until_their_next_turn() -> None:
    errors = [ScriptedError("recoverable", "closed")]

    def follow(_: ModelRequest) -> ScriptedReply:
        if errors:
            raise errors.pop()
        return say("open")

    app = Outlast([Agent("clerk", ScriptedModel(follow))], store="memory://")
    async with app:
        session = await app.start("clerk", "hello")
        await session.wait()
        [found] = await app.sessions(failed=True, since=timedelta(hours=1))
        assert found.failure is not None
        assert (found.failure.code, found.failure.message) == ("SCRIPTED", "closed")
        assert found.failure.since <= datetime.now(UTC)
        assert await app.sessions(since=found.failure.since + timedelta(milliseconds=1)) == []

        await (await session.retry()).result()

        assert await app.sessions(failed=True) == []
        assert (await session.info()).status == "idle"
        with pytest.raises(InvalidInput, match="since is a datetime"):
            await app.sessions(since="yesterday")  # type: ignore[arg-type]


def test_failed_turns_are_retried_in_one_command_each_once(place: Place) -> None:
    sessions = [place.chat("fail please") for _ in range(2)]
    (place.path / "mended").touch()

    counted = place.run("retry", "--code", "SCRIPTED", "--dry-run")
    nothing = place.json("retry", "--code", "OTHER")
    retried = place.run("retry", "--code", "SCRIPTED", "--since", "1d")
    again = place.json("retry", "--all")

    assert counted.stdout == "would retry 2 failed turns; 0 left as they are\n"
    assert nothing == {"retried": 0, "left": 0}
    assert retried.stdout == "retrying 2 failed turns; 0 left as they are\n"
    assert again == {"retried": 0, "left": 2}
    for session in sessions:
        place.work(session)
    assert place.json("sessions", "--failed") == []
    assert place.run("retry").returncode == 2
    assert place.run("retry", sessions[0], "--all").returncode == 2


async def test_two_bulk_retries_at_once_retry_ten_failed_turns_among_many_once() -> None:
    is_closed = True

    def follow(request: ModelRequest) -> ScriptedReply:
        if is_closed and "fail" in str(request.view.messages[-1]):
            raise ScriptedError("recoverable", "closed")
        return say("open")

    app = Outlast([Agent("clerk", ScriptedModel(follow))], store="memory://")
    async with app:
        sessions = [
            await app.start("clerk", "fail" if number % 10 == 0 else "hello", mode="task")
            for number in range(100)
        ]
        for session in sessions:
            await session.wait()
        assert len(await app.sessions(failed=True)) == 10
        is_closed = False

        found = await asyncio.gather(*(app.bulk.retry(code="SCRIPTED") for _ in range(2)))
        for session in sessions:
            await session.wait()

        assert sum(each.retried for each in found) == 10
        assert await app.sessions(failed=True) == []
        for session in sessions[::10]:
            kinds = [d.kind for d in await app.store.listing.deliveries(session.id)]
            assert kinds == ["message", "retry"]


def test_open_turns_are_cancelled_in_one_command_each_once(place: Place) -> None:
    asking = [place.chat("refund it") for _ in range(2)]
    place.chat("hello")

    counted = place.run("cancel", "--waiting", "request", "--dry-run")
    cancelled = place.run("cancel", "--agent", "support", "--waiting", "request", "--since", "1d")
    again = place.json("cancel", "--all")

    assert counted.stdout == "would cancel 2 turns and messages; 0 left as they are\n"
    assert cancelled.stdout == "cancelling 2 turns and messages; 0 left as they are\n"
    assert again == {"cancelled": 0, "left": 2}
    for session in asking:
        place.work(session)
        assert place.json("show", session)["status"] == "idle"
    assert place.json("cancel", "--all") == {"cancelled": 0, "left": 0}
    assert place.run("cancel").returncode == place.run("cancel", asking[0], "--all").returncode == 2
    refused = place.run("cancel", "--waiting", "godot")
    assert (refused.returncode, "is none of: request, " in refused.stderr) == (2, True)


def test_at_a_terminal_it_is_asked_before_many_are_cancelled(place: Place) -> None:
    place.chat("refund it")

    with place.terminal("cancel", "--all") as terminal:
        terminal.until("Stop 1 open turns and messages? [y/N]")
        terminal.type("\n")
        terminal.until("nothing was cancelled")
        assert terminal.wait() == 1
    with place.terminal("cancel", "--all", "--yes") as terminal:
        terminal.until("cancelling 1 turns and messages")
        assert terminal.wait() == 0


def test_a_message_that_failed_is_sent_again_to_retry_it(place: Place) -> None:
    session = place.chat("hello")
    sent = ("send", session, "fail please", "--dispatch-id", "m-1")
    place.run(*sent)
    place.work(session)
    (place.path / "mended").touch()

    assert "was queued before" in place.run(*sent).stdout
    assert place.run(*sent, "--retry-failed").stdout.startswith("queued as dlv_")
    assert "was queued before" in place.run(*sent, "--retry-failed").stdout
    place.work(session)
    assert place.json("sessions", "--failed") == []
    refused = place.run("send", session, "hello", "--retry-failed")
    assert (refused.returncode, "give that, too" in refused.stderr) == (1, True)


async def test_bulk_retries_and_cancels_over_http_go_by_pages_within_a_tenant() -> None:
    async with scene() as bank, bank.caller() as caller:
        _, theirs = await bank.key("send", "read", tenant="acme")
        failed = [(await caller.start("fail"))["session_id"] for _ in range(3)]
        asking = (await caller.start("refund"))["session_id"]
        async with bank.caller(theirs) as other:
            assert (await other.ask("POST", "/bulk/retry", 202))["retried"] == 0
            nothing = await other.ask("POST", "/bulk/cancel", 202, json={"all": True})
            assert nothing == {"cancelled": 0, "left": 0, "next_cursor": None}

        counted = await caller.ask("POST", "/bulk/retry", 202, json={"dry_run": True})
        first = await caller.ask("POST", "/bulk/retry", 202, json={"code": "SCRIPTED", "limit": 2})
        page = {"limit": 2, "cursor": first["next_cursor"]}
        last = await caller.ask("POST", "/bulk/retry", 202, json=page)
        for session in failed:
            await caller.result(session)
        waiting = {"waiting": "request", "reason": "enough"}
        stopped = await caller.ask("POST", "/bulk/cancel", 202, json=waiting)

        assert counted == {"retried": 3, "left": 0, "next_cursor": None}
        assert (first["retried"], first["left"]) == (2, 0)
        assert last == {"retried": 1, "left": 0, "next_cursor": None}
        for session in failed:
            deliveries = await bank.app.store.listing.deliveries(session)
            assert [each.kind for each in deliveries] == ["message", "retry"]
        assert stopped == {"cancelled": 1, "left": 0, "next_cursor": None}
        assert (await caller.result(asking))["status"] == "cancelled"
        for body in (
            {},
            {"all": True, "agent": "teller"},
            {"waiting": "godot"},
            {"status": "idle"},
        ):
            await caller.refused("POST", "/bulk/cancel", 422, json=body)
        await caller.refused("POST", "/bulk/retry", 422, json={"limit": 501})
        await caller.refused("POST", "/bulk/retry", 400, json={"cursor": "nowhere"})


async def test_a_failed_start_is_retried_over_http_by_saying_so() -> None:
    async with scene() as bank, bank.caller() as caller:
        for path, body in {
            "/sessions": {"agent": "teller"},
            "/deliver": {"agent": "teller", "continuation_token": "thread-1"},
            "/agents/teller/customer-17": {},
        }.items():
            said = {**body, "message": "fail", "dispatch_id": f"at {path}"}
            first = await caller.ask("POST", path, 202, json=said)
            session = first["session_id"]
            await caller.result(session)
            again = await caller.ask("POST", path, 202, json=said)
            retried = await caller.ask("POST", path, 202, json={**said, "retry_failed": True})

            assert (again["delivery_id"], again["duplicate"]) == (first["delivery_id"], True)
            assert (retried["session_id"], retried["duplicate"]) == (session, False)
            assert (await caller.result(session, retried["delivery_id"]))["turn"] == "t2"
        unnamed = {"agent": "teller", "message": "hello", "retry_failed": True}
        assert await caller.refused("POST", "/sessions", 422, json=unnamed) == "INVALID_INPUT"
