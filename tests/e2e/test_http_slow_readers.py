"""Readers that do not read: what is held for them is bounded, and after a time they are ended."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hostile_scene import HostileScene, hostile
from http_scene import Caller

MEBIBYTE = 1024 * 1024
READERS = 30
LARGE = "x" * (6 * MEBIBYTE)
OFTEN = {"reader_timeout": 0.5, "heartbeat": 0.1}


async def slow_reader(
    server: HostileScene, path: str, key: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for something, take the first line of the answer and then no more."""
    to = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    to.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    to.setblocking(False)
    await asyncio.get_running_loop().sock_connect(to, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=to, limit=512)
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {key}\r\n\r\n"
    writer.write(head.encode())
    async with asyncio.timeout(60):
        assert b"200" in await reader.readline()
    return reader, writer


@asynccontextmanager
async def slow_readers(
    server: HostileScene, path: str, key: str, count: int
) -> AsyncIterator[list[asyncio.StreamReader]]:
    found = [await slow_reader(server, path, key) for _ in range(count)]
    try:
        yield [reader for reader, _ in found]
    finally:
        for _, writer in found:
            writer.transport.abort()


async def large_session(caller: Caller) -> str:
    body = {"agent": "teller", "message": LARGE}
    session: str = (await caller.ask("POST", "/sessions", 202, json=body))["session_id"]
    return session


PATHS = {
    "NDJSON": "/v1/sessions/{}/stream",
    "a page": "/v1/sessions/{}/stream?follow=false",
    "Durable Streams": "/v1/streams/sessions/{}?offset=-1",
    "history": "/v1/sessions/{}/history",
}


@pytest.mark.parametrize("name", PATHS)
async def test_readers_that_do_not_read_hold_no_more_than_their_key_may(
    name: str, tmp_path: Path
) -> None:
    settings = {"max_unsent_per_key": 16 * MEBIBYTE}
    works = name == "history"  # a message is part of the conversation when its turn begins
    async with (
        hostile(tmp_path, settings=settings, works=works) as server,
        await server.caller() as caller,
    ):
        session = await large_session(caller)
        if works:
            await caller.result(session)
        key = str(caller.headers["Authorization"])
        path = PATHS[name].format(session)
        async with slow_readers(server, path, key, 1):
            once = server.peak()
        async with slow_readers(server, path, key, READERS):
            assert server.peak() - once < 100 * MEBIBYTE
            whole = await caller.get(PATHS["a page"].format(session))
            assert len(whole.content) > len(LARGE), "who reads gets it"


async def test_a_reader_that_takes_nothing_is_ended(tmp_path: Path) -> None:
    async with hostile(tmp_path, settings=OFTEN) as server, await server.caller() as caller:
        session = await large_session(caller)
        key = str(caller.headers["Authorization"])
        async with slow_readers(server, PATHS["NDJSON"].format(session), key, 3) as readers:
            async with asyncio.timeout(60):
                while await open_streams(caller):  # noqa: ASYNC110 - it is another process
                    await asyncio.sleep(0.05)
                for reader in readers:
                    with suppress(ConnectionResetError):
                        assert len(await reader.read()) < len(LARGE)


async def open_streams(caller: Caller) -> int:
    text = (await caller.get("/v1/metrics")).text
    found = re.search(r"^outlast_open_streams (\d+)$", text, re.MULTILINE)
    assert found
    return int(found[1])
