"""What comes over a socket that is too large, too slow, or not HTTP at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, MutableMapping
from contextlib import suppress
from typing import Any

import httpx
import pytest
from http_scene import Caller, Json, on_a_socket, scene

from outlast.server import ServerSettings

SMALL = ServerSettings(
    port=0, max_body=10_000, max_callback=1000, max_header=4000, body_timeout=0.2
)


async def talk(port: int, sent: bytes, *, closes: bool = True) -> bytes:
    """Send bytes as they are, and return what comes back until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        await writer.drain()
        async with asyncio.timeout(60):
            head = await reader.readuntil(b"\r\n\r\n")
            with suppress(ConnectionResetError):  # it will not read the rest of what was sent
                return head + (await reader.read() if closes else b"")
            return head
    finally:
        writer.close()


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [line, "Host: 127.0.0.1", *headers, "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


async def test_bodies_that_are_too_large_are_refused_however_they_come() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 1000

    async with scene() as bank, on_a_socket(bank.app, SMALL) as (_, port):
        json_type = {"Content-Type": "application/json"}
        async with Caller(base_url=f"http://127.0.0.1:{port}", headers=json_type) as caller:
            whole = await caller.post("/v1/sessions", content=b"x" * 10_001)
            chunked = await caller.post("/v1/sessions", content=pieces())
            _, path = await bank.hooked(caller)
            callback = await caller.post(f"/v1{path}", content=b"x" * 1001)
            in_pieces = await caller.post(f"/v1{path}", content=pieces())

            for response in (whole, chunked, callback, in_pieces):
                assert response.status_code == 413
                assert response.json()["error"]["code"] == "BODY_TOO_LARGE"
            assert (await caller.get("/v1/sessions")).status_code == 200


async def test_fifty_megabytes_are_refused_before_they_are_read() -> None:
    async with scene() as bank, on_a_socket(bank.app) as (_, port):
        size = 50 * 1024 * 1024 + 1
        head = request("POST /v1/sessions HTTP/1.1", f"Content-Length: {size}")

        answer = await talk(port, head)  # not a byte of the body is sent

        assert status(answer) == 413


async def test_who_has_no_key_is_refused_before_the_body_is_read() -> None:
    settings = ServerSettings(port=0, require_key=True)
    async with scene() as bank, on_a_socket(bank.app, settings) as (_, port):
        head = request("POST /v1/sessions HTTP/1.1", "Content-Length: 1000000")

        assert status(await talk(port, head)) == 401


async def test_headers_that_are_too_large_are_refused() -> None:
    async with scene() as bank, on_a_socket(bank.app, SMALL) as (_, port):
        large = request("GET /v1/sessions HTTP/1.1", "X-Large: " + "x" * 4000)
        long_address = request(f"GET /v1/sessions?agent={'x' * 4000} HTTP/1.1")
        huge = request("GET /v1/sessions HTTP/1.1", *["X-Large: " + "x" * 4000] * 50)

        assert status(await talk(port, large)) == 431
        assert status(await talk(port, long_address)) == 431
        assert status(await talk(port, huge)) == 400


async def test_a_body_that_never_comes_is_not_waited_for() -> None:
    async with scene() as bank, on_a_socket(bank.app, SMALL) as (_, port):
        head = request(
            "POST /v1/sessions HTTP/1.1", "Content-Type: application/json", "Content-Length: 100"
        )

        answer = await talk(port, head + b"{")

        assert status(answer) == 408
        assert b"BODY_TIMEOUT" in answer


MALFORMED = {
    "two lengths": request(
        "POST /v1/sessions HTTP/1.1", "Content-Length: 2", "Content-Length: 3", body=b"{}"
    ),
    "a negative length": request("POST /v1/sessions HTTP/1.1", "Content-Length: -1", body=b"{}"),
    "two hosts": request("GET /v1/sessions HTTP/1.1", "Host: evil.example"),
    "no host": b"GET /v1/sessions HTTP/1.1\r\nConnection: close\r\n\r\n",
    "a wrong chunk": request(
        "POST /v1/sessions HTTP/1.1",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
        body=b"zz\r\n{}\r\n0\r\n\r\n",
    ),
    "another encoding": request(
        "POST /v1/sessions HTTP/1.1", "Transfer-Encoding: gzip", body=b"{}"
    ),
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "a newer HTTP": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a folded header": request("GET /v1/sessions HTTP/1.1", "X-A: b\r\n c: d", "X\0: y"),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_what_is_not_http_is_refused_and_the_server_goes_on(name: str) -> None:
    async with scene() as bank, on_a_socket(bank.app) as (_, port):
        answer = await talk(port, MALFORMED[name])

        assert status(answer) in (400, 421, 501), answer
        assert status(await talk(port, request("GET /v1/sessions HTTP/1.1"))) == 200


async def test_a_length_and_chunks_at_once_do_not_hide_a_second_request() -> None:
    hidden = b"0\r\n\r\nDELETE /v1/sessions/ses_x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    smuggled = request(
        "POST /v1/sessions HTTP/1.1",
        "Content-Type: application/json",
        f"Content-Length: {len(hidden)}",
        "Transfer-Encoding: chunked",
        body=hidden,
    ).replace(b"Connection: close\r\n", b"")  # it is the server that ends it
    async with scene() as bank, on_a_socket(bank.app) as (_, port):
        answer = await talk(port, smuggled)

        assert status(answer) == 400
        assert answer.count(b"HTTP/1.1 ") == 1


async def test_other_methods_and_forms_of_requests_get_an_ordinary_answer() -> None:
    async with scene() as bank, on_a_socket(bank.app) as (_, port):
        for line, expected in {
            "BREW /v1/sessions HTTP/1.1": 405,
            "TRACE /v1/sessions HTTP/1.1": 405,
            "CONNECT 127.0.0.1:80 HTTP/1.1": 404,
            "OPTIONS * HTTP/1.1": 404,
            "GET http://evil.example/v1/sessions HTTP/1.1": 404,
            "GET /v1/sessions/%00 HTTP/1.1": 404,
            "GET /v1/sessions/%ff%fe HTTP/1.1": 404,
            "GET //v1/sessions HTTP/1.1": 404,
            "GET /v1/../v1/sessions HTTP/1.1": 404,
        }.items():
            assert status(await talk(port, request(line))) == expected, line


async def test_there_are_no_websockets() -> None:
    async with scene() as bank, on_a_socket(bank.app) as (_, port):
        asks = request(
            "GET /v1/sessions HTTP/1.1",
            "Upgrade: websocket",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version: 13",
        )

        assert status(await talk(port, asks.replace(b"close", b"Upgrade"), closes=False)) == 200

        sent: list[Any] = []

        async def receive() -> Json:
            return {"type": "websocket.connect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message["type"])

        await bank.api({"type": "websocket", "path": "/v1/sessions", "headers": []}, receive, send)
        assert sent == ["websocket.close"]


async def test_no_log_has_an_address_or_a_key_in_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with scene() as bank, on_a_socket(bank.app) as (_, port):
        logging.getLogger("uvicorn.error").setLevel("DEBUG")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as caller:
            header = {"Authorization": "Bearer outlast_abc_verysecret"}
            answers = [
                await caller.post("/v1/callbacks/verysecret", content=b"verysecret"),
                await caller.get("/v1/sessions?agent=verysecret", headers=header),
            ]

    assert [answer.status_code for answer in answers] == [410, 401]
    ours = [line for line in caplog.records if not line.name.startswith(("httpx", "httpcore"))]
    assert "verysecret" not in "".join(line.getMessage() for line in ours)
