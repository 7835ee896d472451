"""How many rows PostgreSQL reads: as few in a full database as in the empty one it planned in.

A function's plans are made once for a connection, and on the first day the server has counted
nothing yet. Where two indexes would do, it may take the wrong one then, and read all that a tenant
or a worker has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psycopg
from msgspec.structs import replace
from rival import opened

from holdfast.clock import Clock
from holdfast.core import record as r
from holdfast.store import Admission, Claim, Commit, Committed, Effect, Receipt
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.place import read_url
from holdfast.testing.store_contract.builder import (
    commit,
    delta,
    effect,
    enlist,
    message,
    new_session,
    places,
    put,
    question,
    reply,
    settled,
    turn_started,
)

MANY = 100
FEW = 10
"""How many rows of a table are read for one that is looked for: far fewer than there are."""

READ = """
SELECT t.relname, coalesce(t.seq_tup_read, 0) + coalesce(t.idx_tup_fetch, 0)
       + coalesce((SELECT sum(i.idx_tup_read) FROM pg_stat_user_indexes AS i
                    WHERE i.relid = t.relid), 0)
  FROM pg_stat_user_tables AS t
 WHERE t.schemaname = %s
"""

clock = Clock()


async def rows_read(url: str) -> dict[str, int]:
    """Return how many rows of each table were read by connections that are closed."""
    place = read_url(url)
    async with await psycopg.AsyncConnection.connect(place.direct) as connection:
        cursor = await connection.execute(READ, [place.schema])
        return {name: int(read) for name, read in await cursor.fetchall()}


class Office:
    """A worker's newest sessions, besides which it keeps the older, and how much it has written."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.claims: list[Claim] = []
        self.written = 0

    async def start(self, count: int) -> None:
        tokens = [clock.new_id("thread") for _ in range(count)]
        started = [new_session(clock, token=token) for token in tokens]
        await self._admit(started)
        self._first = {start.session_id: start.delivery_id for start in started}
        self.claims = [*await self._store.claim("w1", count, held=places(self.claims))]
        assert len(self.claims) == count

    async def work(self) -> None:
        """Write all kinds of things to each of them, in groups and alone."""
        await self._write(lambda claim: commit(claim, turn_started(self._first[claim.session_id])))
        await self._write(lambda claim: commit(claim, delta()))
        await self._write(lambda claim: commit(claim, delta()), alone=True)
        await self._write(lambda claim: commit(claim, put("a note")))
        await self._write(lambda claim: commit(claim, delta(), effects=(hold(claim),)))
        await self._write(lambda claim: commit(claim, question(asked_by(claim))))
        await self._admit([reply(clock, c.session_id, asked_by(c)) for c in self.claims])
        await self._admit([message(clock, claim.session_id) for claim in self.claims])
        await self._write(lambda claim: commit(claim, r.InputResolved(request_id=asked_by(claim))))
        await self._write(lambda claim: commit(claim, settled(self._first[claim.session_id])))

    async def _admit(self, admissions: Sequence[Admission]) -> None:
        assert all(isinstance(done, Receipt) for done in await self._store.admit(admissions))
        self.written += len(admissions)

    async def _write(self, make: Callable[[Claim], Commit], *, alone: bool = False) -> None:
        commits = [replace(make(claim), seen=1_000) for claim in self.claims]
        groups = [[one] for one in commits] if alone else [commits]
        for group in groups:
            assert all(isinstance(done, Committed) for done in await self._store.commit(group))
        self.claims = [replace(claim, number=claim.number + 1) for claim in self.claims]
        self.written += len(commits)


def asked_by(claim: Claim) -> str:
    return f"req_{claim.session_id}"


def hold(claim: Claim) -> Effect:
    return replace(effect(claim), key=claim.session_id)


async def test_a_full_database_is_read_no_more_than_the_empty_one_it_was_planned_in(
    postgres_url: str,
) -> None:
    before = await rows_read(postgres_url)
    async with opened(postgres_url) as store:
        await enlist(store, clock)
        office = Office(store)
        for count in (1, MANY):
            await office.start(count)
            await office.work()
    after = await rows_read(postgres_url)
    read = {name: rows - before.get(name, 0) for name, rows in after.items()}
    most = FEW * office.written
    assert {name: rows for name, rows in read.items() if rows > most} == {}
