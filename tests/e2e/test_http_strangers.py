"""Callers without a key: what they may cost, and what of theirs is looked at."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import msgspec
import pytest
from front_desk import SECRET, front_desk
from http_scene import on_a_socket, scene

from outlast.integration.outbox import sign
from outlast.server import ServerSettings


def head(path: str, length: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {length}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def status_of(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(60):
        return int((await reader.readline()).split()[1])


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/v1/callbacks/made-up", 410), ("/v1/channels/made-up", 404), ("/v1/sessions", 401)],
)
async def test_a_stranger_is_refused_before_a_byte_of_the_body_is_read(
    path: str, expected: int
) -> None:
    async with front_desk(worker=None) as desk:
        settings = ServerSettings(port=0, require_key=True)
        async with on_a_socket(desk.app, settings) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head(path, 1_000_000))

            assert await status_of(reader) == expected
            writer.close()


@pytest.mark.parametrize("path", ["/v1/channels/desk", "/v1/sessions"])
async def test_a_body_that_comes_byte_by_byte_is_not_waited_for_to_its_end(path: str) -> None:
    async with front_desk(worker=None) as desk:
        settings = ServerSettings(port=0, body_timeout=0.3)
        async with on_a_socket(desk.app, settings) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head(path, 10_000, "Content-Type: application/json"))
            answer = asyncio.create_task(status_of(reader))
            for _ in range(1000):  # each pause is far shorter than what a body may pause
                writer.write(b" ")
                if await asyncio.wait([answer], timeout=0.02) != (set(), {answer}):
                    break

            assert answer.done(), "the server still reads"
            assert await answer == 408
            writer.close()


@pytest.mark.parametrize("path", ["/v1/channels/desk", "/v1/sessions"])
async def test_a_request_that_breaks_off_leaves_nothing_in_the_log(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with front_desk(worker=None) as desk, on_a_socket(desk.app) as (_, port):
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head(path, 100, "Content-Type: application/json") + b"{")
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        async with desk.bank.caller() as caller:  # what was begun before this is over after it
            for _ in range(20):
                await caller.get("/v1/readyz")

    ours = [line for line in caplog.records if line.levelno >= logging.WARNING]
    assert [line.getMessage() for line in ours] == []


BODIES = {
    "deep": b"[" * 100_000,
    "deep and whole": b'{"thread": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a name twice": b'{"thread": "a", "text": "refund 1", "text": "refund 2"}',
    "many values": b'{"thread": "a", "parts": [' + b"{}," * 100_000 + b"{}]}",
    "half": b'{"thread": "a"',
    "a list": b"[]",
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_signed_body_that_makes_no_sense_is_refused_and_starts_nothing(name: str) -> None:
    body = BODIES[name]
    async with front_desk(worker=None) as desk, desk.bank.caller(peer="203.0.113.9") as caller:
        headers = sign(SECRET, body, desk.app.clock.now() // 1000, "msg_1")

        code = await caller.refused("POST", "/channels/desk", 422, content=body, headers=headers)

        assert code == "INVALID_MESSAGE"
        assert await desk.app.sessions() == []


async def test_a_picture_comes_through_a_signed_body() -> None:
    parts = [{"kind": "text", "text": "What is this?"}, {"kind": "image", "data": b"\x00picture"}]
    async with front_desk(worker=None) as desk:
        assert (await desk.post("room-7", parts=parts)).status_code == 202
        [session] = await desk.app.sessions()
        [message] = [
            each.record
            for each in (await desk.app.store.log.read(session.session_id, 0)).entries
            if each.record.__struct_config__.tag == "delivery.queued"
        ]
        assert msgspec.to_builtins(message)["content"][1]["data"] == "AHBpY3R1cmU="


async def test_a_callback_that_was_given_out_takes_its_body_and_no_more_of_it() -> None:
    settings = ServerSettings(port=0, max_callback=1000)
    async with scene(settings) as bank, bank.caller() as caller:
        _, path = await bank.hooked(caller)

        refused = await caller.refused("POST", path, 413, content=b"x" * 1001)
        assert refused == "BODY_TOO_LARGE"
        await caller.ask("POST", path, 202, json={"paid": True})


HEAD = (
    b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def chunks(size: int, number: int) -> bytes:
    return (b"%x\r\n%b\r\n" % (size, b" " * size)) * number


async def said(port: int, *pieces: bytes) -> bytes:
    """Send bytes, each when something was said to those before, and return all that was said."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard = b""
    with suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            heard += await reader.read(4096)
        heard += await reader.read()
    writer.close()
    return heard


async def test_a_body_in_very_many_tiny_chunks_is_not_parsed_to_its_end() -> None:
    body = b'{"agent": "teller", "message": "hi"}'
    whole = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with scene() as bank, on_a_socket(bank.app, ServerSettings(port=0)) as (_, port):
        refused = await said(port, HEAD + chunks(1, 1001))
        taken = [
            await said(port, HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + sent)
            for sent in (chunks(1, 900) + whole, chunks(64, 2000) + whole)
        ]

    assert refused.startswith(b"HTTP/1.1 400 ")
    assert [each.split()[1] for each in taken] == [b"202", b"202"]


@pytest.mark.parametrize("garbage", [b"zz\r\n", b"\n" * 70_000, chunks(1, 3000)])
async def test_garbage_behind_an_answer_ends_the_connection_and_leaves_nothing_in_the_log(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServerSettings(port=0, require_key=True)
    async with scene() as bank, on_a_socket(bank.app, settings) as (_, port):
        heard = await said(port, HEAD, garbage)

    assert heard.startswith(b"HTTP/1.1 401 ")
    assert heard.count(b"HTTP/1.1") == 1
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("garbage", [b"zz\r\n", chunks(1, 3000)])
async def test_garbage_that_comes_with_its_request_is_answered_once_and_leaves_nothing_in_the_log(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene() as bank:
        for settings in (ServerSettings(port=0, require_key=True), ServerSettings(port=0)):
            async with on_a_socket(bank.app, settings) as (_, port):
                heard = [await said(port, HEAD + garbage) for _ in range(3)]

            assert {each.split(b"\r\n")[0] for each in heard} == {b"HTTP/1.1 400 Bad Request"}
            assert [each.count(b"HTTP/1.1") for each in heard] == [1, 1, 1]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
