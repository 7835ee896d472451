"""SQLite keeps the store contract."""

import sqlite3
from contextlib import closing
from pathlib import Path

from outlast.clock import Clock
from outlast.store import Lease, Store
from outlast.stores.sqlite import SqliteStore
from outlast.stores.sqlite.worker_lease import SqliteLease
from outlast.testing.contract import StoreContract


class TestSqliteStore(StoreContract):
    async def open_store(self, tmp_path: Path, clock: Clock) -> Store:
        return SqliteStore(tmp_path / "outlast.db", clock)

    async def kill(self, store: Store, worker: str, lease: Lease) -> None:
        assert isinstance(lease, SqliteLease)
        lease.let_go()

    async def make_newer(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "outlast.db")) as database:
            database.execute("PRAGMA user_version = 999")

    async def make_unreadable(self, tmp_path: Path) -> None:
        (tmp_path / "outlast.db").write_bytes(b"\x00" * 100_000)
