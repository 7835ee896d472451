"""Ways between a store and its server that tests can spoil: a wire, and a transaction pooler."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from urllib.parse import urlsplit

import psycopg

SYNC, QUERY, TERMINATE = b"S", b"Q", b"X"
READY = b"Z"
IDLE, WITHIN = b"I", b"T"


def through(url: str, port: int) -> str:
    """The same URL by way of another port of this machine."""
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    return parts._replace(netloc=f"{user}@127.0.0.1:{port}").geturl()


class Wire:
    """Passes everything on. It counts transactions, loses answers, and can be cut or fall silent.

    One that `takes_everything` lets new clients speak, and answers none.
    The answers to what has `answers_late_to` in it come `late_by` seconds late.

    `halfway` is how often the server was left in a transaction, with the client to speak next.
    """

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).hostname or ""
        self._port = urlsplit(url).port or 5432
        self._writers: set[asyncio.StreamWriter] = set()
        self._backs: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.transactions = 0
        self.halfway = 0
        self.loses_the_answer_to: bytes | None = None
        self.lost = asyncio.Event()
        self.answers_late_to: bytes | None = None
        self.late_by = 0.0
        self.lets_nobody_through = False
        self.takes_everything = False
        self._silent: set[asyncio.StreamWriter] = set()
        self.refused = asyncio.Event()
        self.taken = asyncio.Event()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Drop all connections at once, as a cable does."""
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    def lose_answers(self) -> None:
        """From now on pass on what clients say, and nothing of what the server answers them."""
        self._silent |= self._backs

    def fall_silent(self) -> None:
        """From now on pass on nothing of what the connections there are say, and close none."""
        self._silent |= self._writers

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if self.lets_nobody_through:
                raise ConnectionRefusedError
            if self.takes_everything:
                self._writers.add(back)
                self.taken.set()
                await near.read()
                return
            far, forth = await asyncio.open_connection(self._host, self._port)
        except OSError:  # by this test, or by a server that is not there
            self.refused.set()
            back.transport.abort()
            return
        self._writers |= {back, forth}
        self._backs.add(back)
        doomed, late = asyncio.Event(), asyncio.Event()
        with suppress(OSError):
            await asyncio.gather(
                self._ask(near, forth, doomed, late), self._answer(far, back, doomed, late)
            )
        self._backs.discard(back)
        for writer in (back, forth):
            self._writers.discard(writer)
            writer.transport.abort()

    async def _ask(
        self,
        near: asyncio.StreamReader,
        forth: asyncio.StreamWriter,
        doomed: asyncio.Event,
        late: asyncio.Event,
    ) -> None:
        while data := await near.read(65536):
            self.transactions += data.count(SYNC + b"\x00\x00\x00\x04")
            if self.loses_the_answer_to and self.loses_the_answer_to in data:
                self.loses_the_answer_to = None
                doomed.set()
            if self.answers_late_to and self.answers_late_to in data:
                late.set()
            if forth not in self._silent:
                forth.write(data)
                await forth.drain()
        forth.close()

    async def _answer(
        self,
        far: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        doomed: asyncio.Event,
        late: asyncio.Event,
    ) -> None:
        while data := await far.read(65536):
            self.halfway += data.count(READY + b"\x00\x00\x00\x05" + WITHIN)
            if doomed.is_set():  # the server has done it, and nobody will know
                self.lost.set()
                back.transport.abort()
                return
            if late.is_set():
                late.clear()
                await asyncio.sleep(self.late_by)
            if back not in self._silent:
                back.write(data)
                await back.drain()
        back.close()


class Pooler:
    """A transaction pooler: each transaction goes to the next of its server's sessions."""

    def __init__(self, url: str, sessions: int = 3) -> None:
        self._url = url
        self._sessions = sessions
        self.transactions = 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[int]:
        far = [await self._open() for _ in range(self._sessions)]
        self._turns = cycle(far)
        self._free = {id(session): asyncio.Lock() for session in far}
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for _, forth in far:
                forth.transport.abort()
            await asyncio.sleep(0)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Have the driver log in, and take its socket."""
        connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
        wire = socket.socket(fileno=os.dup(connection.pgconn.socket))
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, connection.pgconn.socket)  # so that its end is not the session's
        os.close(nothing)
        await connection.close()
        return await asyncio.open_connection(sock=wire)

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._greet(near, back)
            while first := await self._read(near):
                if first[:1] == TERMINATE:
                    break
                session = next(self._turns)
                async with self._free[id(session)]:
                    self.transactions += 1
                    await self._pass_on(first, near, back, *session)
        back.transport.abort()

    async def _greet(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """Let anybody in, as the sessions are logged in already."""
        size = int.from_bytes(await near.readexactly(4), "big")
        if size == 8:  # asks for encryption
            await near.readexactly(4)
            back.write(b"N")
            size = int.from_bytes(await near.readexactly(4), "big")
        await near.readexactly(size - 4)
        settings = {"server_version": "18.0", "client_encoding": "UTF8", "DateStyle": "ISO"}
        told = [frame(b"S", f"{k}\0{v}\0".encode()) for k, v in settings.items()]
        back.write(frame(b"R", bytes(4)) + b"".join(told) + frame(READY, IDLE))

    async def _pass_on(
        self,
        message: bytes,
        near: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        far: asyncio.StreamReader,
        forth: asyncio.StreamWriter,
    ) -> None:
        """Serve one client until the session is out of its transaction."""
        while True:
            forth.write(message)
            while message[:1] not in (SYNC, QUERY):
                message = await self._read(near)
                forth.write(message)
            while True:
                answer = await self._read(far)
                back.write(answer)
                if answer[:1] == READY:
                    break
            if answer[5:6] == IDLE:
                return
            message = await self._read(near)

    async def _read(self, stream: asyncio.StreamReader) -> bytes:
        head = await stream.readexactly(5)
        return head + await stream.readexactly(int.from_bytes(head[1:], "big") - 4)


def frame(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body
