"""Bringing schemas up: many at once, side by side, and never over somebody else's tables."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import psycopg
import pytest
from postgres_server import drop_schema

from holdfast.clock import Clock
from holdfast.errors import StoreCorrupt, StoreFromTheFuture, UnsupportedStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres import migration as migrating
from holdfast.stores.postgres.place import read_url
from holdfast.testing.store_contract.builder import admit, enlist, new_session

clock = Clock()


async def ask(url: str, sql: str) -> list[tuple[object, ...]]:
    direct = read_url(url).direct
    async with await psycopg.AsyncConnection.connect(direct, autocommit=True) as connection:
        cursor = await connection.execute(sql.encode())
        return await cursor.fetchall() if cursor.description else []


@pytest.fixture
def new_url(postgres_server: str):  # type: ignore[no-untyped-def]
    """The URL of a schema that does not exist."""
    schema = f"test_{uuid4().hex}"
    yield f"{postgres_server}?schema={schema}&options=-csearch_path%3D{schema}"
    drop_schema(postgres_server, schema)


async def test_fifty_may_migrate_at_once(new_url: str) -> None:
    stores = [PostgresStore(new_url) for _ in range(50)]
    await asyncio.gather(*(store.migrate() for store in stores))
    assert await ask(new_url, "SELECT version FROM migrations") == [(migrating.NEWEST,)]
    await admit(stores[0], new_session(clock))
    await asyncio.gather(*(store.close() for store in stores))


async def test_looking_makes_nothing(new_url: str) -> None:
    store = PostgresStore(new_url)
    assert not await store.is_there()
    schema = read_url(new_url).schema
    assert await ask(new_url, f"SELECT to_regnamespace('{schema}')::text") == [(None,)]
    await store.migrate()
    assert await store.is_there()
    await store.close()


async def test_a_schema_with_the_tables_of_others_is_left_alone(new_url: str) -> None:
    schema = read_url(new_url).schema
    await ask(new_url, f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.theirs (id integer)")
    with pytest.raises(StoreCorrupt):
        await PostgresStore(new_url).migrate()
    tables = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('{}')"
    assert await ask(new_url, tables.format(schema)) == [("theirs",)]


async def test_a_schema_of_the_future_is_left_alone(new_url: str) -> None:
    store = PostgresStore(new_url)
    await store.migrate()
    await store.close()
    await ask(new_url, "UPDATE migrations SET version = 99")
    before = await ask(new_url, "SELECT xmin::text, * FROM migrations")
    with pytest.raises(StoreFromTheFuture):
        await PostgresStore(new_url).migrate()
    assert await ask(new_url, "SELECT xmin::text, * FROM migrations") == before


async def test_an_old_server_is_refused(new_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrating, "OLDEST_SERVER", 99)
    with pytest.raises(UnsupportedStore, match="upgrade it"):
        await PostgresStore(new_url).migrate()


async def test_two_schemas_in_one_database_know_nothing_of_each_other(
    postgres_url: str, new_url: str
) -> None:
    one, two = PostgresStore(postgres_url), PostgresStore(new_url)
    await asyncio.gather(one.migrate(), two.migrate())
    heard: list[tuple[str, bool]] = []
    two.listen(lambda *hint: heard.append(hint))
    await enlist(one, clock, "w1")
    await enlist(two, clock, "w1")
    session = (await admit(one, new_session(clock, token="same"))).session_id
    await admit(two, new_session(clock, token="same"))
    assert await two.session(session) is None
    assert len(await two.claim("w1", 10)) == 1
    assert len(await one.claim("w1", 10)) == 1
    await asyncio.sleep(0.1)
    assert session not in [hint for hint, _ in heard]
    await asyncio.gather(one.close(), two.close())
