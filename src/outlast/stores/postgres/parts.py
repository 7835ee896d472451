"""The parts of an open store: its connections, and the objects that use them.

The topics reach them through `access.py`; workers' leases are in `work.py`.
"""

import asyncio
import logging
from collections.abc import Mapping

from outlast.clock import Clock
from outlast.core.codec import Packer
from outlast.stores.listener import Listeners
from outlast.stores.postgres.commit import Committer
from outlast.stores.postgres.liveness import HeartbeatConnection
from outlast.stores.postgres.notify import Notifier
from outlast.stores.postgres.reading import LogReader
from outlast.stores.postgres.reconnect import Readers, ReconnectingConnection
from outlast.stores.postgres.row import Unpacker
from outlast.stores.postgres.statement import Query
from outlast.stores.postgres.timeline import ServerGuard
from outlast.stores.postgres.transaction_pool import TransactionPool
from outlast.stores.postgres.url import StoreAddress
from outlast.stores.postgres.writer import Writer

log = logging.getLogger("outlast.postgres")

READERS = 2
CLOSING = 10.0
"""How long a store that is closed waits for answers of a server that may hang, in seconds."""


class StoreParts:
    """The parts of a store, joined. Connections are opened when they are first needed."""

    def __init__(
        self,
        place: StoreAddress,
        guard: ServerGuard,
        clock: Clock,
        queries: Mapping[str, Query],
        packer: Packer,
    ) -> None:
        self._connections: list[ReconnectingConnection] = []

        def connection() -> ReconnectingConnection:
            made = ReconnectingConnection(place, guard, clock, queries["set_clock"])
            self._connections.append(made)
            return made

        self._label = place.label
        self.loop = asyncio.get_running_loop()
        self.listeners = Listeners()
        self.readers = Readers([connection() for _ in range(READERS)], queries)
        self.notifier = Notifier(
            place.schema, clock, queries["notify"], self.readers, self.listeners
        )
        self.heartbeat = HeartbeatConnection(place, guard, clock, queries, self.notifier.heard)
        self.writer = Writer(
            connection(),
            queries["write"],
            queries["lock_limits"],
            place.label,
            self.notifier.tell,
        )
        self.unpacker = Unpacker(packer, self.readers.blobs, self.readers.heads)
        self.committer = Committer(
            packer, self.unpacker, self.writer, self.notifier, queries["commit_alone"]
        )
        self.reading = LogReader(self.readers, queries, packer, self.unpacker)
        self.transactions = TransactionPool(place, guard, clock, queries)
        # Each statement here is a transaction of its own and holds nothing while it waits. In a
        # group it would wait with everything that the group has locked.
        self.ungrouped = connection()

    async def close(self) -> None:
        """Finish what is under way, if the server answers, then close all connections."""
        self.listeners.clear()
        try:
            async with asyncio.timeout(CLOSING):
                await self._finish()
        except TimeoutError:
            log.warning("closed without an answer to all", extra={"store": self._label})
        finally:
            await self.heartbeat.close()
            for connection in self._connections:
                connection.close()
            await self.transactions.close()

    async def _finish(self) -> None:
        await self.writer.stop()
        await self.ungrouped.finish()
        await self.notifier.stop()
        await self.readers.close()
