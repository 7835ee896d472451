"""A wire between a worker and its PostgreSQL that counts what goes over it.

It reads the client's side of the protocol message by message, so what it counts is exact,
whatever the driver is and on however many connections it talks.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

SYNC, QUERY, EXECUTE = b"S", b"Q", b"E"


class Count(NamedTuple):
    """How often an answer was waited for, and how many statements were asked for."""

    round_trips: int
    statements: int

    def since(self, before: Count) -> Count:
        return Count(self.round_trips - before.round_trips, self.statements - before.statements)


class Wire:
    """Passes everything on, on a thread of its own. `url` leads through it."""

    def __init__(self, url: str) -> None:
        self._far = urlsplit(url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self.count = Count(0, 0)

    @property
    def url(self) -> str:
        user = self._far.netloc.rpartition("@")[0]
        query = f"{self._far.query}&sslmode=disable&gssencmode=disable".lstrip("&")
        near = self._far._replace(netloc=f"{user}@127.0.0.1:{self._port}", query=query)
        return near.geturl()

    def __enter__(self) -> Self:
        self._thread.start()
        self._port = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # On the wire's thread

    async def _open(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection(self._far.hostname, self._far.port or 5432)
        self._writers |= {forth, back}
        await asyncio.gather(self._ask(near, forth), self._answer(far, back))
        self._writers -= {forth, back}

    async def _ask(self, near: asyncio.StreamReader, forth: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError):
            size = await near.readexactly(4)  # a greeting has no letter before its size
            forth.write(size + await near.readexactly(int.from_bytes(size, "big") - 4))
            while True:
                head = await near.readexactly(5)
                forth.write(head + await near.readexactly(int.from_bytes(head[1:], "big") - 4))
                self._note(head[:1])
        forth.transport.abort()

    def _note(self, kind: bytes) -> None:
        round_trips, statements = self.count
        self.count = Count(
            round_trips + (kind in (SYNC, QUERY)), statements + (kind in (EXECUTE, QUERY))
        )

    async def _answer(self, far: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await far.read(65536):
                back.write(data)
        back.transport.abort()
