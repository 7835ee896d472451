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

from outlast import Outlast
from outlast.core.event import encode


async def test_every_reader_of_a_turn_sees_the_same_whatever_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = tmp_path / "enough"
    monkeypatch.setenv(ENOUGH, str(enough))
    store, port = f"sqlite:///{tmp_path / 'run.db'}", free_port()
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
            await session.end()
            is_told_to_end.set()

        expected = [json.loads(encode(event)) async for event in session.events(follow=False)]

    assert result.status == "completed"
    types = [event["type"] for event in expected]
    assert types.count("message.delta") > 3
    assert types.count("message.aborted") == 1  # the worker died in the midst of it
    for each in reading:
        assert each.result() == expected
