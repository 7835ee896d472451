"""The PostgreSQL store: eight topics over one schema.

One connection writes, two read, each lease has one of its own, and one shows that the process
lives (`parts.py`). All of it lives on the event loop that opened the store. Each topic is in the
module of its name.
"""

from collections.abc import Mapping

from outlast.clock import Clock
from outlast.store.clock import LocalStoreClock, StoreClock
from outlast.stores.postgres.access import PostgresAccess
from outlast.stores.postgres.budget import PostgresBudget
from outlast.stores.postgres.document import PostgresDocument
from outlast.stores.postgres.limit import PostgresLimit
from outlast.stores.postgres.listing import PostgresListing
from outlast.stores.postgres.log import PostgresLog
from outlast.stores.postgres.migration import look
from outlast.stores.postgres.outbox import PostgresOutbox
from outlast.stores.postgres.url import read_url
from outlast.stores.postgres.usage import PostgresUsage
from outlast.stores.postgres.work import PostgresWork


class PostgresStore:
    """A `outlast.store.Store` in a schema. Nothing is connected to before `migrate()`."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._access = PostgresAccess(read_url(url), clock or Clock())
        clock = self._access.clock
        self.clock: StoreClock = self._access.server_clock
        if clock.is_shared:  # the server is told what time it is: `set_clock`
            self.clock = LocalStoreClock(clock)
        self.log = PostgresLog(self._access)
        self.work = PostgresWork(self._access)
        self.listing = PostgresListing(self._access)
        self.limit = PostgresLimit(self._access)
        self.outbox = PostgresOutbox(self._access)
        self.document = PostgresDocument(self._access)
        self.usage = PostgresUsage(self._access)
        self.budget = PostgresBudget(self._access)

    def __repr__(self) -> str:
        return f"PostgresStore({self._access.address.label})"

    async def migrate(self) -> None:
        await self._access.open()

    async def is_there(self) -> bool:
        """Return whether the schema has been made; looking makes nothing."""
        access = self._access
        return await look(access.address, access.guard, access.clock, access.queries) > 0

    async def close(self) -> None:
        self._access.check_process()
        await self.work.close()
        await self._access.close()

    def counts(self) -> Mapping[str, int]:
        return self._access.counts()
