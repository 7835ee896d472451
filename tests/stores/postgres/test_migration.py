"""Making schemas and migrating them: many at once, side by side, and never over others' tables.

No release has a second version yet, so the machinery runs on a made-up migration (`ADD_COLOURS`).
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from rival import Rival, ask, looking, opened, rivalling

from outlast.clock import Clock
from outlast.errors import (
    StoreCorrupt,
    StoreFromTheFuture,
    StoreUnavailable,
    UnsupportedStore,
)
from outlast.store import Claim, Commit
from outlast.stores.postgres import PostgresStore
from outlast.stores.postgres import migration as migrating
from outlast.stores.postgres.statement import load_queries
from outlast.stores.postgres.timeline import ServerGuard
from outlast.stores.postgres.url import read_url
from outlast.testing.contract.builder import (
    admit,
    commit,
    delta,
    enlist,
    new_session,
    read_all,
)
from outlast.testing.contract.erasure import large_result

clock = Clock()

ADD_COLOURS = """
ALTER TABLE outlast.lanes ADD COLUMN colour text NOT NULL DEFAULT 'red';
ALTER TABLE outlast.workers ADD COLUMN colour text NOT NULL DEFAULT 'red';
"""
VERSIONS = "SELECT version, name FROM migrations ORDER BY version"
BOTH = [(1, "schema.sql"), (2, "0002_colours.sql")]


@pytest.fixture
def second_version(tmp_path: Path) -> list[Path]:
    """The migrations of a release that has one."""
    page = tmp_path / "0002_colours.sql"
    page.write_text(ADD_COLOURS)
    return [page]


async def make_version_one(url: str) -> None:
    async with opened(url):
        pass


async def migrate(url: str, migrations: list[Path]) -> None:
    place = read_url(url)
    queries = load_queries(place.schema)
    guard = ServerGuard(place.label, queries["find_server"])
    await migrating.migrate(place, guard, clock, queries, migrations)


async def test_fifty_may_migrate_at_once(new_url: str) -> None:
    stores = [PostgresStore(new_url) for _ in range(50)]
    await asyncio.gather(*(store.migrate() for store in stores))
    assert await ask(new_url, VERSIONS) == [(migrating.NEWEST, "schema.sql")]
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
    await ask(new_url, "INSERT INTO migrations (version, name) VALUES (99, 'newer')")
    before = await ask(new_url, "SELECT xmin::text, * FROM migrations")
    with pytest.raises(StoreFromTheFuture):
        await PostgresStore(new_url).migrate()
    assert await ask(new_url, "SELECT xmin::text, * FROM migrations") == before


async def test_an_old_server_is_refused(new_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrating, "OLDEST_SERVER", 99)
    with pytest.raises(UnsupportedStore, match="upgrade it"):
        await PostgresStore(new_url).migrate()


async def test_a_server_that_isolates_transactions_otherwise_is_refused(new_url: str) -> None:
    url = new_url.replace("options=", "options=-cdefault_transaction_isolation%3Dserializable%20")
    with pytest.raises(UnsupportedStore, match="serializable"):
        await PostgresStore(url).migrate()


@pytest.mark.parametrize("whose", ["ROLE", "DATABASE"])
async def test_who_comes_while_a_role_or_a_database_has_all_its_connections_waits_for_one(
    postgres_server: str, whose: str
) -> None:
    name = f"test_{uuid4().hex}"
    async with looking(postgres_server) as run:
        await run(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
        await run(f"CREATE DATABASE {name} OWNER {name}")
        await run(f"ALTER {whose} {name} CONNECTION LIMIT 0")
        place = urlsplit(postgres_server)
        host = place.netloc.rpartition("@")[2]
        store = PostgresStore(place._replace(netloc=f"{name}:x@{host}", path=f"/{name}").geturl())

        looking_in = asyncio.create_task(store.is_there())
        await asyncio.wait([looking_in], timeout=0.5)
        assert not looking_in.done()
        await run(f"ALTER {whose} {name} CONNECTION LIMIT -1")

        async with asyncio.timeout(60):
            assert not await looking_in
        await run(f"DROP DATABASE {name} WITH (FORCE)")
        await run(f"DROP ROLE {name}")


@pytest.mark.parametrize(("encoding", "is_taken"), [("LATIN1", False), ("SQL_ASCII", True)])
async def test_a_database_that_cannot_hold_all_letters_is_refused(
    postgres_server: str, encoding: str, is_taken: bool
) -> None:
    name = f"test_{encoding.lower()}_{uuid4().hex}"
    async with looking(postgres_server) as run:
        await run(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
        store = PostgresStore(urlsplit(postgres_server)._replace(path=f"/{name}").geturl())
        if is_taken:
            await store.migrate()
            await store.close()
        else:
            with pytest.raises(UnsupportedStore, match="ENCODING 'UTF8'"):
                await store.migrate()
        await run(f"DROP DATABASE {name} WITH (FORCE)")


async def test_two_schemas_in_one_database_know_nothing_of_each_other(
    postgres_url: str, new_url: str
) -> None:
    one, two = PostgresStore(postgres_url), PostgresStore(new_url)
    await asyncio.gather(one.migrate(), two.migrate())
    heard: list[tuple[str, bool]] = []
    two.work.listen(lambda *hint: heard.append(hint))
    await enlist(one, clock, "w1")
    await enlist(two, clock, "w1")
    session = (await admit(one, new_session(clock, token="same"))).session_id
    await admit(two, new_session(clock, token="same"))
    assert await two.listing.session(session) is None
    assert len(await two.work.claim("w1", 10)) == 1
    assert len(await one.work.claim("w1", 10)) == 1
    await asyncio.sleep(0.1)
    assert session not in [hint for hint, _ in heard]
    await asyncio.gather(one.close(), two.close())


# Stores of Holdfast


async def test_a_schema_that_holdfast_made_is_refused_and_left_alone(new_url: str) -> None:
    await make_version_one(new_url)
    await ask(new_url, "UPDATE migrations SET name = '0001_initial.sql'")
    await ask(new_url, "INSERT INTO migrations (version, name) VALUES (12, '0012_tokens.sql')")
    before = await ask(new_url, "SELECT xmin::text, * FROM migrations")
    schema = read_url(new_url).schema
    with pytest.raises(UnsupportedStore, match=f"schema {schema} .* was made by Holdfast"):
        await PostgresStore(new_url).migrate()
    with pytest.raises(UnsupportedStore, match="finish its sessions with Holdfast"):
        await PostgresStore(new_url).is_there()
    assert await ask(new_url, "SELECT xmin::text, * FROM migrations") == before


async def test_a_database_with_holdfasts_default_schema_is_refused_until_ours_is_made(
    postgres_server: str,
) -> None:
    name = f"test_{uuid4().hex}"
    async with looking(postgres_server) as run:
        await run(f"CREATE DATABASE {name}")
        url = urlsplit(postgres_server)._replace(path=f"/{name}").geturl()
        tables = "".join(f"CREATE TABLE holdfast.{t} ();" for t in ("migrations", "sessions"))
        await ask(url, f"CREATE SCHEMA holdfast; {tables}")
        assert not await PostgresStore(url).is_there()  # a stranger's schema of that name
        await ask(url, "CREATE TABLE holdfast.lanes ()")
        with pytest.raises(UnsupportedStore, match=r"schema holdfast .* was made by Holdfast"):
            await PostgresStore(url).migrate()
        assert await ask(url, "SELECT to_regnamespace('outlast')::text") == [(None,)]

        async with opened(f"{url}?schema=another") as store:
            await admit(store, new_session(clock))
        await ask(url, "CREATE SCHEMA outlast")
        async with opened(url) as store:
            await admit(store, new_session(clock))
        await run(f"DROP DATABASE {name} WITH (FORCE)")


# From version 1 to 2


async def test_an_older_schema_gets_the_migrations_that_it_lacks(
    new_url: str, second_version: list[Path]
) -> None:
    await make_version_one(new_url)
    await ask(new_url, "DROP FUNCTION now_ms CASCADE")
    await migrate(new_url, second_version)
    await migrate(new_url, second_version)
    assert await ask(new_url, VERSIONS) == BOTH
    assert await ask(new_url, "SELECT colour FROM lanes") == []
    assert len(await ask(new_url, "SELECT now_ms()")) == 1  # all functions were made again
    with pytest.raises(StoreFromTheFuture):
        await PostgresStore(new_url).migrate()


async def test_a_migration_that_fails_leaves_the_schema_as_it_was(
    new_url: str, second_version: list[Path], tmp_path: Path
) -> None:
    await make_version_one(new_url)
    broken = tmp_path / "0003_broken.sql"
    broken.write_text("ALTER TABLE outlast.nowhere ADD COLUMN colour text;")
    with pytest.raises(StoreCorrupt):
        await migrate(new_url, [*second_version, broken])
    assert await ask(new_url, VERSIONS) == BOTH[:1]


async def test_who_migrates_begins_again_when_somebody_was_in_the_way(
    new_url: str, second_version: list[Path]
) -> None:
    await make_version_one(new_url)
    async with rivalling(new_url) as rival:
        await rival.run("SET deadlock_timeout = '1min'")  # the other one gives way
        await rival.run("TABLE workers")
        walking = asyncio.create_task(migrate(new_url, second_version))
        await rival.has_waiting()
        await rival.run("TABLE lanes")
        await rival.commit()
        await walking
    assert await ask(new_url, VERSIONS) == BOTH


async def test_nobody_waits_for_long_behind_a_migration_that_waits_for_a_table(
    new_url: str, second_version: list[Path]
) -> None:
    await make_version_one(new_url)
    async with rivalling(new_url) as dump, rivalling(new_url) as other:
        await dump.run("TABLE sessions")
        walking = asyncio.create_task(migrate(new_url, second_version))
        await dump.has_waiting()

        async with asyncio.timeout(60):
            await other.admit(new_session(clock))
        await other.commit()

        assert not walking.done()
        await dump.commit()
        await walking
    assert await ask(new_url, VERSIONS) == BOTH


async def test_a_table_that_somebody_has_for_too_long_is_said_to_be_in_the_way(
    new_url: str, second_version: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrating, "TRIES", 0)
    await make_version_one(new_url)
    async with rivalling(new_url) as dump:
        await dump.run("TABLE sessions")
        with pytest.raises(StoreUnavailable, match="pg_stat_activity"):
            await migrate(new_url, second_version)


async def test_a_migration_takes_longer_than_its_role_has_for_a_statement(new_url: str) -> None:
    url = new_url.replace("options=", "options=-cstatement_timeout%3D200%20-clock_timeout%3D200%20")
    async with rivalling(new_url.partition("&")[0].partition("?")[0]) as first:
        await first.run("SELECT pg_advisory_xact_lock(%s, 0)", read_url(url).number)
        walking = asyncio.create_task(PostgresStore(url).migrate())
        await first.has_waiting()
        await asyncio.wait([walking], timeout=0.5)
        assert not walking.done()
        await first.commit()
        await walking


async def test_a_schema_is_migrated_while_others_write(
    new_url: str, second_version: list[Path]
) -> None:
    await make_version_one(new_url)
    migrated = asyncio.Event()
    async with AsyncExitStack() as stack:
        rivals = [await stack.enter_async_context(rivalling(new_url)) for _ in range(4)]
        works = [keep_writing(rival, f"w{n}", migrated) for n, rival in enumerate(rivals[1:])]
        claiming = asyncio.create_task(keep_claiming(rivals[0], migrated))
        writing = asyncio.gather(*works)
        store = await stack.enter_async_context(opened(new_url))
        await migrate(new_url, second_version)
        migrated.set()
        async with asyncio.timeout(60):
            await claiming
            written = await writing
        for session, count in written:
            entries = await read_all(store, session)
            assert [entry.offset for entry in entries] == list(range(1, count + 3))


async def keep_writing(rival: Rival, worker: str, migrated: asyncio.Event) -> tuple[str, int]:
    """Commit as a worker of the last release does, until a while after the migration."""
    start = new_session(clock)
    await rival.admit(start)
    await rival.run("UPDATE lanes SET worker = %s, fence = 1 WHERE worker IS NULL", worker)
    await rival.commit()
    await rival.run("SELECT note_server_start()")
    [(epoch,)] = await rival.run("SELECT epoch()::text")
    await rival.commit()
    claim = Claim(start.session_id, "default", "main", "support", 1, 0, 2, epoch=epoch)
    count = rest = 0
    while rest < 5:
        record = large_result() if count % 3 else delta()
        wanted = commit(claim, record, worker=worker, number=count)
        await write_through(rival, wanted)
        count, rest = count + 1, rest + migrated.is_set()
    return start.session_id, count


async def write_through(rival: Rival, wanted: Commit) -> None:
    while True:
        try:
            await rival.write(wanted)
            return await rival.commit()
        except psycopg.errors.DeadlockDetected:
            await rival.rollback()


async def keep_claiming(rival: Rival, migrated: asyncio.Event) -> None:
    while not migrated.is_set():
        try:
            await rival.run("SELECT claim('w9', 1, '[]', '[]', 99, NULL, '{}')")
            await rival.commit()
        except psycopg.errors.DeadlockDetected:
            await rival.rollback()


@pytest.mark.parametrize(
    "change",
    [
        "DROP FUNCTION write(jsonb, bytea)",
        "ALTER TABLE deliveries RENAME COLUMN fingerprint TO print",
    ],
    ids=["function", "column"],
)
async def test_a_schema_that_changes_beneath_a_process_is_said_to_be_a_newer_ones(
    new_url: str, change: str
) -> None:
    async with opened(new_url) as store:
        await admit(store, new_session(clock))
        await ask(new_url, change)
        with pytest.raises(StoreFromTheFuture, match="start this process again"):
            await admit(store, new_session(clock))
