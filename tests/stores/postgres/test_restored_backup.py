"""A dump that is restored while the server and a worker run: the worker notices, as at a failover.

The guide says to stop all processes before. Who does not has the same server with the same
timeline, and tables of which some rows are older.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from psycopg import sql
from rival import opened

from outlast.clock import Clock
from outlast.core import record as r
from outlast.engine.counters import WorkerCounters
from outlast.engine.lane_folds import HistoryChanged
from outlast.engine.owned_lane import OwnedLane
from outlast.store import Claim, Store
from outlast.stores.postgres import PostgresStore
from outlast.stores.postgres.url import read_url
from outlast.testing.contract.builder import (
    admit,
    delta,
    end_of,
    enlist,
    message,
    new_session,
    turn_started,
)

clock = Clock()
LEASE = 60_000


class Dump:
    """All rows of a store's tables as they were, which are put back into emptied tables."""

    def __init__(self, url: str) -> None:
        place = read_url(url)
        self._conninfo, self._schema = place.direct, place.schema
        self._names: list[str] = []

    def make(self) -> None:
        with psycopg.connect(self._conninfo) as connection:
            rows = connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = %s", [self._schema]
            )
            self._names = [name for (name,) in rows]
            self._run(connection, "CREATE SCHEMA {copies}")
            for name in self._names:
                self._run(connection, "CREATE TABLE {copy} AS TABLE {table}", name)

    def restore(self) -> None:
        with psycopg.connect(self._conninfo) as connection:
            for name in self._names:
                self._run(connection, "TRUNCATE {table}", name)
                put = "INSERT INTO {table} OVERRIDING SYSTEM VALUE TABLE {copy}"
                self._run(connection, put, name)
            self._run(connection, "DROP SCHEMA {copies} CASCADE")

    def _run(
        self, connection: psycopg.Connection[tuple[object, ...]], text: str, name: str = ""
    ) -> None:
        copies = f"{self._schema}_dump"
        places = {
            "copies": sql.Identifier(copies),
            "copy": sql.Identifier(copies, name or "-"),
            "table": sql.Identifier(self._schema, name or "-"),
        }
        connection.execute(sql.SQL(text).format(**places))


@asynccontextmanager
async def lane_in_mid_turn(url: str) -> AsyncIterator[tuple[PostgresStore, OwnedLane, Dump]]:
    """A lane whose owner has begun a turn, all of it in the dump."""
    async with opened(url) as store:
        await enlist(store, clock, lease=LEASE)
        receipt = await admit(store, new_session(clock))
        lane = await claim_again(store)
        began = r.ModelStarted(call_id="t1.s1", attempt=1)
        lane.write([turn_started(receipt.delivery_id), began])
        await lane.flush()
        dump = Dump(url)
        dump.make()
        yield store, lane, dump


async def claim_again(store: Store) -> OwnedLane:
    [claim] = await store.work.claim("w1", 10)
    return await own(store, claim)


async def own(store: Store, claim: Claim) -> OwnedLane:
    lane = OwnedLane(claim, "w1", store, clock, WorkerCounters(store.counts))
    await lane.folds.load()
    return lane


async def test_a_message_in_the_place_of_a_lost_one_is_taken(postgres_url: str) -> None:
    """The owner's fence, number and end of the log are those of the restored rows."""
    async with lane_in_mid_turn(postgres_url) as (store, lane, dump):
        lost = await admit(store, message(clock, lane.session_id, "two"))
        await lane.catch_up()
        dump.restore()
        kept = await admit(store, message(clock, lane.session_id, "three"))
        assert kept.offset == lost.offset
        lane.write([delta("of a turn that goes on")])
        with pytest.raises(HistoryChanged):
            await lane.flush()
        assert await end_of(store, lane.session_id) == kept.offset
        again = await claim_again(store)
        assert kept.delivery_id in str(again.folds.state)
        assert lost.delivery_id not in str(again.folds.state)


async def test_an_owner_that_has_lost_nothing_goes_on_in_the_same_turn(postgres_url: str) -> None:
    async with lane_in_mid_turn(postgres_url) as (store, lane, dump):
        dump.restore()
        end = await end_of(store, lane.session_id)
        lane.write([delta("of a turn that goes on")])
        assert await lane.flush() == end + 1
