"""Connections for tools' transactions: opened when needed, a few kept open.

Owns their cleaning between two tools, and nothing of what is said on them: see `transaction.py`.
They are none of the store's other connections, which know no open transactions (`reconnect.py`).
"""

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, TransactionStatus

from outlast.clock import Clock
from outlast.stores.postgres.answer_watch import SILENCE, answered_within
from outlast.stores.postgres.fork import ForkGuarded
from outlast.stores.postgres.pipeline import connect
from outlast.stores.postgres.statement import Query
from outlast.stores.postgres.timeline import ServerGuard, ServerIdentity
from outlast.stores.postgres.url import StoreAddress

KEPT = 4

# Statements that undo what a tool may have left in the server's session, except its plans.
LEFT = ("reset_role", "reset_settings", "drop_locks", "drop_temporary")

Connection = psycopg.AsyncConnection[Any]


class TransactionPool:
    """Gives each transaction a connection of its own."""

    def __init__(
        self, place: StoreAddress, guard: ServerGuard, clock: Clock, queries: Mapping[str, Query]
    ) -> None:
        self.place = place
        self._guard = guard
        self.clock = clock
        self.queries = queries
        self._idle: list[Connection] = []
        self._servers: dict[Connection, ServerIdentity] = {}
        self._is_closed = False
        self._guarded: list[ForkGuarded] = []

    async def enter(self) -> Connection:
        """Return a connection on which nothing is open."""
        while self._idle:
            connection = self._idle.pop()
            try:
                if await self._is_clean(connection):
                    return connection
            except BaseException:
                await connection.close()
                raise
            await connection.close()
        connection, server = await connect(self.place.pooled, self.place.label, self._guard)
        # Closed ones are forgotten when another is opened, so that they do not gather.
        self._servers = {c: s for c, s in self._servers.items() if not c.closed}
        self._servers[connection] = server
        self._guarded = [g for g in self._guarded if g.connection.status == ConnStatus.OK]
        self._guarded.append(ForkGuarded(connection.pgconn))
        return connection

    async def _is_clean(self, connection: Connection) -> bool:
        """Clean an idle connection, and return whether it still works.

        Behind a pooler the session is not ours to clean.
        """
        if self._guard.is_outdated(self._servers[connection]):
            return False
        is_ours = self.place.pooled == self.place.direct
        clean = b"; ".join(self.queries[name].text for name in LEFT if is_ours)
        try:
            with answered_within(SILENCE, connection):
                await connection.execute(clean)
        except psycopg.Error:
            return False
        return True

    async def leave(self, connection: Connection) -> None:
        # Whatever a tool left in its database session is undone when the connection is next given
        # out, so that giving it back costs no round trip.
        is_clean = connection.pgconn.transaction_status == TransactionStatus.IDLE
        if is_clean and len(self._idle) < KEPT and not self._is_closed:
            self._idle.append(connection)
        else:
            await connection.close()

    async def close(self) -> None:
        """Close the idle connections; one that is in use is closed when it is left."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()
