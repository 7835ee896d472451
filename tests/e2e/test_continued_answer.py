"""An answer that was cut off and gone on with is the same whole text to every reader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fallback_process import poet, worker_process
from http_scene import HERE, on_a_socket
from scene import FAST, agent, running, until
from terminal import Place
from webhook_receiver import Receiver

import outlast.sync
from outlast import Event, Outlast, Session, Webhook, WebhookSettings
from outlast.agents.model.client import ModelRequest
from outlast.client import Client
from outlast.core.message import ModelAnswer, text_of
from outlast.log.verify import verify
from outlast.server.asgi import create
from outlast.testing.provider_server import WireServer, reply, words
from outlast.testing.scripted import ScriptedReply, say

POEM = ("Waves ", "come ", "and ", "go.")
WHOLE = "".join(POEM)
TOLD = WebhookSettings(secret="0123456789abcdef", allow_private=True, poll=0.05)


def said(request: ModelRequest) -> ScriptedReply:
    if request.attempt == 1:
        return ScriptedReply(text="abcdef", chunks=6, cut_after=2, pace=0.001)
    return say("cdef")


async def test_an_answer_that_was_gone_on_with_is_whole_over_http() -> None:
    async with running(agent(said)) as app:
        session = await app.start("a", "hi")
        assert (await session.wait()).output == "abcdef"
        transport = httpx.ASGITransport(create(app, None), client=("127.0.0.1", 4711))
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as http:
            result = (await http.get(f"/v1/sessions/{session.id}/result")).json()
            events = (await http.get(f"/v1/streams/sessions/{session.id}?offset=-1")).json()
        assert result["output"] == "abcdef"
        completed = [event for event in events if event["type"] == "message.completed"]
        assert [event["data"]["parts"] for event in completed] == [
            [{"kind": "text", "text": "abcdef"}]
        ]


# A worker is killed in the middle of its answer, and another goes on with it


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


@asynccontextmanager
async def continued(store: str, hook: str) -> AsyncIterator[tuple[Outlast, Session[Any]]]:
    """An app with a session whose worker was killed in its answer, and that has gone on."""
    script = reply(words(*POEM), hold=2), reply(words(*POEM[1:]))
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(WireServer(*script))
        poets = [poet(provider.url, provider.url)]
        async with worker_process(provider.url, provider.url, store) as process:
            async with Outlast(poets, store=store, worker=None, webhooks=TOLD) as app:
                webhook = Webhook(hook, events=("message.completed",), secret="0123456789abcdef")
                session = await app.start("poet", "A poem, please", webhook=webhook)
                await until(session, "message.delta")
            process.kill()
            await process.wait()
        app = Outlast(poets, store=store, worker=FAST, webhooks=TOLD)
        await stack.enter_async_context(app)
        session = await app.session(session.id)
        await session.wait()
        assert len(provider.requests) == 2
        assert POEM[0].strip() in str(provider.requests[1].body)
        yield app, session


def completed_in(events: Iterable[Event]) -> list[str]:
    found = [event.data["parts"] for event in events if event.type == "message.completed"]
    return ["".join(part["text"] for part in parts) for parts in found]


def completed_in_lines(lines: str) -> list[str]:
    """Return the same of events that each stand on a line of their own."""
    found = [json.loads(line.removeprefix("data:")) for line in lines.splitlines() if "{" in line]
    parts = [event["data"]["parts"] for event in found if event["type"] == "message.completed"]
    return ["".join(part["text"] for part in each) for each in parts]


async def read_over_http(url: str, session_id: str) -> None:
    """Look at everything that a server tells of an answer."""
    path = f"/v1/sessions/{session_id}"
    async with httpx.AsyncClient(base_url=url) as http:
        assert (await http.get(f"{path}/result")).json()["output"] == WHOLE
        [_, answer] = (await http.get(f"{path}/history")).json()["messages"]
        assert [part["text"] for part in answer["parts"]] == [WHOLE]
        for accept in ("application/x-ndjson", "text/event-stream"):
            stream = await http.get(f"{path}/stream?follow=false", headers={"Accept": accept})
            assert completed_in_lines(stream.text) == [WHOLE]
        durable = (await http.get(f"/v1/streams/sessions/{session_id}?offset=-1")).json()
        assert completed_in_lines("\n".join(map(json.dumps, durable))) == [WHOLE]
    async with Client(url) as client:
        session = await client.session(session_id)
        assert (await session.wait()).output == WHOLE
        [_, said] = await session.history()
        assert isinstance(said, ModelAnswer)
        assert text_of(said.parts) == WHOLE
        assert completed_in([each async for each in session.events(follow=False)]) == [WHOLE]


def read_in_sync_code(store: str, session_id: str) -> tuple[Any, list[str]]:
    with outlast.sync.opened(Outlast([poet("", "")], store=store, worker=None)) as app:
        session = app.session(session_id)
        return session.wait().output, completed_in(session.events(follow=False))


async def test_an_answer_whose_worker_was_killed_is_one_whole_text_to_every_reader(
    store: str, tmp_path: Path
) -> None:
    async with Receiver() as hook, continued(store, hook.url) as (app, session):
        [aborted] = [e async for e in session.events(follow=False) if e.type == "message.aborted"]
        assert aborted.data["kept"]
        assert (await session.wait()).output == WHOLE
        [answer] = [each for each in await session.history() if isinstance(each, ModelAnswer)]
        assert text_of(answer.parts) == WHOLE
        read = [event async for event in session.events(follow=False)]
        end = next(event.offset for event in read if event.type == "message.completed")
        for start in [0, *(event.offset for event in read if event.offset < end)]:
            rest = [event async for event in session.events(start, follow=False)]
            assert completed_in(rest) == [WHOLE], start

        await hook.until(1)
        posted = [json.dumps(post.json["event"]) for post in hook.posts]
        assert completed_in_lines("\n".join(posted)) == [WHOLE]
        async with on_a_socket(app) as (host, port):
            await read_over_http(f"http://{host}:{port}", session.id)
        assert await verify(app.store, session.id) == []
    assert await asyncio.to_thread(read_in_sync_code, store, session.id) == (WHOLE, [WHOLE])
    place = Place(tmp_path)
    for command in ("show", "logs"):
        shown = await asyncio.to_thread(place.run, command, session.id, store=store)
        assert shown.stderr == ""
        assert WHOLE in shown.stdout
