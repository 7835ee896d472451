"""The whole contract: the eight topics of a store, and how it is opened and closed.

Owns what joins the topics; each is a module beside this one. `outlast.stores` has the
implementations, and `outlast.testing.StoreContract` is the suite that holds them to it.
"""

from collections.abc import Mapping
from typing import Protocol

from outlast.store.budget import BudgetStore
from outlast.store.clock import StoreClock
from outlast.store.document import DocumentStore
from outlast.store.limit import LimitStore
from outlast.store.listing import ListingStore
from outlast.store.log import LogStore
from outlast.store.outbox import OutboxStore
from outlast.store.usage import UsageStore
from outlast.store.work import WorkStore


class Store(Protocol):
    """A database that keeps Outlast's promises.

    The topics exist from the start and stay the same objects; their methods raise
    StoreUnavailable until `migrate()` has opened the store.
    """

    @property
    def log(self) -> LogStore: ...

    @property
    def work(self) -> WorkStore: ...

    @property
    def listing(self) -> ListingStore: ...

    @property
    def limit(self) -> LimitStore: ...

    @property
    def outbox(self) -> OutboxStore: ...

    @property
    def document(self) -> DocumentStore: ...

    @property
    def usage(self) -> UsageStore: ...

    @property
    def budget(self) -> BudgetStore: ...

    @property
    def clock(self) -> StoreClock:
        """The store's own time, by which everything is due; see `clock.py`."""
        ...

    async def migrate(self) -> None:
        """Open the store and bring its schema up to date, or refuse.

        A store of a newer or unknown version raises StoreFromTheFuture, one that cannot be
        read StoreCorrupt; in both cases nothing was read or written beyond that finding.
        Any number of processes may call this at once.
        """
        ...

    async def close(self) -> None:
        """Finish what is under way and release every resource. Closing twice is no error."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Return the counters of this object: `groups`, its transactions that wrote something
        for others, and `grouped`, the requests that were written in them."""
        ...
