"""PostgreSQL keeps the store contract."""

from pathlib import Path

import psycopg
import pytest

from outlast.clock import Clock
from outlast.store import Lease, Store
from outlast.stores.postgres import PostgresStore
from outlast.stores.postgres.url import read_url
from outlast.stores.postgres.worker_lease import PostgresLease
from outlast.testing.contract import StoreContract


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def place(self, postgres_url: str) -> None:
        """A schema of the test's own, whatever the path."""
        self.url = postgres_url

    async def open_store(self, tmp_path: Path, clock: Clock) -> Store:
        return PostgresStore(self.url, clock)

    async def kill(self, store: Store, worker: str, lease: Lease) -> None:
        assert isinstance(lease, PostgresLease)
        await lease.let_go()

    async def make_newer(self, tmp_path: Path) -> None:
        run(self.url, "INSERT INTO migrations (version, name) VALUES (999, 'newer')")

    async def make_unreadable(self, tmp_path: Path) -> None:
        run(self.url, "DROP TABLE migrations")


def run(url: str, sql: str) -> None:
    with psycopg.connect(read_url(url).direct) as connection:
        connection.execute(sql.encode())
