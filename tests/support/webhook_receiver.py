"""A real HTTP receiver on loopback that answers as a test tells it to."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TIMEOUT = 60
CERTIFICATE = Path(__file__).with_name("hook_example.pem")
"""For hook.example, signed by itself, good until 2120; its key is no secret."""


@dataclass
class Post:
    """What was received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def type(self) -> str:
        return str(self.json["event"]["type"])


@dataclass
class Reply:
    """What is answered; `raw`, where given, is sent in place of a whole answer.

    The connection is closed after that, unless it `hangs`, or `repeats` something for ever.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b"ok"
    raw: bytes = b""
    hangs: bool = False
    repeats: bytes = b""


Answers = Callable[[Post], Awaitable[Reply] | Reply]


def ok(post: Post) -> Reply:
    return Reply()


async def hang(post: Post) -> Reply:
    await asyncio.Event().wait()
    return Reply()


def always(status: int, *headers: tuple[str, str]) -> Answers:
    return lambda post: Reply(status, headers)


def failing(times: int, then: Answers = ok) -> Answers:
    """Fail so often, then do something else."""
    left = iter(range(times))
    return lambda post: Reply(500) if next(left, None) is not None else then(post)


class Receiver:
    """Listens on a port of its own, or on one that was free before."""

    def __init__(self, answers: Answers = ok, *, secure: bool = False, port: int = 0) -> None:
        self.answers = answers
        self.posts: list[Post] = []
        self.connections = 0
        self.port = port
        self._secure = secure
        self._news = asyncio.Condition()
        self._open: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"{'https' if self._secure else 'http'}://127.0.0.1:{self.port}/hook"

    @property
    def types(self) -> list[str]:
        return [post.type for post in self.posts]

    @property
    def ids(self) -> list[str]:
        """The webhooks that have come, in the order in which each came first."""
        return list(dict.fromkeys(post.id for post in self.posts))

    async def until(self, count: int) -> None:
        """Wait until so many webhooks have come, each of them once or more."""
        async with asyncio.timeout(TIMEOUT), self._news:
            await self._news.wait_for(lambda: len(self.ids) >= count)

    async def __aenter__(self) -> Self:
        tls = None
        if self._secure:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(CERTIFICATE)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.connections += 1
        number = self.connections
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._serve_one(reader, writer, number):
                    pass
        finally:
            self._open.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _serve_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.rstrip().split("\r\n")
        headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = first.split(" ")
        post = Post(method, path, headers, body, number)
        async with self._news:
            self.posts.append(post)
            self._news.notify_all()
        found = self.answers(post)
        reply = found if isinstance(found, Reply) else await found
        writer.write(reply.raw or whole(reply))
        await writer.drain()
        while reply.repeats:
            writer.write(reply.repeats)
            await writer.drain()
        if reply.hangs:
            await asyncio.Event().wait()
        return not reply.raw


def whole(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} Whatever", f"content-length: {len(reply.body)}"]
    lines += [f"{name}: {value}" for name, value in reply.headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + reply.body
