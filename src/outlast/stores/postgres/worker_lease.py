"""A worker's lease: renewed on the caller's thread, with a connection of its own.

A blocked event loop or a busy writer must not cost a worker its lanes. For the same reason its sign
of life is shown on this connection as well (`liveness.py`): a worker is missing only if it shows
its sign on neither.

A server that hangs, waiting for a standby, say, keeps the first renewal that was given up, and with
it the worker's row. The next ones wait for the row, briefly: otherwise one more connection would
hang with every try, until the server has none left.
"""

import asyncio
import os
import threading
from collections.abc import Mapping
from contextlib import suppress

import psycopg

from outlast.clock import Clock
from outlast.errors import StoreError
from outlast.store import Renewal
from outlast.store.work import PAUSES
from outlast.stores.postgres.blocking import BlockingConnection
from outlast.stores.postgres.error import ConnectionLost, explain
from outlast.stores.postgres.fork import check_process
from outlast.stores.postgres.liveness import HeartbeatConnection, ProcessEvidence
from outlast.stores.postgres.pipeline import Rows
from outlast.stores.postgres.statement import Query
from outlast.stores.postgres.timeline import ServerGuard
from outlast.stores.postgres.url import StoreAddress

SHORTEST_TIMEOUT = 1.0


class PostgresLease:
    """See `outlast.store.Lease`. `sign` is the number of the worker's sign of life.

    A third of `length` passes between two renewals. A renewal waits a sixth of it for an answer: if
    the connection is dead, that leaves time for another try.
    """

    def __init__(
        self,
        worker: str,
        length: int,
        place: StoreAddress,
        guard: ServerGuard,
        clock: Clock,
        queries: Mapping[str, Query],
        heartbeat: HeartbeatConnection,
        sign: int | None,
        evidence: ProcessEvidence,
    ) -> None:
        self.worker = worker
        self._timeout = max(SHORTEST_TIMEOUT, length / 6000)
        self._place = place
        self._guard = guard
        self._conninfo = place.pooled if sign is None else place.direct
        self._clock = clock
        self._queries = queries
        self._heartbeat = heartbeat
        self._sign = sign
        self._evidence = evidence
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._mutex = threading.Lock()
        self._link: BlockingConnection | None = None
        self._released = False
        self._hiding: asyncio.Task[None] | None = None

    def renew(self, counters: str = "") -> Renewal:
        """Extend the lease; say whether the worker is still known, and may go on."""
        check_process(self._pid)
        with self._mutex:
            rows = [] if self._released else self._ask("renew", counters=counters)
            return Renewal(*rows[0]) if rows else Renewal(alive=False)

    def show(self) -> None:
        """Open the connection, and show the sign on it."""
        check_process(self._pid)
        with self._mutex:
            try:
                self._open()
            except psycopg.Error as error:
                raise explain(error, self._place.label) from error

    def release(self) -> None:
        """Delete the worker's row, free its lanes and remove its sign."""
        check_process(self._pid)
        with self._mutex:
            if self._released:
                return
            # First: whatever becomes of the statement, this lease is not renewed again.
            self._released = True
            try:
                self._ask("remove_worker", evidence="released", **PAUSES)
                self._evidence.remove()
            finally:
                # Also if the row could not be deleted: others then see at once that the worker is
                # gone.
                self._evidence.drop()
                self._close()
        with suppress(RuntimeError):  # the loop was closed, and the connection with it
            self._loop.call_soon_threadsafe(self._hide)

    def _hide(self) -> None:
        if self._sign is not None:
            self._hiding = asyncio.create_task(self._hide_quietly())

    async def _hide_quietly(self) -> None:
        # If this fails, the worker's row is deleted already, or the worker soon looks dead.
        with suppress(StoreError, psycopg.Error, TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self._heartbeat.hide(self._sign or 0)

    async def let_go(self) -> None:
        """Remove the signs and leave the row, as if the process had died."""
        self._released = True
        self._evidence.drop()
        await asyncio.to_thread(self._close_for_good)
        if self._hiding:
            await self._hiding
        await self._hide_quietly()

    def _close_for_good(self) -> None:
        with self._mutex:
            if self._link and self._sign is not None:
                # The server would notice the end of the connection only a moment later.
                with suppress(StoreError, psycopg.Error):
                    self._link.send([self._heartbeat.lock("hide_sign", self._sign)])
            self._close()

    def _close(self) -> None:
        if self._link:
            self._link.close()
            self._link = None

    # On the caller's thread

    def _ask(self, name: str, **values: str | int) -> Rows:
        """Run a statement; if the connection was lost, once more on another."""
        try:
            return self._try(name, values)
        except ConnectionLost:
            return self._try(name, values)

    def _try(self, name: str, values: Mapping[str, str | int]) -> Rows:
        # The server gives up before this side does, or it would keep what is left of each try.
        wait = self._queries["limit_lock"].bind({"wait": int(self._timeout * 500)})
        statements = [wait, self._queries[name].bind({"worker": self.worker, **values})]
        if self._clock.is_shared:
            statements.insert(0, self._queries["set_clock"].bind({"now": self._clock.now()}))
        try:
            return self._open().send(statements)[-1]
        except ConnectionLost:
            self._close()
            raise
        except psycopg.Error as error:
            raise explain(error, self._place.label) from error

    def _open(self) -> BlockingConnection:
        if self._link and self._guard.is_outdated(self._link.server):
            self._close()
        if self._link is None:
            link = BlockingConnection(
                self._conninfo, self._place.label, self._guard, self._clock, self._timeout
            )
            try:
                if self._sign is not None:
                    # With the connection: no observer sees the one without the other.
                    link.send([self._heartbeat.lock("show_sign", self._sign)])
            except BaseException:
                link.close()
                raise
            self._link = link
        return self._link
