"""The store under test: what a subclass says about it, and the fixtures that open it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from outlast.clock import Clock
from outlast.store import Lease, Store
from outlast.testing.clock import ManualClock


class StoreUnderTest:
    """Facts about a store that the tests need.

    Every store gives `open_store` and `kill`; one that outlives its process gives the rest too.
    """

    pytestmark = pytest.mark.asyncio

    async def open_store(self, tmp_path: Path, clock: Clock) -> Store:
        """Open a store that compares times with this clock; the same path is the same store."""
        raise NotImplementedError

    async def reopen(self, store: Store, tmp_path: Path, clock: Clock) -> Store:
        """Close the store and open it again, as a new process would."""
        await store.close()
        return await self.open_store(tmp_path, clock)

    async def kill(self, store: Store, worker: str, lease: Lease) -> None:
        """Take away the worker's sign of life as SIGKILL would, leaving its lease."""
        raise NotImplementedError

    async def make_newer(self, tmp_path: Path) -> None:
        """Make the closed store at this path look as if a later Outlast had written it."""
        raise NotImplementedError

    async def make_unreadable(self, tmp_path: Path) -> None:
        """Damage the closed store at this path so that it cannot be read."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Store]:
        store = await self.open_store(tmp_path, clock)
        await store.migrate()
        yield store
        await store.close()

    @asynccontextmanager
    async def reopened(
        self, store: Store, tmp_path: Path, clock: ManualClock
    ) -> AsyncIterator[Store]:
        again = await self.reopen(store, tmp_path, clock)
        try:
            await again.migrate()
            yield again
        finally:
            await again.close()
