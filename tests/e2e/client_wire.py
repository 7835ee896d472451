"""Streams as they go over the wire, byte by byte, and a client of whoever sends them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from client_scene import Hasty
from webhook_receiver import Answers, Post, Receiver, Reply

from outlast import Event
from outlast.client import Client, RemoteSession
from outlast.core.event import cursor_of, encode

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def an_event(offset: int, **data: Any) -> Event:
    return Event(
        offset=offset,
        type="a",
        at=datetime(2026, 1, 31, tzinfo=UTC),
        lane="m",
        data=data,
        version=1,
        session_id="ses_1",
    )


EVENTS = [an_event(2), an_event(5, text="x\u2028\x85ü", parts=("y",))]


def stream(post: Post) -> bytes:
    """Return the stream that is asked for: a sign of life, then each line in two chunks."""
    lines = [encode(event) + b"\n" for event in EVENTS if event.offset > start_of(post)]
    halves = [half for line in lines for half in (line[:9], line[9:])]
    return HEAD + b"".join(chunk(piece) for piece in (b"\n", *halves, b""))


def start_of(post: Post) -> int:
    """Return the cursor from which somebody wants to read."""
    return cursor_of(parse_qs(urlsplit(post.path).query)["after"][0]).offset


def shown(end: int = EVENTS[-1].offset, status: str = "idle") -> Reply:
    """Return the session itself, as the server shows it."""
    lane = {"lane": "main", "status": status, "turn": None, "queued": 0}
    instant = "2026-01-31T12:00:00.000Z"
    session: dict[str, Any] = {
        "session_id": "ses_1",
        "agent": "a",
        "mode": "conversation",
        "status": status,
    }
    session |= {"created_at": instant, "updated_at": instant, "offset": end, "lanes": [lane]}
    return Reply(200, (), json.dumps(session).encode())


@asynccontextmanager
async def a_client(answers: Answers, **options: Any) -> AsyncIterator[RemoteSession[Any]]:
    """Give a session on a server that answers like this."""
    async with (
        Receiver(answers) as server,
        Client(
            f"http://127.0.0.1:{server.port}",
            **{"clock": Hasty(), "stream_timeout": 5.0, **options},
        ) as client,
    ):
        yield client.session("ses_1")


END = chunk(b"")
FIRST, SECOND = (chunk(encode(event) + b"\n") for event in EVENTS)
WHOLE = HEAD + FIRST + SECOND + END


class Ticking(Hasty):
    """Time that passes by so many seconds whenever somebody looks, or as a test says."""

    def __init__(self, step: float = 0.0) -> None:
        self.passed = 0.0
        self._step = step

    def monotonic(self) -> float:
        self.passed += self._step
        return self.passed
