"""Claims on PostgreSQL: fair among tenants, and as cheap behind a backlog as without."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from random import Random

import psycopg
import pytest
from rival import opened, rivalling

from outlast.clock import Clock
from outlast.core.limit import Bound
from outlast.store import Claim, Committed, PermitRequest
from outlast.stores.postgres import PostgresStore
from outlast.stores.postgres.pipeline import Answer, PipelinedConnection
from outlast.stores.postgres.statement import Statement
from outlast.stores.postgres.url import read_url
from outlast.stores.postgres.writer import LARGEST_WITH_LIMITS
from outlast.testing.contract.builder import (
    admit,
    commit,
    delta,
    enlist,
    new_session,
    park,
    places,
    write,
)

clock = Clock()

# As if so many sessions had been started by one tenant.
READY = """
INSERT INTO sessions (tenant, id, agent, mode, created_at, last_offset, last_at)
SELECT 'noisy', 'ses_' || n, 'support', 'task', 0, 2, 0 FROM generate_series(1, {count}) AS n;
INSERT INTO lanes (tenant, sid, lane, agent, last_arrival, ready_at, version, status)
SELECT tenant, sid, 'main', agent, 2, {ready_at}, 1, 'idle' FROM sessions WHERE tenant = 'noisy'
ON CONFLICT DO NOTHING;
ANALYZE;
"""


# As if so many calls of one tenant waited for one place.
WAITING = """
INSERT INTO permits (name, tenant, sid, lane, call_id, most, held, asked_at, rank)
SELECT 'lane:shop', 'noisy', 1000000 + n, 'main', 't1.s1', 1, false, 0, 0
  FROM generate_series(1, {count}) AS n;
