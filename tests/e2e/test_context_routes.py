"""A session's view is changed from outside: over HTTP, with the client, on a command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from http_scene import Caller, on_a_socket, scene
from terminal import Place

from outlast import Agent, Outlast
from outlast.client import Client
from outlast.errors import InvalidName, OutlastError
from outlast.sync import opened
from outlast.testing import ScriptedModel, say

CHANGES = [("compact", {}), ("rewind", {"to": "t1"})]


async def changed(caller: Caller, session: str, delivery: str) -> tuple[str, str]:
    """Wait for what became of a change, and return its status and code."""
    found = await caller.result(session, delivery)
    return found["status"], (found.get("error") or {}).get("code", "")


async def talk(caller: Caller) -> str:
    started = await caller.start()
    receipt = await caller.ask(
        "POST", f"/sessions/{started['session_id']}/deliveries", 202, json={"message": "again"}
    )
    await caller.result(started["session_id"], receipt["delivery_id"])
    return str(started["session_id"])


@pytest.mark.parametrize(("op", "body"), CHANGES)
async def test_a_change_is_made_once_however_often_it_is_sent(op: str, body: Any) -> None:
    async with scene() as made, made.caller() as caller:
        session = await talk(caller)
        sent = {**body, "dispatch_id": "once"}
        first = await caller.ask("POST", f"/sessions/{session}/{op}", 202, json=sent)
        again = await caller.ask("POST", f"/sessions/{session}/{op}", 202, json=sent)
        assert (again["delivery_id"], again["duplicate"]) == (first["delivery_id"], True)
        assert await changed(caller, session, first["delivery_id"]) == ("completed", "")
        other = {"to": "t2", "dispatch_id": "once"}
        code = await caller.refused("POST", f"/sessions/{session}/rewind", 409, json=other)
        assert code == "DISPATCH_CONFLICT"
        [done] = [
            event
            for event in await caller.events(session)
            if event["type"] in ("compaction.completed", "context.rewound")
        ]
        assert done["lane"] == "main"


@pytest.mark.parametrize(("op", "body"), CHANGES)
async def test_who_may_not_send_may_not_change_and_strangers_find_nothing(
    op: str, body: Any
) -> None:
    async with scene() as made, made.caller() as caller:
        session = await talk(caller)
        path = f"/sessions/{session}/{op}"
        async with await made.keyed("read") as reader:
            assert await reader.refused("POST", path, 403, json=body) == "MISSING_SCOPE"
        async with await made.keyed(tenant="acme") as stranger:
            assert await stranger.refused("POST", path, 404, json=body) == "UNKNOWN_SESSION"
        async with await made.keyed("send") as sender:
            await sender.ask("POST", path, 202, json=body)


@pytest.mark.parametrize(("op", "body"), CHANGES)
async def test_a_session_that_is_over_is_not_changed(op: str, body: Any) -> None:
    async with scene() as made, made.caller() as caller:
        session = await talk(caller)
        await caller.ask("POST", f"/sessions/{session}/end", 202)
        await made.until(session, "session.ended")
        code = await caller.refused("POST", f"/sessions/{session}/{op}", 409, json=body)
        assert code == "SESSION_OVER"


@pytest.mark.parametrize(
    ("op", "body", "status"),
    [
        ("rewind", {}, 422),
        ("rewind", {"to": ""}, 422),
        ("rewind", {"to": "t1", "until": 7}, 422),
        ("compact", {"lane": ""}, 422),
        ("compact", {"to": "t1"}, 422),
        ("compact", {"lane": "nobody's"}, 404),
        ("rewind", {"to": "nobody's/t1"}, 404),
    ],
)
async def test_what_cannot_be_meant_is_refused_and_changes_nothing(
    op: str, body: Any, status: int
) -> None:
    async with scene() as made, made.caller() as caller:
        session = await talk(caller)
        before = await caller.events(session)
        await caller.refused("POST", f"/sessions/{session}/{op}", status, json=body)
        assert await caller.events(session) == before


async def test_a_turn_that_never_was_is_told_in_the_result() -> None:
    async with scene() as made, made.caller() as caller:
        session = await talk(caller)
        receipt = await caller.ask("POST", f"/sessions/{session}/rewind", 202, json={"to": "t9"})
        found = await changed(caller, session, receipt["delivery_id"])
        assert found == ("refused", "UNKNOWN_TURN")


async def test_the_client_changes_what_the_model_sees() -> None:
    async with (
        scene() as made,
        made.caller() as caller,
        on_a_socket(made.app) as (host, port),
        Client(f"http://{host}:{port}") as client,
    ):
        session = client.session(await talk(caller))
        compacts = await session.compact(dispatch_id="once")
        assert (await compacts.result()).status == "completed"
        assert (await session.compact(dispatch_id="once")).duplicate
        assert (await (await session.rewind("t1")).result()).status == "completed"
        result = await (await session.rewind("t9")).result()
        assert result.status == "refused"
        assert result.error
        assert result.error.code == "UNKNOWN_TURN"
        for refused in (session.rewind(""), session.compact(lane="")):
            with pytest.raises(InvalidName):
                await refused
        with pytest.raises(OutlastError) as caught:
            await session.compact(lane="nobody's")
        assert caught.value.code == "UNKNOWN_LANE"


def test_synchronous_code_changes_what_the_model_sees() -> None:
    agent = Agent("a", ScriptedModel(lambda _: say("Done.")))
    with opened(Outlast([agent], store="memory://")) as app:
        session = app.start(agent, "hello")
        session.wait()
        assert session.compact().result().status == "completed"
        assert session.rewind("t1", dispatch_id="once").result().status == "completed"
        assert session.rewind("t1", dispatch_id="once").duplicate
        assert session.rewind("t9").result().status == "refused"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_command_line_asks_and_says_what_it_cannot(place: Place) -> None:
    session = place.chat("hello")
    for words in (["compact", session], ["rewind", session, "t1"]):
        asked = place.run(*words)
        assert (asked.returncode, "queued" in asked.stdout) == (0, True), asked
    assert place.work(session).returncode == 0
    told = place.run("explain", session).stdout
    assert "the model sees it as it was behind turn t1, and what came since" in told
    for words in (["rewind", "ses_none", "t1"], ["rewind", session, "other/t1"]):
        refused = place.run(*words)
        assert refused.returncode == 1
        assert words[1] in refused.stderr or "other" in refused.stderr
