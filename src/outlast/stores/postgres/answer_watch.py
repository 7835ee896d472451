"""Notices that a connection gives no answer, although it is open.

A proxy that takes bytes and passes nothing on looks like a slow server: the system's own checks end
at the proxy. So after a while of silence the server is asked, on another connection, what the
backend of the silent one does. If it works, or waits for a lock or a standby, the wait goes on: the
statement is not sent a second time behind the first. If it has nothing to do, or if the server
cannot be asked either, the answer will not come, and the connection is given up.
"""

import asyncio
import fcntl
import logging
import os
import socket
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import psycopg

from outlast.stores.postgres.error import is_busy
from outlast.stores.postgres.statement import load_queries
from outlast.stores.postgres.url import DEFAULT_SCHEMA

log = logging.getLogger("outlast.postgres")

SILENCE = 10.0
"""How long the server may take to say what a backend does, or to end a transaction of a tool."""
TICK = 5.0
QUIET = 2
"""After so many ticks without a word the server is asked."""
LONGEST = 12
"""After so many a connection is given up though the server answers, if that does not know its
backend: behind a pooler it has another name."""
UNDER_WAY = 1.0
"""How long an answer may be under way that the server has given, in seconds."""

Verdict = Literal["working", "idle", "unknown", "unreachable"]


class AnswerWatch:
    """Watches over one connection; `give_up` is called when its answers will not come.

    A timer ticks while answers are due. The connection only says that it sent or heard something,
    which costs an assignment or two.
    """

    def __init__(
        self, conninfo: str, backend: int, descriptor: int, give_up: Callable[[], None]
    ) -> None:
        self._conninfo = conninfo
        self._backend = backend
        self._descriptor = descriptor
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._due = 0
        self._quiet = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def sent(self, due: int) -> None:
        """Note that statements were sent, and how many answers are due with them."""
        # The first answer that is due: the silence before it says nothing.
        if due == 1:
            self._quiet = 0
        self._due = due
        if self._timer is None and self._task is None:
            self._set_timer()

    def heard(self, due: int) -> None:
        """Note that the server said something, and how many answers are still due."""
        self._quiet = 0
        self._due = due

    def stop(self) -> None:
        self._due = 0
        if self._timer:
            self._timer.cancel()
        if self._task and self._task is not asyncio.current_task():
            self._task.cancel()

    def _set_timer(self) -> None:
        self._timer = self._loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._due:
            return
        if unsent(self._descriptor):  # a large message: the system sees whether it is taken
            self._quiet = 0
        self._quiet += 1
        if self._quiet >= QUIET:
            self._task = asyncio.create_task(self._inquire(), name="outlast answer watch")
        else:
            self._set_timer()

    async def _inquire(self) -> None:
        """Ask about the backend, and draw the conclusion unless something was heard meanwhile."""
        verdict = await ask_about(self._backend, self._conninfo)
        if verdict == "idle":
            # It has answered: what is still in the system's buffers may be on its way.
            await asyncio.sleep(UNDER_WAY)
        self._task = None
        if not self._due:
            return
        is_over = verdict == "unknown" and self._quiet > LONGEST
        if self._quiet and (is_over or verdict in ("idle", "unreachable")):
            log.warning("a connection gives no answer; another is opened")
            self._give_up()
            return
        if verdict == "working":
            self._quiet = 0
        self._set_timer()


async def ask_about(backend: int, conninfo: str) -> Verdict:
    """Ask the server, on a connection of its own, what a backend does."""
    try:
        async with asyncio.timeout(SILENCE):
            connection = await psycopg.AsyncConnection.connect(
                conninfo, autocommit=True, prepare_threshold=None
            )
    except TimeoutError:
        return "unreachable"
    except psycopg.Error as error:
        # A full server is there: it only does not say what the backend does.
        return "unknown" if is_busy(error) else "unreachable"
    try:
        with answered_within(SILENCE, connection):
            query = load_queries(DEFAULT_SCHEMA)["find_state"]  # it names no schema
            async with psycopg.AsyncRawCursor(connection) as cursor:
                await cursor.execute(query.text, [backend])
                row = await cursor.fetchone()
    except psycopg.Error:
        return "unreachable"
    finally:
        await connection.close()
    if row is None:
        return "unknown"
    return "working" if row[0] == "active" else "idle"


@contextmanager
def answered_within(seconds: float, connection: psycopg.AsyncConnection[Any]) -> Iterator[None]:
    """End a connection that gives no answer in time: what waits for it gets an error.

    The driver's own way out of a wait, a cancellation, waits for the same answer.
    """
    timer = asyncio.get_running_loop().call_later(seconds, cut_off, connection)
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def cut_off_after(seconds: float, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Do the same for a connection on a thread."""
    timer = threading.Timer(seconds, cut_off, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def cut_off(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
    try:
        with socket.socket(fileno=os.dup(connection.pgconn.socket)) as ours:
            ours.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):  # it was closed meanwhile
        return


def unsent(descriptor: int) -> int:
    """Return how many bytes the system has to send that the other end has not taken."""
    buffer = bytearray(4)
    with suppress(OSError):
        fcntl.ioctl(descriptor, termios.TIOCOUTQ, buffer)
    (count,) = struct.unpack("i", buffer)
    return int(count)
