"""A connection that is opened when it is needed, and again when it is lost.

Statements may go out twice, so they must have the same effect both times. The bytes on the wire are
the affair of `pipeline.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import psycopg

from outlast.clock import Clock
from outlast.errors import StoreUnavailable
from outlast.stores.postgres.error import closed, explain, is_passing
from outlast.stores.postgres.pipeline import PipelinedConnection, Rows
from outlast.stores.postgres.statement import Query, Statement
from outlast.stores.postgres.url import StoreAddress

PATIENCE = 10.0
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
TRIES = 8

Compose = Callable[[], Sequence[Statement]]


class ReconnectingConnection:
    """One connection at a time; another one is opened if it is lost.

    `until_ready` returns something to await before statements are sent, or None.
    """

    def __init__(
        self,
        place: StoreAddress,
        clock: Clock,
        set_clock: Query,
        until_ready: Callable[[], Awaitable[None] | None] = lambda: None,
    ) -> None:
        self._place = place
        self._clock = clock
        self._set_clock = set_clock
        self._until_ready = until_ready
        self._is_real = type(clock) is Clock
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
                if link is None or not link.is_open:
                    link = await self._open()
                if pause := self._until_ready():
                    await pause
                if self._is_real:
                    return await link.send(compose())
                now = self._set_clock.bind({"now": self._clock.now()})
                return (await link.send([now, *compose()]))[1:]
            except StoreUnavailable:
                trial = trial or RetryState(self._clock)
                if self._is_closed or trial.is_over:
                    raise
                if doubt:
                    doubt()
            except psycopg.Error as error:
                trial = trial or RetryState(self._clock)
                if trial.is_hopeless or not is_passing(error):
                    raise
            await trial.pause()

    async def _open(self) -> PipelinedConnection:
        async with self._opening:
            if self._link is None or not self._link.is_open:
                self._link = await PipelinedConnection.open(self._place.pooled, self._place.label)
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
        return max(self._waited, self._clock.monotonic() - self._failed_at) >= PATIENCE

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
