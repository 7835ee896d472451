"""An app with its server on a real socket, a client of it, and a wire between that can be bad."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from http_scene import FAST, on_a_socket, teller
from postgres_proxy import Wire
from pydantic import BaseModel

from outlast import Agent, Outlast
from outlast.client import Client
from outlast.clock import Clock
from outlast.server import ServerSettings
from outlast.testing.scripted import ScriptedModel, ScriptedReply, say


class Plan(BaseModel):
    """What the planner answers with."""

    title: str
    hours: int


class Hasty(Clock):
    """Real time, and no pause between two tries."""

    def jitter(self, most: float) -> float:
        return 0.0


STORY = "Once there was a rock.\u2028It stayed. " * 4

planner = Agent(
    "planner",
    ScriptedModel([ScriptedReply(calls=(("final_result", {"title": "move", "hours": 3}),))]),
    output_type=Plan,
)
poet: Agent[Any, str] = Agent("poet", ScriptedModel([say(STORY, chunks=12, pace=0.01)]))


AGENTS = (teller, planner, poet)


class BadWire(Wire):
    """A wire that gives other answers than the server's, or cuts them off.

    `instead` are the answers to come to requests in which `to` stands; with `passes_on` the
    server gets these requests, too, and does what they say. `cut_after` is how many bytes of
    answers the next connections let through: one number for each.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.to = b"POST"
        self.instead: list[bytes] = []
        self.passes_on = True
        self.cut_after: list[int] = []
        self.requests: list[bytes] = []

    async def _ask(
        self,
        near: asyncio.StreamReader,
        forth: asyncio.StreamWriter,
        doomed: asyncio.Event,
        late: asyncio.Event,
    ) -> None:
        while data := await whole_request(near):
            self.requests.append(data)
            if self.to in data and self.instead:
                doomed.set()
            if self.passes_on or not doomed.is_set():
                forth.write(data)
                await forth.drain()
            else:
                forth.write_eof()
        forth.close()

    async def _answer(
        self,
        far: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        doomed: asyncio.Event,
        late: asyncio.Event,
    ) -> None:
        left = self.cut_after.pop(0) if self.cut_after else None
        while data := await far.read(65536):
            if doomed.is_set():
                break
            back.write(data if left is None else data[:left])
            await back.drain()
            left = None if left is None else left - len(data)
            if left is not None and left <= 0:
                back.transport.abort()
                return
        if doomed.is_set():
            back.write(self.instead.pop(0))
            await back.drain()
        back.close()


async def whole_request(near: asyncio.StreamReader) -> bytes:
    try:
        head = await near.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    lines = head.lower().split(b"\r\n")
    size = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
    return head + await near.readexactly(size)


def answer(status: int, body: str = "", **headers: str) -> bytes:
    """Return an answer as it goes over the wire; nothing follows it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named |= {"content-length": str(len(body.encode())), "connection": "close"}
    lines = [f"HTTP/1.1 {status} So", *(f"{name}: {value}" for name, value in named.items())]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


LOST = b""
"""Instead of an answer, the connection's end."""


class Far:
    """An app, its server's address, and a client that reaches it over a wire."""

    def __init__(self, app: Outlast, client: Client, wire: BadWire, port: int) -> None:
        self.app = app
        self.client = client
        self.wire = wire
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def far_away(
    settings: ServerSettings | None = None, agents: Sequence[Any] = AGENTS, **options: Any
) -> AsyncIterator[Far]:
    """Run an app that works and serves, and open a client to it with some options."""
    async with (
        Outlast(agents, store="memory://", worker=FAST) as app,
        on_a_socket(app, settings) as (host, port),
    ):
        wire = BadWire(f"http://{host}:{port}")
        async with (
            wire.opened() as near,
            Client(f"http://127.0.0.1:{near}", **{"clock": Hasty(), **options}) as client,
        ):
            yield Far(app, client, wire, port)
