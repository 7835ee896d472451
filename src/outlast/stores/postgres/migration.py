"""The schema's version: recognize the schema, make it, and bring an older one up to date.

A new schema is made from `schema.sql` alone. An older one gets the files of `migrations/` that it
lacks, of which the first makes version 2. The functions hold no data: today's replace all others.
Nothing here knows what the tables mean.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

import psycopg

from outlast.clock import Clock
from outlast.errors import StoreCorrupt, StoreFromTheFuture, StoreUnavailable, UnsupportedStore
from outlast.store.clock import MeasuredStoreClock
from outlast.stores.postgres.error import ServerBusy, explain, is_passing
from outlast.stores.postgres.pipeline import connect
from outlast.stores.postgres.reconnect import RetryState
from outlast.stores.postgres.statement import (
    SCHEMA_FILE,
    Query,
    in_schema,
    load_functions,
    load_migrations,
)
from outlast.stores.postgres.timeline import ServerGuard
from outlast.stores.postgres.url import DEFAULT_SCHEMA, StoreAddress

MIGRATIONS = load_migrations()
NEWEST = 1 + len(MIGRATIONS)
OLDEST_SERVER = 14
TRIES = 200  # ten minutes of them
ENCODINGS = ("UTF8", "SQL_ASCII")  # the latter keeps whatever bytes it is given

Connection = psycopg.AsyncConnection[Any]


class SchemaState(NamedTuple):
    """The state of the database before anything is changed."""

    server: int
    exists: bool
    is_ours: bool
    tables: int
    isolation: str
    encoding: str
    has_old_default: bool
    """Whether the default schema of Holdfast is there, with a store in it."""


async def migrate(
    place: StoreAddress,
    guard: ServerGuard,
    clock: Clock,
    queries: Mapping[str, Query],
    migrations: Sequence[Traversable] = MIGRATIONS,
    server_clock: MeasuredStoreClock | None = None,
) -> None:
    """Bring the schema up to date, or refuse and leave it as it is; then read the clock."""
    async with connected(place, guard, clock) as connection:
        # A look first: the usual start finds nothing to do, and takes no lock that others wait for.
        if await find_version(connection, place, queries, 1 + len(migrations)) <= len(migrations):
            await insist(connection, place, clock, queries, migrations)
        if server_clock:
            asked_at = server_clock.asking()
            [time] = await one(connection, queries["read_clock"])
            server_clock.note(asked_at, time)


async def look(
    place: StoreAddress, guard: ServerGuard, clock: Clock, queries: Mapping[str, Query]
) -> int:
    """Return the schema's version, or 0 if there is none, and change nothing."""
    async with connected(place, guard, clock) as connection:
        return await find_version(connection, place, queries)


@asynccontextmanager
async def connected(
    place: StoreAddress, guard: ServerGuard, clock: Clock
) -> AsyncIterator[Connection]:
    connection = await connect_soon(place, guard, clock)
    try:
        yield connection
    except psycopg.Error as error:
        raise explain(error, place.label) from error
    finally:
        await connection.close()


async def connect_soon(place: StoreAddress, guard: ServerGuard, clock: Clock) -> Connection:
    """Open a connection; wait only for a server that says it will accept one before long."""
    trial = RetryState(clock)
    while True:
        try:
            connection, _ = await connect(place.pooled, place.label, guard)
        except ServerBusy:
            if trial.is_over:
                raise
        else:
            return connection
        await trial.pause()


async def find_version(
    connection: Connection,
    place: StoreAddress,
    queries: Mapping[str, Query],
    newest: int = NEWEST,
) -> int:
    """Return the schema's version, 0 if there is no schema; refuse one that is not for us."""
    state = SchemaState(*await one(connection, queries["find_schema"], schema=place.schema))
    check_server(state, place)
    if not state.exists and state.has_old_default and place.schema == DEFAULT_SCHEMA:
        raise made_by_holdfast(place, "holdfast")
    if not state.is_ours and not state.tables:
        return 0
    version, is_holdfast = None, False
    if state.is_ours:
        version, is_holdfast = await one(connection, queries["find_version"])
    if version is None:
        raise StoreCorrupt(
            f"the {place.label} holds tables, and nothing says that they are Outlast's; name"
            " another schema, or restore it from a backup",
            store=place.label,
        )
    if is_holdfast:
        raise made_by_holdfast(place, place.schema)
    if version > newest:
        raise StoreFromTheFuture(
            f"the {place.label} has version {version} and this Outlast knows up to {newest};"
            " upgrade Outlast",
            store=place.label,
            version=version,
        )
    return int(version)


