"""How many rows PostgreSQL reads: as few in a full database as in the empty one it planned in.

A function's plans are made once for a connection, and on the first day the server has counted
nothing, or next to nothing. Where two indexes would do, it may take the wrong one then, and read
all that a tenant or a worker has; and where two tables are joined, it may begin at the larger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psycopg
import pytest
from msgspec.structs import replace
from rival import opened

from outlast.clock import Clock
from outlast.core import record as r
from outlast.store import (
    Admission,
    AdmissionReceipt,
    Claim,
    Commit,
    Committed,
    EffectClaim,
    FailureFilter,
    OpenFilter,
)
from outlast.stores.postgres import PostgresStore
from outlast.stores.postgres.url import read_url
from outlast.testing.contract.builder import (
    commit,
    delta,
    effect,
    end_of,
    enlist,
    message,
    new_session,
    park,
    places,
    put,
    question,
    reply,
    settled,
    turn_started,
)

MANY = 250
FEW = 25
"""How many entries of an index are read in one look: old versions of a row may still be there."""

INDEXES = """
SELECT indexrelname, idx_scan, idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = %s
"""
TABLES = "SELECT relname, seq_tup_read FROM pg_stat_user_tables WHERE schemaname = %s"
COUNT = "ANALYZE sessions, lanes, deliveries, dispatches, requests, tokens, tags, effects, log"

OF_CLAIMS = {"lanes_owned", "lanes_ready", "lanes_ready_of_tenant"}
"""The indexes of lists: a claim reads all that a worker has, and all that is ready."""

clock = Clock()


class Reads(NamedTuple):
    """What the server has read over connections that are closed by now."""

    looks: Counter[str]
    entries: Counter[str]
    without_index: Counter[str]


async def reads(url: str) -> Reads:
    place = read_url(url)
    async with await psycopg.AsyncConnection.connect(place.direct) as connection:
        indexes = await (await connection.execute(INDEXES, [place.schema])).fetchall()
        tables = await (await connection.execute(TABLES, [place.schema])).fetchall()
    looks = Counter({name: looks for name, looks, _ in indexes})
    entries = Counter({name: entries for name, _, entries in indexes})
    return Reads(looks, entries, Counter({name: rows or 0 for name, rows in tables}))


async def run(url: str, sql: str) -> None:
    async with await psycopg.AsyncConnection.connect(read_url(url).direct) as connection:
        await connection.execute(sql.encode())


class Office:
    """A worker's newest sessions; it keeps the older."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.claims: list[Claim] = []

    async def start(self, count: int) -> None:
        tokens = [clock.new_id("thread") for _ in range(count)]
        started = [new_session(clock, token=token) for token in tokens]
        await self._admit(started)
        self._first = {start.session_id: start.delivery_id for start in started}
        self.claims = [*await self._store.work.claim("w1", count, held=places(self.claims))]
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
        await self._write(
            lambda claim: commit(claim, r.RequestResolved(request_id=asked_by(claim)))
        )
        await self._write(lambda claim: commit(claim, settled(self._first[claim.session_id])))

    async def _admit(self, admissions: Sequence[Admission]) -> None:
        assert all(
            isinstance(done, AdmissionReceipt) for done in await self._store.log.admit(admissions)
        )

    async def _write(self, make: Callable[[Claim], Commit], *, alone: bool = False) -> None:
        commits = [
            replace(make(claim), seen=await end_of(self._store, claim.session_id))
            for claim in self.claims
        ]
        groups = [[one] for one in commits] if alone else [commits]
        for group in groups:
            assert all(isinstance(done, Committed) for done in await self._store.log.commit(group))
        self.claims = [replace(claim, number=claim.number + 1) for claim in self.claims]


def asked_by(claim: Claim) -> str:
    return f"req_{claim.session_id}"


def hold(claim: Claim) -> EffectClaim:
    return replace(effect(claim), key=claim.session_id)


@pytest.mark.parametrize("counted", [None, 0, 1], ids=["never", "when empty", "with one"])
async def test_a_full_database_is_read_no_more_than_the_empty_one_it_was_planned_in(
    new_url: str, counted: int | None
) -> None:
    async with opened(new_url) as store:
        await enlist(store, clock)
        office = Office(store)
        for before_this, count in enumerate((1, MANY)):
            if counted == before_this:
                await run(new_url, COUNT)
            await office.start(count)
            await office.work()
    read = await reads(new_url)
    wide = {name for name, entries in read.entries.items() if entries > FEW * read.looks[name]}
    assert wide - OF_CLAIMS == set()
    assert read.looks["lanes_owned"] < MANY  # not by each commit that goes alone
    assert read.without_index.total() < MANY


async def test_a_list_of_a_tenant_reads_nothing_of_what_others_have(new_url: str) -> None:
    async with opened(new_url) as store:
        await enlist(store, clock)
        await fail_and_ask(store, "ours", 3)
        await fail_and_ask(store, "others", MANY)
    await run(new_url, COUNT)
    before = await reads(new_url)

    async with opened(new_url) as store:
        listing = store.listing
        lists: dict[str, Sequence[object]] = {
            "sessions": await listing.sessions(tenant="ours"),
            "failed sessions": await listing.sessions(tenant="ours", failed=FailureFilter()),
            "tagged sessions": await listing.sessions(tenant="ours", tags={"season": "spring"}),
            "tagged in all tenants": await listing.sessions(tags={"whose": "ours"}),
            "lanes": await listing.lanes(tenant="ours"),
            "failed lanes": await listing.lanes(tenant="ours", failed=FailureFilter()),
            "open lanes": await listing.open_lanes(OpenFilter(), tenant="ours"),
            "requests": await listing.requests(tenant="ours"),
        }

    assert [name for name, found in lists.items() if len(found) not in (3, 6)] == []
    read = await reads(new_url)
    assert (read.entries - before.entries).total() < MANY
    assert (read.without_index - before.without_index).total() < MANY


async def test_a_list_of_a_queues_failures_reads_nothing_of_what_others_have(new_url: str) -> None:
    async with opened(new_url) as store:
        await enlist(store, clock)
        await fail_and_ask(store, "ours", 3, "reports")
        await fail_and_ask(store, "others", MANY, "mails")
    await run(new_url, COUNT)
    before = await reads(new_url)

    async with opened(new_url) as store:
        failed = FailureFilter(queue="reports")
        assert len(await store.listing.sessions(failed=failed)) == 3
        assert len(await store.listing.lanes(failed=failed, tenant="ours")) == 3

    read = await reads(new_url)
    assert (read.entries - before.entries).total() < MANY
    assert (read.without_index - before.without_index).total() < MANY


async def fail_and_ask(store: PostgresStore, tenant: str, number: int, queue: str = "") -> None:
    """Give a tenant sessions: of each two one rests after a failure, and one asks something."""
    tags = {"season": "spring", "whose": tenant}
    given: dict[str, Any] = {"tenant": tenant, "tags": tags, "queue": queue}
    await store.log.admit([new_session(clock, **given) for _ in range(2 * number)])
    claims = await store.work.claim("w1", 2 * number)
    broken = r.TurnFailed(turn="t1", error=r.Failure("BROKEN", "it did not work"))
    await store.log.commit([park(c, broken, status="failed") for c in claims[:number]])
    asking = [park(c, question(asked_by(c)), turn="t1") for c in claims[number:]]
    await store.log.commit(asking)
