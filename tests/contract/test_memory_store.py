from pathlib import Path

from outlast.clock import Clock
from outlast.store import Lease, Store
from outlast.stores.sqlite import MemoryStore
from outlast.testing.contract import VolatileStoreContract


class TestMemoryStore(VolatileStoreContract):
    async def open_store(self, tmp_path: Path, clock: Clock) -> Store:
        return MemoryStore(clock)

    async def kill(self, store: Store, worker: str, lease: Lease) -> None:
        assert isinstance(store, MemoryStore)
        store.declare_dead(worker)
