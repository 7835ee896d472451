"""One connection on the event loop: batches of statements go out, their answers come in.

A batch is sent without waiting and is one transaction: the server commits at the batch's end, and
the whole takes one round trip. Several batches may be under way. No statement here leaves state in
the server's session, so each may reach any session of a pooler. psycopg opens the connection;
statements then go to libpq directly, which takes half of the client's time
(docs/explanation/internals.md has the figures).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import abc, pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGresult

from outlast.errors import StoreUnavailable
from outlast.stores.postgres.answer_watch import SILENCE, AnswerWatch, answered_within
from outlast.stores.postgres.error import (
    ServerAway,
    closed,
    is_of_the_connection,
    lost,
    unreachable,
)
from outlast.stores.postgres.fork import ForkGuarded
from outlast.stores.postgres.statement import BINARY, Statement
from outlast.stores.postgres.timeline import ServerGuard, ServerIdentity, ServerRefused, places

Row = tuple[Any, ...]
Rows = list[Row]
Answer = asyncio.Future[list[Rows]]

CANCEL = 2.0
"""How long the request to cancel may take, in seconds."""

DONE = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}


class PipelinedConnection:
    """A connection, and the batches that wait for their answers."""

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        conninfo: str,
        label: str,
        server: ServerIdentity,
    ) -> None:
        self.server = server
        self._connection = connection
        self._raw = connection.pgconn
        self._guarded = ForkGuarded(self._raw)
        self._label = label
        self._loop = asyncio.get_running_loop()
        self._due: deque[Answer] = deque()
        self._results: list[PGresult] = []
        self._loader = Transformer(connection)
        self._socket = self._raw.socket
        self._is_writing = False
        self.is_open = True
        self.on_notice: Callable[[str], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        # Else sending a large message would block the event loop until the server has taken it.
        self._raw.nonblocking = 1
        self._raw.enter_pipeline_mode()
        self._watch = AnswerWatch(conninfo, self.backend, self._socket, self._lose)
        self._loop.add_reader(self._socket, self._read)

    @classmethod
    async def open(cls, conninfo: str, label: str, guard: ServerGuard) -> PipelinedConnection:
        connection, server = await connect(conninfo, label, guard)
        return cls(connection, conninfo, label, server)

    @property
    def load(self) -> int:
        return len(self._due)

    @property
    def backend(self) -> int:
        """The server's process, as it was named when the connection was opened."""
        return self._raw.backend_pid

    @property
    def descriptor(self) -> int:
        return self._socket

    def send(self, statements: Sequence[Statement]) -> Answer:
        """Send statements as one transaction; the future has the rows of each.

        If one fails, none has changed anything, and the future has its error.
        """
        answer: Answer = self._loop.create_future()
        if not self.is_open:
            answer.set_exception(lost(self._label))
            return answer
        # Before it is sent: answers come in the order of the batches, and one may come at once.
        self._due.append(answer)
        try:
            for text, values, types, formats in statements:
                self._raw.send_query_params(text, values, types, formats, BINARY)
            self._raw.pipeline_sync()
            self._write()
        # Part of the batch may have gone out: nothing that is sent on this connection would be
        # understood.
        except psycopg.Error:
            self._lose()
        else:
            self._watch.sent(len(self._due))
        return answer

    async def ask(self, statement: Statement) -> Rows:
        """Return the rows of one statement."""
        [rows] = await self.send([statement])
        return rows

    def _write(self) -> None:
        """Hand the bytes to the system, the rest when it takes more."""
        try:
            is_left = bool(self._raw.flush())
        except psycopg.Error:
            self._lose()
            return
        if is_left and not self._is_writing:
            self._loop.add_writer(self._socket, self._write)
        elif self._is_writing and not is_left:
            self._loop.remove_writer(self._socket)
        self._is_writing = is_left

    def _read(self) -> None:
        try:
            self._raw.consume_input()
            if self._is_writing:
                self._write()
            # An answer may lead to the loss of the connection, and nothing of it may be touched
            # after that.
            while self._due and self.is_open and not self._raw.is_busy():
                self._take(self._raw.get_result())
            while notice := self._raw.notifies():
                if self.on_notice:
                    self.on_notice(notice.extra.decode(errors="replace"))
        except psycopg.Error:
            self._lose()
            return
        self._watch.heard(len(self._due))
        if self._raw.status == pq.ConnStatus.BAD:
            self._lose()

    def _take(self, result: PGresult | None) -> None:
        if result is None:  # the end of one statement's results
            return
        # A batch is answered as a whole: until its end it may still be undone.
        if result.status != pq.ExecStatus.PIPELINE_SYNC:
            self._results.append(result)
            return
        results, self._results = self._results, []
        answer = self._due.popleft()
        if answer.done():  # the caller was cancelled
            return
        for result in results:
            if result.status not in DONE:
                answer.set_exception(self._explain(result))
                return
        answer.set_result([load_rows(self._loader, result) for result in results])

    def _explain(self, failed: PGresult) -> Exception:
        error = error_from_result(failed)
        return lost(self._label) if is_of_the_connection(error) else error

    def _lose(self) -> None:
        """Give up the connection: the outcome of the batches under way is unknown."""
        if not self.is_open:
            return
        self._let_go(lost(self._label))
        if self.on_lost:
            self.on_lost()

    async def cancel(self) -> None:
        """Ask the server to stop what it does for this connection, as far as it can be asked."""
        with suppress(psycopg.Error):
            await self._connection.cancel_safe(timeout=CANCEL)

    def abandon(self) -> None:
        """Give up the connection to a server that was replaced, as if it were lost."""
        self._lose()

    def close(self) -> None:
        """Close the connection; callers that still wait for an answer get an error."""
        self._let_go(closed())

    def _let_go(self, reason: StoreUnavailable) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._watch.stop()
        # Taken over first: a caller that is told may send again at once.
        due, self._due = self._due, deque()
        for answer in due:
            if not answer.done():
                answer.set_exception(reason)
        with suppress(ValueError, OSError, RuntimeError):
            # Before the socket is closed: its number may be another file's a moment later.
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._raw.finish()


def load_rows(loader: abc.Transformer, result: PGresult) -> Rows:
    if not result.ntuples:
        return []
    loader.set_pgresult(result)
    rows = loader.load_rows(0, result.ntuples, tuple)
    loader.set_pgresult(None)  # it may be large
    return rows


async def connect(
    conninfo: str, label: str, guard: ServerGuard
) -> tuple[psycopg.AsyncConnection[Any], ServerIdentity]:
    """Open a connection that keeps nothing prepared, to a server that is not outdated."""
    refused: ServerRefused | None = None
    for place in places(conninfo):
        try:
            return await connect_to(place, label, guard)
        except ServerRefused as error:
            refused = error
        except ServerAway:
            if refused is None:
                raise
    assert refused is not None
    raise refused


async def connect_to(
    conninfo: str, label: str, guard: ServerGuard
) -> tuple[psycopg.AsyncConnection[Any], ServerIdentity]:
    try:
        # Nothing prepared: behind a pooler the next statement may reach another session.
        connection = await psycopg.AsyncConnection.connect(
            conninfo, autocommit=True, prepare_threshold=None
        )
        try:
            with answered_within(SILENCE, connection):
                return connection, await guard.admit(connection)
        except BaseException:
            await connection.close()
            raise
    except psycopg.Error as error:
        raise unreachable(error, conninfo, label) from None  # its text is in ours, cleaned
