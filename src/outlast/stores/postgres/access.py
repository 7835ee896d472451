"""The connections of a store as its topics use them: opened once, on one event loop.

`parts.py` joins the connections; what is written or asked is the topics' business: `log.py`,
`work.py`, `listing.py`, `limit.py`, `outbox.py`, `document.py`.
"""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress

from outlast.clock import Clock
from outlast.core.codec import Packer
from outlast.errors import InvalidInput, StoreError, StoreUnavailable
from outlast.store.clock import MeasuredStoreClock
from outlast.stores.postgres.fork import check_process
from outlast.stores.postgres.migration import migrate
from outlast.stores.postgres.parts import StoreParts
from outlast.stores.postgres.pipeline import Rows
from outlast.stores.postgres.statement import Params, load_queries
from outlast.stores.postgres.timeline import ServerGuard
from outlast.stores.postgres.url import StoreAddress

MEASURE_EVERY = 1.0


class PostgresAccess:
    """The connections to one schema. Nothing is connected to before `open()`."""

    def __init__(self, address: StoreAddress, clock: Clock) -> None:
        self.address = address
        self.clock = clock
        self.queries = load_queries(address.schema)
        self.guard = ServerGuard(address.label, self.queries["find_server"])
        self.packer = Packer()
        self._pid = os.getpid()
        self._opening = asyncio.Lock()
        self._parts: StoreParts | None = None
        self.server_clock = MeasuredStoreClock(clock, self._want_measurement)
        self._measuring: asyncio.Task[None] | None = None
        self._measured_at = float("-inf")

    async def open(self) -> None:
        """Bring the schema up to date, and join what is connected on demand."""
        check_process(self._pid)
        # Of several tasks that open it, one migrates.
        async with self._opening:
            if self._parts is None:
                await migrate(
                    self.address,
                    self.guard,
                    self.clock,
                    self.queries,
                    server_clock=self.server_clock,
                )
                self._parts = StoreParts(
                    self.address, self.guard, self.clock, self.queries, self.packer
                )

    def check_process(self) -> None:
        """Refuse to go on in a process that was forked from the one that made the store."""
        check_process(self._pid)

    async def close(self) -> None:
        """Finish what was asked for, then close the connections."""
        async with self._opening:
            # First: what is asked from now on is refused, and does not open a connection anew.
            parts, self._parts = self._parts, None
            if self._measuring:
                self._measuring.cancel()
                await asyncio.wait([self._measuring])
            if parts:
                await parts.close()

    def counts(self) -> Mapping[str, int]:
        """Return the writer's counters, or none if the store is not open."""
        return self._parts.writer.counts if self._parts else {}

    def parts(self) -> StoreParts:
        """Return the parts, or refuse if the store is not open in this process and on this loop."""
        check_process(self._pid)
        if self._parts is None:
            raise StoreUnavailable(
                "this store is not open: use the app inside `async with app`, or open() it first;"
                " a store of your own is opened by migrate()"
            )
        # Its connections are read by callbacks of that loop: from another one they would never be
        # answered.
        if self._parts.loop is not asyncio.get_running_loop():
            raise InvalidInput("this store was opened on another event loop; open one on each")
        return self._parts

    def _want_measurement(self) -> None:
        """Measure the server's clock soon. May be called from any thread."""
        if self._parts and not self._measuring and self._is_due():
            with suppress(RuntimeError):  # the loop was closed
                self._parts.loop.call_soon_threadsafe(self._begin_measurement)

    def _is_due(self) -> bool:
        return self.clock.boottime() - self._measured_at >= MEASURE_EVERY

    def _begin_measurement(self) -> None:
        # Asked once more on the loop: several threads may have wanted it at the same time.
        if self._parts and not self._measuring and self._is_due():
            self._measured_at = self.clock.boottime()
            self._measuring = self._parts.loop.create_task(self._measure(self._parts))

    async def _measure(self, parts: StoreParts) -> None:
        """Learn from one answer; where there is none, a later claim brings one."""
        try:
            with suppress(StoreError):
                asked_at = self.server_clock.asking()
                [(time,)] = await parts.readers.ask(self.queries["read_clock"].bind({}))
                self.server_clock.note(asked_at, time)
        finally:
            self._measuring = None

    async def ask(self, name: str, params: Params) -> Rows:
        """Run a query of this name on a connection that reads."""
        return await self.parts().readers.ask(self.queries[name].bind(params))
