"""Another process on the same PostgreSQL, stopped in the middle of a transaction.

What it holds, others wait for, until the test lets it commit or roll back: so two that come
at once are put in an order, and nothing is left to chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psycopg

from outlast.core.codec import Packer
from outlast.store import Admission, Claim, Commit, PermitRequest
from outlast.stores.postgres import PostgresStore
from outlast.stores.postgres.admission import AdmissionItem
from outlast.stores.postgres.commit import CommitItem
from outlast.stores.postgres.statement import load_queries
from outlast.stores.postgres.url import read_url
from outlast.stores.postgres.writer import GroupBuffer, WriteItem

TIMEOUT = 60.0
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
OF_SESSIONS = (
    "SELECT relname FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid"
    " WHERE relnamespace = to_regnamespace(%s) AND attname = 'sid'"
    " AND relkind IN ('r', 'p') AND NOT relispartition"
)
NAMES_STAY = "dispatches"
COMMIT_ALONE = load_queries("outlast")["commit_alone"]

Rows = list[tuple[Any, ...]]


class Rival:
    """A connection with a transaction open."""

    def __init__(self, url: str, connection: psycopg.AsyncConnection[Any]) -> None:
        self._url = url
        self._connection = connection

    async def run(self, sql: str, *values: Any) -> Rows:
        cursor = await self._connection.execute(sql.encode(), values or None)
        return await cursor.fetchall() if cursor.description else []

    async def erase(self, session_id: str) -> None:
        assert await self.run("SELECT erase(%s)", session_id) != [(None,)]

    async def write(self, wanted: Commit) -> None:
        """Commit as the owner of a lane does."""
        assert await self._send(CommitItem(wanted, Packer(), COMMIT_ALONE)) == "written"

    async def write_late(self, wanted: Commit) -> None:
        """Commit to a lane that has changed hands."""
        assert await self._send(CommitItem(wanted, Packer(), COMMIT_ALONE)) == "lease_lost"

    async def admit(self, admission: Admission) -> None:
        assert await self._send(AdmissionItem(admission, Packer())) == "admitted"

    async def _send(self, item: WriteItem[Any]) -> str:
        buffer = GroupBuffer()
        text = msgspec.json.encode([[item.prepare(buffer)]]).decode()
        [(written,)] = await self.run("SELECT write(%s::jsonb, %b)", text, buffer.join())
        return str(written["answers"][0][0])

    async def acquire(self, request: PermitRequest) -> None:
        text = msgspec.json.encode([request]).decode()
        assert await self.run("SELECT acquire(%s::jsonb)", text) == [([[["granted"]], []],)]

    async def commit(self) -> None:
        await self._connection.commit()

    async def rollback(self) -> None:
        await self._connection.rollback()

    async def has_waiting(self, count: int = 1) -> None:
        """Return when so many others wait for what this one holds."""
        pid = self._connection.info.backend_pid
        async with asyncio.timeout(TIMEOUT), looking(self._url) as look:
            while (await look(WAITING, pid))[0][0] < count:  # noqa: ASYNC110 - only the server knows
                await asyncio.sleep(0.002)


@asynccontextmanager
async def rivalling(url: str) -> AsyncIterator[Rival]:
    connection = await psycopg.AsyncConnection.connect(read_url(url).direct)
    try:
        yield Rival(url, connection)
    finally:
        await connection.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.migrate()
    try:
        yield store
    finally:
        await store.close()


Look = Callable[..., Awaitable[Rows]]


@asynccontextmanager
async def looking(url: str) -> AsyncIterator[Look]:
    """A connection on which each statement is a transaction."""
    direct = read_url(url).direct
    async with await psycopg.AsyncConnection.connect(direct, autocommit=True) as connection:

        async def look(sql: str, *values: Any) -> Rows:
            cursor = await connection.execute(sql.encode(), values or None)
            return await cursor.fetchall() if cursor.description else []

        yield look


async def ask(url: str, sql: str, *values: Any) -> Rows:
    async with looking(url) as look:
        return await look(sql, *values)


async def remains(url: str) -> dict[str, int]:
    """What is left in the store that belongs to some session, but for names of dispatches."""
    found = {}
    async with looking(url) as look:
        tables = {name for (name,) in await look(OF_SESSIONS, read_url(url).schema)}
        assert NAMES_STAY in tables
        for name in tables - {NAMES_STAY} | {"effects", "blobs"}:
            [(count,)] = await look(f"SELECT count(*) FROM {name}")  # noqa: S608 - ours
            found[name] = count
    return {name: count for name, count in found.items() if count}


def later(claim: Claim, by: int = 1) -> Claim:
    """The claim as it stands after so many commits more."""
    return msgspec.structs.replace(claim, number=claim.number + by)
