"""SQLite keeps the store contract."""

import sqlite3
from contextlib import closing
from pathlib import Path

from holdfast.clock import Clock
from holdfast.store import Lease, Store
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.lease import SqliteLease
from holdfast.testing.store_contract import StoreContract


class TestSqliteStore(StoreContract):
    async def open_store(self, tmp_path: Path, clock: Clock) -> Store:
        return SqliteStore(tmp_path / "holdfast.db", clock)

    async def kill(self, store: Store, worker: str, lease: Lease) -> None:
        assert isinstance(lease, SqliteLease)
        lease.let_go()

    async def make_newer(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "holdfast.db")) as database:
            database.execute("PRAGMA user_version = 999")

    async def make_unreadable(self, tmp_path: Path) -> None:
        (tmp_path / "holdfast.db").write_bytes(b"\x00" * 100_000)
