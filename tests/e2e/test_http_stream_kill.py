from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from free_port import free_port
from stream_scene import ENOUGH, SPEECH, talker
from stream_troupe import (
    Watched,
    read_javascript,
    read_long_poll,
    read_ndjson,
    read_ours,
    read_sse,
    troupe,
)

from outlast import Outlast, Session
from outlast.client import Client
from outlast.core.event import encode
from outlast.core.message import Message, ModelAnswer, text_of


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'run.db'}"
    return str(request.getfixturevalue("postgres_url"))


async def test_every_reader_of_a_turn_sees_the_same_whatever_is_killed(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = tmp_path / "enough"
    monkeypatch.setenv(ENOUGH, str(enough))
    store, port = store_url, free_port()
    url = f"http://127.0.0.1:{port}/v1"
    roles = ["serve", "serve", "serve", "work", "work"]
    async with (
        Outlast([talker], store=store, worker=None) as app,
        troupe(roles, store, port) as players,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        servers, workers = players[:3], players[3:]
        session = await app.start(talker, SPEECH)
        seen, is_told_to_end = Watched(), asyncio.Event()
        readers = (
            read_ndjson(http, session.id, seen),
            read_sse(http, session.id),
            read_long_poll(http, session.id),
            read_javascript(url, session.id, "long-poll"),
            read_javascript(url, session.id, "sse"),
            read_ours(url.removesuffix("/v1"), session.id, is_told_to_end),
        )
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(reader) for reader in readers]
            await asyncio.gather(servers[0].enter(), workers[0].enter())
            await seen.until(len(seen.events) + 8)
            await servers[0].leave()
            await servers[1].enter()
            await seen.until(len(seen.events) + 6)
            await asyncio.gather(servers[1].kill(), workers[0].kill())
            await asyncio.gather(servers[2].enter(), workers[1].enter())
            await seen.until(len(seen.events) + 6)
            enough.touch()
            result = await session.wait()
            outputs = await outputs_of(session, http)
            await session.end()
            is_told_to_end.set()

        expected = [json.loads(encode(event)) async for event in session.events(follow=False)]

    assert result.status == "completed"
    # Every reader gets these same events: the pieces and `message.completed` of a whole answer.
    pieces = [event["data"]["text"] for event in expected if event["type"] == "message.delta"]
    whole = "".join(pieces)
    assert {piece.partition(".")[0] for piece in whole.split()} == {"1", "2"}  # of both attempts
    [completed] = [event for event in expected if event["type"] == "message.completed"]
    assert completed["data"]["parts"] == [{"kind": "text", "text": whole}]
    assert outputs == dict.fromkeys(outputs, whole)
    types = [event["type"] for event in expected]
    assert types.count("message.delta") > 3
    assert types.count("message.aborted") == 1  # the worker died in the midst of it
    for each in reading:
        assert each.result() == expected


async def outputs_of(session: Session[str], http: httpx.AsyncClient) -> dict[str, str]:
    """Return the answer as each of the ways to ask for it gives it."""
    address = f"/sessions/{session.id}"
    result = (await http.get(f"{address}/result")).json()
    history = (await http.get(f"{address}/history")).json()["messages"]
    async with Client(str(http.base_url).removesuffix("/v1/")) as client:
        far = await client.session(session.id)
        return {
            "result": (await session.wait()).output,
            "history": answer_in(await session.history()),
            "result over HTTP": result["output"],
            "history over HTTP": history[-1]["parts"][0]["text"],
            "result of the client": (await far.wait()).output,
            "history of the client": answer_in(await far.history()),
        }


def answer_in(history: list[Message]) -> str:
    """Return the text of the one answer in a conversation."""
    [answer] = [message for message in history if isinstance(message, ModelAnswer)]
    return text_of(answer.parts)
