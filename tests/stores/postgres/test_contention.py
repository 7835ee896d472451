"""Many processes at the same sessions of one PostgreSQL: nobody ever waits in a circle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack
from random import Random
from uuid import uuid4

import psycopg
import pytest
from msgspec.structs import replace
from rival import looking, opened, remains, rivalling

from outlast.clock import Clock
from outlast.core import record as r
from outlast.core.limit import Bound
from outlast.errors import UnknownSession
from outlast.store import (
    Admission,
    AdmissionReceipt,
    Claim,
    Commit,
    Committed,
    Permit,
    PermitRequest,
    Refused,
)
from outlast.stores.postgres import PostgresStore
from outlast.testing.contract.builder import (
    commit,
    delta,
    enlist,
    message,
    new_session,
    park,
)
from outlast.testing.contract.outbox import HOOK, letter

clock = Clock()

ROUNDS = 6
WORKERS = 3
SESSIONS = 8
VALUES = [f'"{letter * 70_000}"' for letter in "abcde"]
LIMITS = [Bound(name, concurrency=2) for name in ("bank", "shop")]
OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@pytest.fixture
def database(postgres_server: str) -> Iterator[str]:
    """A store in a database of its own, whose deadlocks are counted by itself."""
    name = f"contention_{uuid4().hex}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield f"{postgres_server.rpartition('/')[0]}/{name}?options=-csearch_path%3Doutlast"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


class Crowd:
    """Workers on connections of their own, dispatchers, and one that erases."""

    def __init__(self, stores: Sequence[PostgresStore], chance: Random) -> None:
        self.stores = stores
        self.chance = chance
        self.sessions: Sequence[str] = ()

    async def round(self) -> None:
        """Have sessions started, and everything done to them at once."""
        outbox = (HOOK, replace(HOOK, name="audit"))
        starts = [new_session(clock, VALUES[0], outbox=outbox) for _ in range(WORKERS * SESSIONS)]
        await self.stores[0].log.admit(starts)
        claims = [await store.work.claim(f"w{n}", SESSIONS) for n, store in enumerate(self.workers)]
        self.sessions = [claim.session_id for own in claims for claim in own]
        works: list[Awaitable[None]] = []
        for number, own in enumerate(claims):
            works += [self.work(number, own), self.ask_for_permits(number, own)]
        works += [self.tell_outside(store) for store in self.stores]
        works += [self.interrupt(self.sessions)]
        works += [self.erase([s for s in self.sessions if self.chance.random() < 0.7])]
        await asyncio.gather(*works)

    @property
    def workers(self) -> Sequence[PostgresStore]:
        return self.stores[:WORKERS]

    async def work(self, number: int, claims: Sequence[Claim]) -> None:
        """Commit to all lanes together, again and again."""
        for step in range(6):
            wanted = [self.next_commit(claim, number, step) for claim in claims]
            self.chance.shuffle(wanted)
            for done in await self.stores[number].log.commit(wanted):
                assert isinstance(done, Committed) or done.reason in ("lease_lost", "arrivals")

    def next_commit(self, claim: Claim, number: int, step: int) -> Commit:
        chosen = self.chance.sample(VALUES, self.chance.randint(0, 2))
        values = [r.ToolCompleted(call_id="c", attempt=1, value=value) for value in chosen]
        claim = replace(claim, number=claim.number + step)
        make = park if step == 5 else commit
        records: list[r.AnyRecord] = [delta(), *values]
        return make(
            claim,
            *records,
            worker=f"w{number}",
            tells=self.chance.random() < 0.7,
            frees=("t1.s1.c1",) if step > 2 else (),
            awaits_permit=step == 2 and self.chance.random() < 0.5,
            sends=self.letters(claim) if self.chance.random() < 0.6 else (),
        )

    def letters(self, claim: Claim) -> tuple[Admission, ...]:
        """What is said to sessions of all workers, and the start of a session of its own."""
        others = self.chance.sample(self.sessions, 3)
        said = [message(clock, other, self.chance.choice(VALUES)) for other in others]
        child = new_session(clock, VALUES[2], parent=claim.session_id)
        return (*said, child) if self.chance.random() < 0.3 else tuple(said)

    async def ask_for_permits(self, number: int, claims: Sequence[Claim]) -> None:
        for claim in claims:
            request = PermitRequest(
                session_id=claim.session_id,
                lane=claim.lane,
                worker=f"w{number}",
                fence=claim.fence,
                call_id="t1.s1.c1",
                bounds=tuple(LIMITS),
            )
            [permit] = await self.stores[number].limit.acquire([request])
            assert isinstance(permit, Permit | Refused)

    async def tell_outside(self, store: PostgresStore) -> None:
        for _ in range(8):
            for taken in await store.outbox.take(5, 60_000):
                dead = [letter(taken, taken.position + 1)]
                await store.outbox.settle(
                    taken, position=taken.position + 1, again_at=None, dead=dead
                )

    async def interrupt(self, sessions: Sequence[str]) -> None:
        store = self.stores[-1]
        said = [message(clock, self.chance.choice(sessions), VALUES[1]) for _ in range(20)]
        for done in await store.log.admit(said):
            assert isinstance(done, AdmissionReceipt | UnknownSession)

    async def erase(self, sessions: Sequence[str]) -> None:
        stores = self.stores[-2:]
        for number in range(0, len(sessions), 2):
            pair = zip(stores, sessions[number : number + 2], strict=False)
            assert all(await asyncio.gather(*(store.log.erase(one) for store, one in pair)))


async def stores_of(url: str, stack: AsyncExitStack) -> AsyncIterator[PostgresStore]:
    for _ in range(WORKERS + 2):
        yield await stack.enter_async_context(opened(url))


async def deadlocks(url: str) -> int:
    """Count them when all others have left: that is when the last are added."""
    async with looking(url) as look, asyncio.timeout(60):
        while (await look(OTHERS))[0][0] > 1:  # noqa: ASYNC110 - only the server knows
            await asyncio.sleep(0.01)
        if int((await look("SHOW server_version_num"))[0][0]) < 150_000:
            await asyncio.sleep(2)  # up to version 14 a process of its own adds them, later
        return int((await look(DEADLOCKS))[0][0])


async def test_commits_that_tell_and_send_takes_settlements_and_erasures_never_deadlock(
    database: str,
) -> None:
    async with AsyncExitStack() as stack:
        stores = [store async for store in stores_of(database, stack)]
        for number in range(WORKERS):
            await enlist(stores[number], clock, f"w{number}")
        crowd = Crowd(stores, Random(4))
        for _ in range(ROUNDS):
            await crowd.round()
        left = await stores[0].listing.sessions(limit=1000)
        living = {info.session_id for info in left}
        orphans = {info.session_id for info in left if info.parent and info.parent not in living}
        assert orphans
        assert set(await stores[0].log.find_orphans(1000)) == orphans
        for info in left:
            assert len((await stores[0].log.read(info.session_id, 0, 10_000)).entries) == info.end
            assert await stores[0].log.erase(info.session_id)
        assert await remains(database) == {}
    assert await deadlocks(database) == 0


async def test_calls_that_ask_under_limits_in_any_order_never_deadlock(database: str) -> None:
    names = ("bank", "shop", "street", "town")
    async with AsyncExitStack() as stack:
        one, two, *_ = [store async for store in stores_of(database, stack)]
        for number, store in enumerate((one, two)):
            await enlist(store, clock, f"w{number}")
        await one.log.admit([new_session(clock) for _ in range(2 * len(names))])
        own = [await store.work.claim(f"w{n}", len(names)) for n, store in enumerate((one, two))]
        await asyncio.gather(
            ask_and_give_back(one, "w0", own[0], names),
            ask_and_give_back(two, "w1", own[1], names[::-1]),
        )
    assert await deadlocks(database) == 0


async def ask_and_give_back(
    store: PostgresStore, worker: str, claims: Sequence[Claim], names: Sequence[str]
) -> None:
    """Have each lane ask under a limit of its own, all at once, again and again."""
    for step in range(10):
        requests = [
            PermitRequest(
                session_id=claim.session_id,
                lane=claim.lane,
                worker=worker,
                fence=claim.fence,
                call_id="t1.s1.c1",
                bounds=(Bound(name, concurrency=1),),
            )
            for claim, name in zip(claims, names, strict=True)
        ]
        await asyncio.gather(*(store.limit.acquire([request]) for request in requests))
        given_back = [
            commit(
                replace(claim, number=claim.number + step),
                delta(),
                worker=worker,
                frees=("t1.s1.c1",),
            )
            for claim in claims
        ]
        await store.log.commit(given_back)


async def test_admissions_that_count_several_tenants_never_deadlock(database: str) -> None:
    chance = Random(1)
    async with AsyncExitStack() as stack:
        one, two, *_ = [store async for store in stores_of(database, stack)]
        for _ in range(10):
            starts = [
                new_session(clock, tenant=chance.choice("abcd"), most_queued_of_tenant=10_000)
                for _ in range(40)
            ]
            await asyncio.gather(one.log.admit(starts[:20]), two.log.admit(starts[20:]))
    assert await deadlocks(database) == 0


async def test_a_deadlock_would_be_counted(database: str) -> None:
    """What the test above relies on."""
    async with rivalling(database) as one, rivalling(database) as two:
        for number, rival in enumerate((one, two)):
            await rival.run("SET deadlock_timeout = '10ms'")
            await rival.run(f"SELECT pg_advisory_xact_lock({number})")
        waiting = asyncio.create_task(one.run("SELECT pg_advisory_xact_lock(1)"))
        await two.has_waiting()
        try:
            await two.run("SELECT pg_advisory_xact_lock(0)")
            await two.rollback()
            await waiting
        except psycopg.errors.DeadlockDetected:
            await two.rollback()
            await asyncio.gather(waiting, return_exceptions=True)
    assert await deadlocks(database) == 1
