"""A server on a real socket in this process, with sessions to read."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from outlast import Agent, Outlast, Session, tool
from outlast.agents.model.client import ModelPiece, ModelRequest, TextPiece
from outlast.core.message import UserMessage, text_of
from outlast.core.view import GO_ON
from outlast.server import ServerSettings
from outlast.server.asgi import create
from outlast.server.backend import ServerBackend
from outlast.server.key import add_key, mint
from outlast.store import Store
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, finished, say

Seen = list[dict[str, Any]]

SPEECH = "speech"
ENOUGH = "OUTLAST_TEST_ENOUGH"
PACE = 0.05


@tool(readonly=True)
async def look(item: str) -> str:
    """Look at something."""
    return f"saw {item}"


def follow(request: ModelRequest) -> ScriptedReply:
    """Do what the last message says: look at something first, talk for long, or answer."""
    last = request.view.messages[-1]
    word = last_word(request) if isinstance(last, UserMessage) else ""
    if word == "look":
        return call("look", item="harbour")
    if word == "talk":
        return say("and so on, " * 40, chunks=40, pace=0.005)
    return say("That is all.")


def last_word(request: ModelRequest) -> str:
    """Return what the user said last; a note to go on is none of that."""
    said = (text_of(m.content) for m in request.view.messages if isinstance(m, UserMessage))
    return [text for text in said if text != GO_ON][-1]


class Speaker(ScriptedModel):
    """Asked for a speech, it goes on until a file says that it is enough."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        if last_word(request) != SPEECH:
            async for piece in super().stream(request):
                yield piece
            return
        said: list[str] = []
        while not (said and is_enough()):
            said.append(f"{request.attempt}.{len(said)} ")
            yield TextPiece(0, said[-1])
            await asyncio.sleep(PACE)
        yield finished(say("".join(said)), request)


def is_enough() -> bool:
    return Path(os.environ[ENOUGH]).exists()


talker: Agent[None, str] = Agent("talker", Speaker(follow), tools=[look])


class Scene:
    """An app that works, its server, and a client of it."""

    def __init__(
        self, app: Outlast, server: uvicorn.Server, backend: ServerBackend, url: str
    ) -> None:
        self.app = app
        self.server = server
        self.backend = backend
        self.url = url
        self.http = httpx.AsyncClient(base_url=url, timeout=60)

    async def start(self, message: str = "look", **given: Any) -> Session[str]:
        """Start a session, and wait until it rests."""
        session = await self.app.start(talker, message, **given)
        await session.wait()
        return session

    async def log(self, session: Session[Any], *, internals: bool = False) -> list[int]:
        """Return the offsets that a reader should see."""
        events = session.events(follow=False, internals=internals)
        return [event.offset async for event in events]

    async def page(self, session: Session[Any], **query: Any) -> Seen:
        """Read what there is now as NDJSON."""
        query = {"follow": "false", **query}
        response = await self.http.get(f"/sessions/{session.id}/stream", params=query)
        assert response.status_code == 200, response.text
        return [json.loads(line) for line in response.text.splitlines()]

    @asynccontextmanager
    async def stream(
        self, session: Session[Any], *, sse: bool = False, headers: Any = None, **query: Any
    ) -> AsyncIterator[AsyncIterator[str]]:
        """Open a stream, and give its lines as they come."""
        accept = {"Accept": "text/event-stream"} if sse else {}
        async with self.http.stream(
            "GET", f"/sessions/{session.id}/stream", params=query, headers=accept | (headers or {})
        ) as response:
            assert response.status_code == 200
            yield response.aiter_lines()

    async def key(self, *scopes: str, tenant: str = "default") -> tuple[str, dict[str, str]]:
        """Make a key; return its id and the header that it goes into."""
        text, info = mint(self.app.clock, tenant=tenant, name="test", scopes=scopes)
        await add_key(self.app.store, info)
        return info.key_id, {"Authorization": f"Bearer {text}"}


@asynccontextmanager
async def serving(
    settings: ServerSettings | None = None, store: str | Store = "memory://", **given: Any
) -> AsyncIterator[Scene]:
    """Run an app and its server until the block is left."""
    async with Outlast([talker], store=store, **given) as app:
        api = create(app, settings)
        config = uvicorn.Config(api, lifespan="off", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
            scene = Scene(app, server, api.state.backend, url)
            task = asyncio.create_task(server.serve(sockets=[listening]))
            try:
                async with scene.http:
                    yield scene
            finally:
                scene.backend.feeds.close()
                server.should_exit = True
                await task


async def events_of(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    """Give the events of an NDJSON stream; signs of life are left out."""
    async for line in lines:
        if line:
            yield json.loads(line)


async def end_cursor(session: Session[Any]) -> str:
    """Return the cursor at the end of a session's log, behind what is hidden too."""
    return [event.cursor async for event in session.events(follow=False, internals=True)][-1]


async def end_offset(session: Session[Any]) -> str:
    """Return the same as the Durable Streams protocol writes it."""
    number, _, checksum = (await end_cursor(session)).partition("-")
    return f"{int(number):016d}-{checksum}"


async def sent_events_of(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Give the events of a stream of server-sent events, each with its id."""
    number = ""
    async for line in lines:
        if line.startswith("id: "):
            number = line[4:]
        elif line.startswith("data: "):
            yield number, json.loads(line[6:])
