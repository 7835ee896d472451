"""The contract whole: what is asked of each topic, and of a store by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from outlast.store.admission import Admissions
from outlast.store.commit import Commits
from outlast.store.key import Keys
from outlast.store.limit import Permits
from outlast.store.listing import Listings
from outlast.store.log import LogReads
from outlast.store.outbox import OutboxCursors
from outlast.store.schedule import ScheduleRows
from outlast.store.vault import SecretStore
from outlast.store.work import WorkerRegistry


class Store(
    Admissions,
    WorkerRegistry,
    Permits,
    Commits,
    LogReads,
    Listings,
    OutboxCursors,
    ScheduleRows,
    Keys,
    SecretStore,
    Protocol,
):
    """A database that keeps Outlast's promises."""

    async def migrate(self) -> None:
        """Bring the schema up to date, or refuse.

        A store of a newer or unknown version raises StoreFromTheFuture, one that cannot be
        read StoreCorrupt; in both cases nothing was read or written beyond that finding.
        Any number of processes may call this at once.
        """
        ...

    async def close(self) -> None:
        """Finish what is under way and let go of everything. Closing twice is no error."""
        ...

    async def erase(self, session_id: str) -> bool:
        """Take a session away with all that is known of it, and say whether there was one.

        Its log, deliveries, requests, tokens, slices, permits, idempotency keys and outbox are
        gone, and values that no other session's log points at. Whoever owns a lane of it is
        refused from now on. Two things stay, without content: the names of its dispatches (see
        `admit`), and its holds on idempotency keys that other sessions share, as `unknown`. The
        sessions that it started are doomed.
        """
        ...

    async def doomed(self, limit: int = 100) -> Sequence[str]:
        """Return sessions that are to be erased, since what started them was; oldest first."""
        ...

    def listen(
        self, heard: Callable[[str, bool], None], session_id: str = ""
    ) -> Callable[[], None]:
        """Call `heard(session_id, arrived)` on this event loop soon after anything is written.

        With a `session_id` only what is written to that session is heard of. `arrived` says
        whether something came into an inbox or a lane was given back. A hint, not a promise:
        it may come late, twice, for nothing (with an empty id) or not at all. Returns a
        function that stops it.
        """
        ...

    def counts(self) -> Mapping[str, int]:
        """Return what this object has counted: `groups`, its transactions that wrote something
        for others, and `grouped`, what was asked for in them."""
        ...
