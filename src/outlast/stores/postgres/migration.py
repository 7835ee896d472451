"""The schema's version: whether the schema is one of ours, and bringing it up to date."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

import psycopg

from outlast.clock import Clock
from outlast.errors import StoreCorrupt, StoreFromTheFuture, StoreUnavailable, UnsupportedStore
from outlast.stores.postgres.error import explain, is_passing
from outlast.stores.postgres.pipeline import connect
from outlast.stores.postgres.reconnect import RetryState
from outlast.stores.postgres.statement import (
    Query,
    in_schema,
    load_functions,
    load_migrations,
)
from outlast.stores.postgres.url import StoreAddress

NEWEST = len(load_migrations())
OLDEST_SERVER = 14
TRIES = 200  # ten minutes of them
ENCODINGS = ("UTF8", "SQL_ASCII")  # the latter keeps whatever bytes it is given
# What a server says that will let us in before long: it is starting, or has no room just now. Of
# a connection that was not opened the driver tells these words, and no code.
SOON = (
    "starting up",
    "not yet accepting",
    "too many clients",
    "too many connections for",  # a role, a database
    "remaining connection slots",
)

Connection = psycopg.AsyncConnection[Any]


class SchemaState(NamedTuple):
    """What there is before anything is touched."""

    server: int
    exists: bool
    is_ours: bool
    tables: int
    isolation: str
    encoding: str


async def migrate(place: StoreAddress, clock: Clock, queries: Mapping[str, Query]) -> None:
    """Bring the schema up to date, or refuse and leave it as it is."""
    async with at_the_door(place, clock) as connection:
        if await find_version(connection, place, queries) < NEWEST:
            await insist(connection, place, clock, queries)


async def look(place: StoreAddress, clock: Clock, queries: Mapping[str, Query]) -> int:
    """Return the schema's version, or 0, and touch nothing."""
    async with at_the_door(place, clock) as connection:
        return await find_version(connection, place, queries)


@asynccontextmanager
async def at_the_door(place: StoreAddress, clock: Clock) -> AsyncIterator[Connection]:
    connection = await knock(place, clock)
    try:
        yield connection
    except psycopg.Error as error:
        raise explain(error, place.label) from error
    finally:
        await connection.close()


async def knock(place: StoreAddress, clock: Clock) -> Connection:
    """Open a connection, waiting for a server that is about to let us in and for no other."""
    trial = RetryState(clock)
    while True:
        try:
            return await connect(place.pooled, place.label)
        except StoreUnavailable as error:
            if trial.is_over or not any(words in error.message for words in SOON):
                raise
        await trial.pause()


async def find_version(
    connection: Connection, place: StoreAddress, queries: Mapping[str, Query]
) -> int:
    """Return the schema's version, 0 if there is nothing; refuse one that is not for us."""
    state = SchemaState(*await one(connection, queries["find_schema"], schema=place.schema))
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
    if state.isolation != "read committed":
        raise UnsupportedStore(
            f"the {place.label} isolates transactions as {state.isolation} by default, and Outlast"
            " needs read committed; set default_transaction_isolation for its role",
            store=place.label,
        )
    if not state.is_ours and not state.tables:
        return 0
    version = (await one(connection, queries["find_version"]))[0] if state.is_ours else None
    if version is None:
        raise StoreCorrupt(
            f"the {place.label} holds tables, and nothing says that they are Outlast's; name"
            " another schema, or restore it from a backup",
            store=place.label,
        )
    if version > NEWEST:
        raise StoreFromTheFuture(
            f"the {place.label} has version {version} and this Outlast knows up to {NEWEST};"
            " upgrade Outlast",
            store=place.label,
            version=version,
        )
    return int(version)


async def insist(
    connection: Connection, place: StoreAddress, clock: Clock, queries: Mapping[str, Query]
) -> None:
    """Walk, and begin again where somebody at work was in the way.

    One process at a time, pauses included: many in turns would leave those at work no gap.
    """
    trial = RetryState(clock, TRIES)
    async with connection.transaction():
        await one(connection, queries["prepare_migration"])
        await one(connection, queries["lock_migration"], **{"class": place.number})
        await one(connection, queries["limit_locks"])
        while True:
            try:
                return await walk(connection, place, queries)
            except psycopg.errors.LockNotAvailable as error:
                if trial.is_hopeless:
                    raise in_the_way(place) from error
            except psycopg.Error as error:
                if trial.is_hopeless or not is_passing(error):
                    raise
            await trial.pause()


def in_the_way(place: StoreAddress) -> StoreUnavailable:
    return StoreUnavailable(
        f"the {place.label} cannot be brought up to date, as somebody else has its tables for"
        " long (a dump, a transaction left open); end that, see pg_stat_activity, and start again",
        store=place.label,
    )


async def walk(connection: Connection, place: StoreAddress, queries: Mapping[str, Query]) -> None:
    """Apply what is missing, all of it or nothing; who came second finds it done.

    A migration changes tables, and drops what functions are gone or take something else. The
    functions themselves hold nothing: those of today replace all others.
    """
    async with connection.transaction():
        version = await find_version(connection, place, queries)
        if not version:
            await connection.execute(queries["add_schema"].text)
        elif version < NEWEST:
            await connection.execute(queries["lock_sessions"].text)
        for number, page in enumerate(load_migrations()[version:], version + 1):
            await run(connection, page, place)
            async with psycopg.AsyncRawCursor(connection) as cursor:
                await cursor.execute(queries["add_migration"].text, [number, page.name])
        for page in load_functions():
            await run(connection, page, place)


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
