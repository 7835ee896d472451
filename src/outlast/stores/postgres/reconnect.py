"""Connections that are opened when they are needed, and again when they are lost.

Statements may go out twice, so they must have the same effect both times. `Readers` share out
queries among several: nothing is written there, but for NOTIFY (`notify.py`). The bytes on the wire
are the affair of `pipeline.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import psycopg

from outlast.clock import Clock
from outlast.errors import StoreUnavailable
from outlast.stores.postgres.error import closed, explain, is_passing
from outlast.stores.postgres.pipeline import PipelinedConnection, Rows
from outlast.stores.postgres.statement import Query, Statement
from outlast.stores.postgres.timeline import ServerGuard
from outlast.stores.postgres.url import StoreAddress

TIMEOUT = 10.0
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
TRIES = 8

Compose = Callable[[], Sequence[Statement]]


class ReconnectingConnection:
    """One connection at a time; another one is opened if it is lost."""

    def __init__(
        self, place: StoreAddress, guard: ServerGuard, clock: Clock, set_clock: Query
    ) -> None:
        self._place = place
        self._guard = guard
        self._clock = clock
        self._set_clock = set_clock
        self._sets_clock = clock.is_shared
        self._link: PipelinedConnection | None = None
        self._is_closed = False
        self._opening = asyncio.Lock()
        self._asking = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def load(self) -> int:
        return self._link.load if self._link else 0

    @property
    def is_asked(self) -> bool:
        return self._asking > 0

    async def send(
        self, compose: Compose, doubt: Callable[[], None] | None = None
    ) -> Sequence[Rows]:
        """Run statements as one transaction, and return the rows of each.

        They are composed anew for every try. After a lost connection `doubt` is called before the
        next try, since the last one may have been committed.
        """
        trial: RetryState | None = None
        while True:
            try:
                if self._is_closed:
                    raise closed()
                link = self._link
                if link is None or not link.is_open or self._guard.is_outdated(link.server):
                    link = await self._open()
                # Only a test's clock has to be told to the server, with each transaction.
                if not self._sets_clock:
                    return await link.send(compose())
                now = self._set_clock.bind({"now": self._clock.now()})
                return (await link.send([now, *compose()]))[1:]
            # For a while: a failover takes some seconds, and callers should not notice it.
            except StoreUnavailable:
                trial = trial or RetryState(self._clock)
                if self._is_closed or trial.is_over:
                    raise
                # Without a connection nothing says whether the last try was committed.
                if doubt:
                    doubt()
            except psycopg.Error as error:
                trial = trial or RetryState(self._clock)
                if trial.is_hopeless or not is_passing(error):
                    raise
            await trial.pause()

    async def _open(self) -> PipelinedConnection:
        # Of many callers that find the connection lost, one opens another.
        async with self._opening:
            if self._link and self._guard.is_outdated(self._link.server):
                self._link.abandon()
            if self._link is None or not self._link.is_open:
                self._link = await PipelinedConnection.open(
                    self._place.pooled, self._place.label, self._guard
                )
                # It was closed while the connection was being opened.
                if self._is_closed:
                    self._link.close()
            return self._link

    async def ask(self, statement: Statement, doubt: Callable[[], None] | None = None) -> Rows:
        """Return the rows of a statement that is a transaction of its own."""
        self._asking += 1
        self._is_idle.clear()
        try:
            [rows] = await self.send(lambda: [statement], doubt)
        except psycopg.Error as error:
            raise explain(error, self._place.label) from error
        finally:
            self._asking -= 1
            if not self._asking:
                self._is_idle.set()
        return rows

    async def until_idle(self) -> None:
        """Wait until all that was asked is answered."""
        while self.is_asked:  # an answer may lead to the next question
            await self._is_idle.wait()

    async def finish(self) -> None:
        """Wait until all that was asked is answered, then close."""
        await self.until_idle()
        self.close()

    def close(self) -> None:
        self._is_closed = True
        if self._link:
            self._link.close()


class Readers:
    """Several connections that read: each query goes to the one with the fewest under way."""

    def __init__(
        self, connections: Sequence[ReconnectingConnection], queries: Mapping[str, Query]
    ) -> None:
        self._connections = connections
        self._blobs = queries["blobs"]
        self._heads = queries["heads_of_blobs"]

    async def ask(self, statement: Statement) -> Rows:
        least = min(self._connections, key=lambda connection: connection.load)
        return await least.ask(statement)

    async def blobs(self, tenant: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return large values by their names, as they are stored."""
        return await self._by_name(self._blobs, tenant, names)

    async def heads(self, tenant: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return the first bytes of large values by their names, which tell their size."""
        return await self._by_name(self._heads, tenant, names)

    async def _by_name(self, query: Query, tenant: str, names: Sequence[str]) -> dict[str, bytes]:
        hashes = "[" + ",".join(f'"{name}"' for name in names) + "]"
        return dict(await self.ask(query.bind({"tenant": tenant, "hashes": hashes})))

    async def close(self) -> None:
        """Finish what was asked, then close."""
        # The answer on one connection may lead to a query on another.
        while any(connection.is_asked for connection in self._connections):
            for connection in self._connections:
                await connection.until_idle()
        for connection in self._connections:
            connection.close()


class RetryState:
    """How often and for how long something has been tried since it first failed.

    The time before the first failure does not count: a connection that hung says nothing of the
    next one.
    """

    def __init__(self, clock: Clock, tries: int = TRIES) -> None:
        self._clock = clock
        self._tries = tries
        self._failed_at: float | None = None
        self._waited = 0.0
        self._next = FIRST_PAUSE
        self._times = 0

    @property
    def is_over(self) -> bool:
        """Whether the server has been away for too long."""
        if self._failed_at is None:
            return False
        return max(self._waited, self._clock.monotonic() - self._failed_at) >= TIMEOUT

    @property
    def is_hopeless(self) -> bool:
        """Whether other transactions were in the way too often."""
        return self._times >= self._tries

    async def pause(self) -> None:
        """Wait a little, and longer each time; pauses differ between processes."""
        if self._failed_at is None:
            self._failed_at = self._clock.monotonic()
        nap = self._clock.jitter(self._next)
        self._waited, self._next = self._waited + nap, min(self._next * 2, LONGEST_PAUSE)
        self._times += 1
        await asyncio.sleep(nap)
