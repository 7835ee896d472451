"""Connections that bring no request: they take no descriptor that somebody else needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hostile_scene import hostile
from http_scene import Caller, on_a_socket, scene

from outlast.server import ServerSettings
from outlast.server.http_connection import LogThrottle

FILES = 256
STRANGERS = 300


@asynccontextmanager
async def strangers(port: int, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Open connections that say nothing, until the block is left."""
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    try:
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def test_idle_connections_take_no_descriptor_that_callers_and_leases_need(
    tmp_path: Path,
) -> None:
    # Time alone closes no connection here: there is room because some is kept.
    settings = {"header_timeout": 3600}
    async with hostile(tmp_path, files=FILES, works=True, settings=settings) as server:
        async with await server.caller() as caller:
            body = {"agent": "teller", "message": "hang"}
            held = (await caller.ask("POST", "/sessions", 202, json=body))["session_id"]
        async with strangers(server.port, STRANGERS), await server.caller() as late:
            await late.start("hello")  # a worker took it, and its answer came
            await renewed(late, times=2)
            events = await late.events(held)

    kinds = [event["type"] for event in events]
    assert "tool.started" in kinds
    assert "tool.interrupted" not in kinds
    assert len(server.log()) < 8192, server.log()[:4000]


async def renewed(caller: Caller, times: int) -> None:
    """Wait until the only worker has renewed its lease so often."""
    seen = set[str]()
    async with asyncio.timeout(60):
        while len(seen) <= times:
            [worker] = (await caller.ask("GET", "/workers"))["workers"]
            seen.add(worker["lease_until"])
            await asyncio.sleep(0.05)


async def test_who_comes_over_the_cap_takes_the_place_of_the_connection_that_idles_longest() -> (
    None
):
    settings = ServerSettings(port=0, max_connections=8)
    async with (
        scene() as bank,
        on_a_socket(bank.app, settings) as (_, port),
        strangers(port, 8) as idle,
        Caller(base_url=f"http://127.0.0.1:{port}") as caller,
    ):
        assert (await caller.get("/v1/sessions")).status_code == 200
        async with asyncio.timeout(60):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await idle[0].readexactly(1)
        assert not idle[-1].at_eof()


async def test_a_connection_that_is_at_work_makes_room_for_nobody() -> None:
    settings = ServerSettings(port=0, max_connections=8, heartbeat=0.05)
    async with scene() as bank, on_a_socket(bank.app, settings) as (_, port):
        async with bank.caller() as caller:
            session = (await caller.start("hello"))["session_id"]
        head = f"GET /v1/sessions/{session}/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        async with asyncio.timeout(60):
            for reader, writer in streams:
                writer.write(head.encode())
                await reader.readuntil(b"session.waiting")
            late, _ = last = await asyncio.open_connection("127.0.0.1", port)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await late.readexactly(1)
            for reader, _ in streams:
                await reader.readuntil(b"1\r\n\n\r\n")  # a heartbeat: it goes on
        for _, writer in (*streams, last):
            writer.transport.abort()


HEADS = {"nothing": b"", "half a line": b"GET /v1/se", "half a head": b"GET / HTTP/1.1\r\nHost: a"}


@pytest.mark.parametrize("name", HEADS)
async def test_a_connection_without_a_whole_request_is_closed_after_a_time(name: str) -> None:
    settings = ServerSettings(port=0, header_timeout=0.1)
    async with scene() as bank, on_a_socket(bank.app, settings) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEADS[name])
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()


async def test_a_header_that_comes_byte_by_byte_does_not_keep_a_connection() -> None:
    settings = ServerSettings(port=0, header_timeout=0.1)
    async with scene() as bank, on_a_socket(bank.app, settings) as (_, port):
        for before in (b"", b"GET /v1/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(before + b"GET / HTTP/1.1\r\nX-Slow: ")
            ended = asyncio.create_task(reader.read())
            for _ in range(1000):
                writer.write(b"a")
                if (await asyncio.wait([ended], timeout=0.02))[0]:
                    break

            assert ended.done(), "the server still waits for the header"
            await asyncio.gather(ended, return_exceptions=True)
            writer.close()


async def test_one_key_cannot_have_all_connections() -> None:
    settings = ServerSettings(port=0, max_connections=8, require_key=True)
    async with scene() as bank, on_a_socket(bank.app, settings) as (_, port):
        async with bank.caller() as local:
            session = (await local.start("hello"))["session_id"]
        _, header = await bank.key("read")
        path = f"/v1/sessions/{session}/stream"
        async with Caller(base_url=f"http://127.0.0.1:{port}", headers=header) as caller:
            streams = [
                await caller.send(caller.build_request("GET", path), stream=True) for _ in range(5)
            ]
            assert [each.status_code for each in streams] == [200] * 4 + [429]
            for each in streams:
                await each.aclose()


def lines(count: int, text: str) -> Iterator[logging.LogRecord]:
    for number in range(count):
        made = logging.LogRecord("asyncio", logging.ERROR, "", 0, text, None, None)
        made.created = float(number)
        yield made


def test_a_line_that_strangers_cause_is_logged_once_a_minute_and_others_always() -> None:
    throttle = LogThrottle()
    accept = "socket.accept() out of system resource\nsocket: <…>"

    assert sum(throttle.filter(each) for each in lines(121, accept)) == 3
    assert sum(throttle.filter(each) for each in lines(10, "a task was destroyed")) == 10
