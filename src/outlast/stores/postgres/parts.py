"""The parts of an open store: its connections, and the objects that use them.

The topics reach them through `access.py`; workers' leases are in `work.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from outlast.clock import Clock
from outlast.core.codec import Packer
from outlast.stores.listener import Listeners
from outlast.stores.postgres.commit import Committer
from outlast.stores.postgres.liveness import HeartbeatConnection
from outlast.stores.postgres.notify import Notifier
from outlast.stores.postgres.reader import Readers
from outlast.stores.postgres.reading import LogReader
from outlast.stores.postgres.reconnect import ReconnectingConnection
from outlast.stores.postgres.row import Unpacker
from outlast.stores.postgres.statement import Query
from outlast.stores.postgres.transaction_pool import TransactionPool
from outlast.stores.postgres.url import StoreAddress
from outlast.stores.postgres.writer import Writer

READERS = 2


class StoreParts:
    """The parts of a store, joined. Connections are opened when they are first needed."""

    def __init__(
        self, place: StoreAddress, clock: Clock, queries: Mapping[str, Query], packer: Packer
    ) -> None:
        def connection() -> ReconnectingConnection:
            return ReconnectingConnection(place, clock, queries["set_clock"])

        self.loop = asyncio.get_running_loop()
        self.listeners = Listeners()
        self.readers = Readers([connection() for _ in range(READERS)], queries)
        self.notifier = Notifier(
            place.schema, clock, queries["notify"], self.readers, self.listeners
        )
        self.heartbeat = HeartbeatConnection(place, clock, queries, self.notifier.heard)
        self.writer = Writer(
            ReconnectingConnection(place, clock, queries["set_clock"], self.heartbeat.until_shown),
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
        self.transactions = TransactionPool(place, clock, queries)
        # Each statement here is a transaction of its own and holds nothing while it waits. In a
        # group it would wait with everything that the group has locked.
        self.ungrouped = connection()

    async def close(self) -> None:
        """Finish what is under way, then close all connections."""
        self.listeners.clear()
        await self.writer.stop()
        await self.ungrouped.finish()
        await self.notifier.stop()
        await self.heartbeat.close()
        await self.transactions.close()
        await self.readers.close()