ANALYZE permits;
"""


async def run(url: str, script: str) -> None:
    direct = read_url(url).direct
    async with await psycopg.AsyncConnection.connect(direct, autocommit=True) as connection:
        await connection.execute(script.encode())


async def start(store: PostgresStore, *tenants: str) -> None:
    for tenant in tenants:
        await admit(store, new_session(clock, tenant=tenant))
        await asyncio.sleep(0.002)  # so that each is ready at an instant of its own


async def test_tenants_take_turns(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await enlist(store, clock)
        await start(store, "a", "a", "a", "a", "b", "b", "c")
        claims = await store.work.claim("w1", 10)
        assert [claim.tenant for claim in claims] == ["a", "b", "c", "a", "b", "a", "a"]


async def test_a_tenant_with_lanes_at_work_comes_after_one_without(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await enlist(store, clock)
        await enlist(store, clock, "w2")
        await start(store, "a", "a")
        assert len(await store.work.claim("w2", 2)) == 2
        await start(store, "a", "b", "b", "b")
        first = await store.work.claim("w1", 3)
        assert [claim.tenant for claim in first] == ["b", "b", "a"]


async def test_lanes_of_the_dead_are_not_at_work(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await enlist(store, clock)
        await enlist(store, clock, "w2")
        await start(store, "a", "a")
        held = await store.work.claim("w2", 2)
        assert len(held) == 2
        for claim in held:  # ready at no time to come: they stay theirs
            await write(store, commit(claim, delta(), worker="w2", ready_at=10**15))
        await run(postgres_url, "UPDATE workers SET lease = 1, lease_until = 0 WHERE worker = 'w2'")
        await start(store, "a", "b", "b")
        claims = await store.work.claim("w1", 3)
        assert [claim.tenant for claim in claims] == ["a", "b", "b"]


async def test_a_backlog_of_one_tenant_holds_up_no_other(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await run(postgres_url, READY.format(count=3_000, ready_at=5))
        await enlist(store, clock)
        await start(store, "quiet", "shy")
        claims = await store.work.claim("w1", 4)
        assert sorted(claim.tenant for claim in claims) == ["noisy", "noisy", "quiet", "shy"]


async def test_workers_that_claim_at_once_from_a_backlog_all_get_some(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        await run(postgres_url, READY.format(count=1_000, ready_at=5))
        await enlist(one, clock, "w1")
        await enlist(two, clock, "w2")
        for _ in range(10):
            mine, theirs = await asyncio.gather(one.work.claim("w1", 20), two.work.claim("w2", 20))
            assert (len(mine), len(theirs)) == (20, 20)
            assert not set(places(mine)) & set(places(theirs))
            for store, worker, claims in ((one, "w1", mine), (two, "w2", theirs)):
                parked = [park(claim, worker=worker, seen=2) for claim in claims]
                await store.log.commit(parked)


@pytest.mark.parametrize("ready_at", ["NULL", "5"], ids=["parked", "ready"])
async def test_a_claim_reads_no_more_lanes_than_it_needs(postgres_url: str, ready_at: str) -> None:
    async with opened(postgres_url) as store:
        await run(postgres_url, READY.format(count=5_000, ready_at=ready_at))
        await enlist(store, clock)
        await start(store, "a")
        direct = read_url(postgres_url).direct
        async with await psycopg.AsyncConnection.connect(direct) as connection:
            for _ in range(7):
                await connection.execute("SELECT claim('w1', 10, '[]', NULL, 99, NULL, '{}')")
            cursor = await connection.execute(
                "SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables"
                " WHERE relname = 'lanes' AND schemaname = %s",
                [read_url(postgres_url).schema],
            )
            [(scans, fetched)] = await cursor.fetchall()
        assert scans == 0
        assert fetched < 5_000


async def test_processes_that_claim_different_lanes_at_once_keep_an_agents_limit(
    postgres_url: str,
) -> None:
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(postgres_url)) for _ in range(8)]
        for number, store in enumerate(stores):
            await enlist(store, clock, f"w{number}")
        await run(postgres_url, READY.format(count=500, ready_at=5))
        await run(postgres_url, "UPDATE lanes SET lane = 'lane' || sid % 8")
        for _ in range(10):
            claims = await asyncio.gather(
                *(
                    store.work.claim(f"w{n}", 10, lanes=[f"lane{n}"], most={"support": 7})
                    for n, store in enumerate(stores)
                )
            )
            assert sum(map(len, claims)) == 7
            for number, (store, own) in enumerate(zip(stores, claims, strict=True)):
                await store.log.commit([park(claim, worker=f"w{number}") for claim in own])


# Limits

ONE = Bound("mutex:shop", concurrency=1)


def permit_request(claim: Claim, worker: str) -> PermitRequest:
    return PermitRequest(
        session_id=claim.session_id,
        lane=claim.lane,
        worker=worker,
        fence=claim.fence,
        call_id="t1.s1.c1",
        bounds=(ONE,),
    )


async def test_processes_that_ask_at_once_get_no_more_permits_than_there_are(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        await enlist(one, clock, "w1")
        await enlist(two, clock, "w2")
        for round_ in range(10):
            await start(one, "a", "b")
            [mine], [theirs] = await one.work.claim("w1", 1), await two.work.claim("w2", 1)
            asked = await asyncio.gather(
                one.limit.acquire([permit_request(mine, "w1")]),
                two.limit.acquire([permit_request(theirs, "w2")]),
            )
            granted = [permit for [permit] in asked if permit.granted]  # type: ignore[union-attr]
            assert len(granted) == 1, round_
            freed = {"frees": ("t1.s1.c1",)}
            await write(one, park(mine, worker="w1", **freed))
            await write(two, park(theirs, worker="w2", **freed))


async def test_no_limit_is_held_while_something_large_is_on_its_way(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[tuple[bool, int]] = []
    send = PipelinedConnection.send

    def noting(link: PipelinedConnection, statements: Sequence[Statement]) -> Answer:
        holds = any(b"acquire" in statement.text for statement in statements)
        sizes = [len(value or b"") for statement in statements for value in statement.values]
        groups.append((holds, sum(sizes)))
        return send(link, statements)

    large = Random(7).randbytes(LARGEST_WITH_LIMITS).hex()
    async with opened(postgres_url) as store:
        await enlist(store, clock, "w1")
        await start(store, "a", "b")
        first, second = await store.work.claim("w1", 2)
        monkeypatch.setattr(PipelinedConnection, "send", noting)

        await asyncio.gather(
            store.limit.acquire([permit_request(first, "w1")]),
            admit(store, new_session(clock)),
            admit(store, new_session(clock, large)),
            store.limit.acquire([permit_request(second, "w1")]),
        )

        asked = [size for holds, size in groups if holds]
        assert len(asked) == 2
        assert max(asked) < LARGEST_WITH_LIMITS < max(size for _, size in groups)


async def test_a_permit_given_back_as_somebody_comes_to_rest_never_leaves_him_asleep(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        await enlist(one, clock, "w1")
        await enlist(two, clock, "w2")
        for _ in range(20):
            await start(one, "a", "b")
            [mine], [theirs] = await one.work.claim("w1", 1), await two.work.claim("w2", 1)
            await one.limit.acquire([permit_request(mine, "w1")])
            await two.limit.acquire([permit_request(theirs, "w2")])
            freed = park(mine, delta(), worker="w1", frees=("t1.s1.c1",))
            resting = park(theirs, delta(), worker="w2", awaits_permit=True)
            _, [rested] = await asyncio.gather(one.log.commit([freed]), two.log.commit([resting]))
            if isinstance(rested, Committed):
                [again] = await two.work.claim("w2", 10)
                assert again.session_id == theirs.session_id
                theirs = again
            await write(two, park(theirs, worker="w2", frees=("t1.s1.c1",)))


@pytest.mark.parametrize("slices_seen", [None, 0], ids=["plain", "by itself"])
async def test_who_comes_late_to_a_lane_at_rest_does_not_keep_it_from_being_woken(
    postgres_url: str, slices_seen: int | None
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        await enlist(store, clock)
        await start(store, "a", "b")
        mine, late = await store.work.claim("w1", 2)
        [theirs] = await store.work.claim("w1", 2, held=places([mine]))
        await store.limit.acquire([permit_request(mine, "w1")])
        await store.limit.acquire([permit_request(theirs, "w1")])
        await write(store, park(theirs, delta(), awaits_permit=True))

        await rival.write_late(
            commit(late, delta(), slices_seen=slices_seen)
        )  # and is not yet gone
        await write(store, commit(mine, delta(), frees=("t1.s1.c1",)))

        [woken] = await store.work.claim("w1", 2, held=places([mine]))
        assert woken.session_id == theirs.session_id


async def test_a_place_is_found_by_index_however_many_wait(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await enlist(store, clock)
        await start(store, "a", "b")
        mine, theirs = await store.work.claim("w1", 2)
        await store.limit.acquire([permit_request(mine, "w1")])
        await run(postgres_url, WAITING.format(count=5_000))
        await store.limit.acquire([permit_request(theirs, "w1")])
        direct = read_url(postgres_url).direct
        async with await psycopg.AsyncConnection.connect(direct) as connection:
            for _ in range(7):
                await connection.execute("SELECT wake_grantable(ARRAY[%s])", [ONE.name])
                await connection.execute("SELECT pid FROM waiting_calls(%s, 1)", [ONE.name])
            cursor = await connection.execute(
                "SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables"
                " WHERE relname = 'permits' AND schemaname = %s",
                [read_url(postgres_url).schema],
            )
            [(scans, fetched)] = await cursor.fetchall()
        assert scans == 0
        assert fetched < 1_000
