"""A connection on the caller's own thread: a batch goes out, and its answer is waited for.

As in `pipeline.py`, a batch is one transaction and one round trip: nothing of it is left open on
the server, wherever the wire is cut. A server that does not answer in time counts as gone.
"""

import select
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGresult

from outlast.clock import Clock
from outlast.stores.postgres.answer_watch import cut_off_after
from outlast.stores.postgres.error import ServerAway, is_of_the_connection, lost, unreachable
from outlast.stores.postgres.fork import ForkGuarded
from outlast.stores.postgres.pipeline import DONE, Rows, load_rows
from outlast.stores.postgres.statement import BINARY, Statement
from outlast.stores.postgres.timeline import ServerGuard, ServerIdentity, ServerRefused, places


class BlockingConnection:
    """A connection that one thread at a time uses; each answer may take `timeout` seconds."""

    def __init__(
        self, conninfo: str, label: str, guard: ServerGuard, clock: Clock, timeout: float
    ) -> None:
        connection, self.server = connect(conninfo, label, guard, timeout)
        self._connection = connection
        self._raw = connection.pgconn
        self._guarded = ForkGuarded(self._raw)
        self._label = label
        self._clock = clock
        self._timeout = timeout
        self._until = 0.0
        self._loader = Transformer(connection)
        self._poll = select.poll()
        self._raw.nonblocking = 1
        self._raw.enter_pipeline_mode()

    def send(self, statements: Sequence[Statement]) -> list[Rows]:
        """Have statements done as one transaction, and return the rows of each."""
        self._until = self._clock.monotonic() + self._timeout
        try:
            results = self._send(statements)
            if failed := next((r for r in results if r.status not in DONE), None):
                raise error_from_result(failed)
        except psycopg.Error as error:
            if is_of_the_connection(error):
                raise lost(self._label) from error
            raise
        return [load_rows(self._loader, result) for result in results]

    def _send(self, statements: Sequence[Statement]) -> list[PGresult]:
        for text, values, types, formats in statements:
            self._raw.send_query_params(text, values, types, formats, BINARY)
        self._raw.pipeline_sync()
        while self._raw.flush():
            self._wait(select.POLLIN | select.POLLOUT)
            self._raw.consume_input()
        return self._receive()

    def _receive(self) -> list[PGresult]:
        """Return what the server says up to the end of the batch."""
        results: list[PGresult] = []
        while True:
            while self._raw.is_busy():
                self._wait(select.POLLIN)
                self._raw.consume_input()
            result = self._raw.get_result()
            if result is None:  # the end of one statement's results
                continue
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                return results
            results.append(result)

    def _wait(self, events: int) -> None:
        left = self._until - self._clock.monotonic()
        self._poll.register(self._raw.socket, events)
        if left <= 0 or not self._poll.poll(left * 1000):
            raise lost(self._label, "no answer")

    def close(self) -> None:
        self._connection.close()


def connect(
    conninfo: str, label: str, guard: ServerGuard, timeout: float
) -> tuple[psycopg.Connection[Any], ServerIdentity]:
    """Open a connection to a server that is not outdated, as `pipeline.connect` does."""
    refused: ServerRefused | None = None
    for place in places(conninfo):
        try:
            return connect_to(place, label, guard, timeout)
        except ServerRefused as error:
            refused = error
        except ServerAway:
            if refused is None:
                raise
    assert refused is not None
    raise refused


def connect_to(
    conninfo: str, label: str, guard: ServerGuard, timeout: float
) -> tuple[psycopg.Connection[Any], ServerIdentity]:
    try:
        connection = psycopg.connect(
            conninfo,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=limit_of(conninfo, timeout),
        )
        try:
            with cut_off_after(timeout, connection):
                return connection, guard.admit_blocking(connection)
        except BaseException:
            connection.close()
            raise
    except psycopg.Error as error:
        raise unreachable(error, conninfo, label) from None  # its text is in ours, cleaned


def limit_of(conninfo: str, timeout: float) -> int:
    """Return how long opening may take: as the URL says, or less. Libpq takes no less than 2."""
    said = int(conninfo_to_dict(conninfo).get("connect_timeout") or 0)
    limit = max(2, round(timeout))
    return min(said, limit) if said else limit
