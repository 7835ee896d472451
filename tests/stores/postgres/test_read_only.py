"""A database that takes no writes for a while: told, nothing acknowledged, then work goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from scene import FAST, agent

from outlast import Outlast
from outlast.errors import StoreUnavailable
from outlast.testing.scripted import say


class OwnDatabase:
    """A database of the test's own on the shared server."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._name = f"test_{uuid4().hex}"
        self.url = f"{server.rpartition('/')[0]}/{self._name}"

    def run(self, statement: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(self._name)))

    def let(self, *, read_only: bool) -> None:
        """Have every connection take writes or not from now on, as when a disk is nearly full."""
        word = "on" if read_only else "off"
        self.run(f"ALTER DATABASE {{}} SET default_transaction_read_only = {word}")
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                [self._name],
            )


@pytest.fixture
def database(postgres_server: str) -> Iterator[OwnDatabase]:
    made = OwnDatabase(postgres_server)
    made.run("CREATE DATABASE {}")
    yield made
    made.run("DROP DATABASE {} WITH (FORCE)")


async def test_what_is_refused_meanwhile_is_told_and_what_was_accepted_is_done(
    database: OwnDatabase,
) -> None:
    async with Outlast([agent(lambda _: say("done"))], store=database.url, worker=FAST) as app:
        first = await app.start("a", "one")
        await first.wait()

        database.let(read_only=True)
        for number in range(3):
            with pytest.raises(StoreUnavailable):
                await app.start("a", "two", dispatch_id=f"two {number}")
        database.let(read_only=False)

        async with asyncio.timeout(60):
            session = await app.start("a", "two", dispatch_id="two 0")
            assert (await session.wait()).output == "done"
            await first.send("three")
            await first.wait()
        assert len(await app.sessions()) == 2