def check_server(state: SchemaState, place: StoreAddress) -> None:
    """Refuse a server that is too old, or set up in a way that would lose text or order."""
    if state.server // 10_000 < OLDEST_SERVER:
        raise UnsupportedStore(
            f"the {place.label} is PostgreSQL {state.server // 10_000}, and Outlast needs"
            f" {OLDEST_SERVER} or newer; upgrade it",
            store=place.label,
        )
    if state.encoding not in ENCODINGS:
        raise UnsupportedStore(
            f"the {place.label} keeps text as {state.encoding}, which lacks most of the world's"
            " letters, and Outlast needs UTF8; create a database with ENCODING 'UTF8' TEMPLATE"
            " template0 and name that",
            store=place.label,
        )
    # A statement has to see what was committed before it, and not before its transaction: a lock
    # that was waited for is followed by a look at the newest row.
    if state.isolation != "read committed":
        raise UnsupportedStore(
            f"the {place.label} isolates transactions as {state.isolation} by default, and Outlast"
            " needs read committed; set default_transaction_isolation for its role",
            store=place.label,
        )


def made_by_holdfast(place: StoreAddress, schema: str) -> UnsupportedStore:
    return UnsupportedStore(
        f"the schema {schema} of the {place.database} was made by Holdfast, as Outlast was called"
        " before its first release, and Outlast does not read it; finish its sessions with Holdfast"
        f" and drop that schema, or begin anew beside it in a schema that you create and name in"
        " the URL (?schema=…)",
        store=place.label,
        schema=schema,
    )


async def insist(
    connection: Connection,
    place: StoreAddress,
    clock: Clock,
    queries: Mapping[str, Query],
    migrations: Sequence[Traversable],
) -> None:
    """Apply the migrations; begin again where a transaction of another process was in the way.

    One process at a time, pauses included: several in turns would leave the processes that write
    no gap.
    """
    trial = RetryState(clock, TRIES)
    async with connection.transaction():
        await one(connection, queries["prepare_migration"])
        await one(connection, queries["lock_migration"], **{"class": place.number})
        # A migration that waits for a table keeps everybody waiting who comes behind it.
        await one(connection, queries["limit_locks"])
        while True:
            try:
                return await apply(connection, place, queries, migrations)
            except psycopg.errors.LockNotAvailable as error:
                if trial.is_hopeless:
                    raise in_the_way(place) from error
            except psycopg.Error as error:
                if trial.is_hopeless or not is_passing(error):
                    raise
            await trial.pause()


def in_the_way(place: StoreAddress) -> StoreUnavailable:
    return StoreUnavailable(
        f"the {place.label} cannot be brought up to date, as another session holds its tables for"
        " long (a dump, a transaction left open); end that, see pg_stat_activity, and start again",
        store=place.label,
    )


async def apply(
    connection: Connection,
    place: StoreAddress,
    queries: Mapping[str, Query],
    migrations: Sequence[Traversable],
) -> None:
    """Apply what is missing, all of it or nothing; the second process finds it done."""
    newest = 1 + len(migrations)
    async with connection.transaction():
        # Once more, now that the lock is held: another process may have done all of it.
        version = await find_version(connection, place, queries, newest)
        if version == newest:
            return
        if not version:
            await connection.execute(queries["add_schema"].text)
            await run(connection, SCHEMA_FILE, place)
            await note(connection, queries, newest, SCHEMA_FILE)
        else:
            await connection.execute(queries["lock_sessions"].text)
            for number, page in enumerate(migrations[version - 1 :], version + 1):
                await run(connection, page, place)
                await note(connection, queries, number, page)
        # Always all of them, in the migration's own transaction: no process ever meets new tables
        # with old functions.
        for page in load_functions():
            await run(connection, page, place)


async def note(
    connection: Connection, queries: Mapping[str, Query], number: int, page: Traversable
) -> None:
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(queries["add_migration"].text, [number, page.name])


async def run(connection: Connection, page: Traversable, place: StoreAddress) -> None:
    script = in_schema(page.read_text("utf-8"), place.schema)
    await connection.execute(script.encode())


async def one(connection: Connection, query: Query, **params: Any) -> tuple[Any, ...]:
    """Return the row of a named statement."""
    async with psycopg.AsyncRawCursor(connection) as cursor:
        await cursor.execute(query.text, [params[name] for name in query.names])
        row = await cursor.fetchone()
    assert row is not None
    return tuple(row)
