"""Erasing on PostgreSQL while others are at it: each is done before, or finds nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace
from postgres_proxy import Wire, through
from rival import later, opened, remains, rivalling
from scene import agent, running

from outlast import tool
from outlast.clock import Clock
from outlast.core.limit import Bound
from outlast.errors import SessionErased, UnknownSession
from outlast.log.verify import verify
from outlast.store import (
    Admission,
    Claim,
    Commit,
    Committed,
    FoldSnapshot,
    Permit,
    PermitRequest,
    Refused,
    Store,
)
from outlast.testing.contract.builder import (
    admit,
    admit_in_vain,
    commit,
    delta,
    effect,
    enlist,
    message,
    new_session,
    park,
    put,
    question,
    reply,
    start_and_claim,
    write,
    write_in_vain,
)
from outlast.testing.contract.erasure import large_result
from outlast.testing.contract.outbox import start_with_cursor
from outlast.testing.scripted import call, say

clock = Clock()

LOST = Refused("lease_lost")
LARGE = "x" * 100_000


def everything(claim: Claim) -> Commit:
    """A commit that writes to as many tables as one can."""
    return commit(
        claim,
        *(put("1"), question("req_1"), large_result()),
        effects=(replace(effect(claim), scope=f"session:{claim.session_id}"),),
        snapshot=FoldSnapshot(3, 1, b"state"),
        slices=FoldSnapshot(3, 1, b"state"),
        tells=True,
    )


COMMITS: dict[str, Callable[[Claim], Commit]] = {
    "plain": lambda claim: commit(claim, delta()),
    "parks": lambda claim: park(claim, delta()),
    "everything": everything,
    "no records": commit,
}


def permit_request(claim: Claim) -> PermitRequest:
    return PermitRequest(
        session_id=claim.session_id,
        lane=claim.lane,
        worker="w1",
        fence=claim.fence,
        call_id="t1.s1.c1",
        bounds=(Bound("bank", concurrency=1),),
    )


# Who owns a lane


@pytest.mark.parametrize("kind", COMMITS)
async def test_a_commit_that_waited_for_an_erasure_is_refused_and_leaves_nothing(
    postgres_url: str, kind: str
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        claim = await start_with_cursor(store, clock)
        await rival.erase(claim.session_id)
        writing = asyncio.create_task(store.log.commit([COMMITS[kind](claim)]))
        await rival.has_waiting()
        await rival.commit()
        assert await writing == [LOST]
        assert await remains(postgres_url) == {}


@pytest.mark.parametrize("kind", COMMITS)
async def test_an_erasure_that_waited_for_a_commit_takes_what_it_wrote(
    postgres_url: str, kind: str
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        claim = await start_with_cursor(store, clock)
        await rival.write(COMMITS[kind](claim))
        erasing = asyncio.create_task(store.log.erase(claim.session_id))
        await rival.has_waiting()
        await rival.commit()
        assert await erasing
        assert await remains(postgres_url) == {}
        assert await write_in_vain(store, commit(later(claim), delta())) == LOST


async def test_a_group_that_waited_for_an_erasure_is_written_but_for_one(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        claims: list[Claim] = []
        for _ in range(4):
            claims.append(await start_and_claim(store, clock, held=claims))
        await rival.erase(claims[1].session_id)
        kinds = (COMMITS["plain"], COMMITS["everything"], COMMITS["plain"], COMMITS["parks"])
        group = [make(claim) for make, claim in zip(kinds, claims, strict=True)]
        writing = asyncio.create_task(store.log.commit(group))
        await rival.has_waiting()
        await rival.commit()
        first, refused, *others = await writing
        assert refused == LOST
        assert all(isinstance(one, Committed) for one in (first, *others))


async def test_a_claim_does_not_wait_for_an_erasure_and_gets_nothing_of_it(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        await enlist(store, clock)
        session = (await admit(store, new_session(clock))).session_id
        await rival.erase(session)
        assert await store.work.claim("w1", 10) == []
        await rival.commit()
        assert await remains(postgres_url) == {}


async def test_an_erasure_waits_for_a_claim_and_its_owner_is_refused(postgres_url: str) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        await enlist(store, clock)
        session = (await admit(store, new_session(clock))).session_id
        [(given,)] = await rival.run("SELECT claim('w1', 9, '[]', NULL, 99, NULL, '{}')")
        [(session_id, tenant, *rest, _)] = given["claims"]
        claim = Claim(session_id, tenant, *rest)
        erasing = asyncio.create_task(store.log.erase(session))
        await rival.has_waiting()
        await rival.commit()
        assert await erasing
        assert await write_in_vain(store, commit(claim, delta())) == LOST
        assert await remains(postgres_url) == {}


async def test_a_wish_for_a_permit_does_not_wait_for_an_erasure_and_leaves_nothing(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        claim = await start_and_claim(store, clock)
        await rival.erase(claim.session_id)
        assert await store.limit.acquire([permit_request(claim)]) == [LOST]
        await rival.commit()
        assert await remains(postgres_url) == {}


async def test_an_erasure_waits_for_a_permit_and_gives_it_back(postgres_url: str) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        claim = await start_and_claim(store, clock)
        other = await start_and_claim(store, clock, held=[claim])
        await rival.acquire(permit_request(claim))
        erasing = asyncio.create_task(store.log.erase(claim.session_id))
        await rival.has_waiting()
        await rival.commit()
        assert await erasing
        assert await store.limit.acquire([permit_request(other)]) == [Permit(granted=True)]


async def test_a_free_idempotency_key_goes_with_the_session_that_had_it(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, delta(), effects=(effect(claim, state="free"),)))
        await store.log.erase(claim.session_id)
        assert await remains(postgres_url) == {}


# Who comes from outside


@pytest.mark.parametrize("kind", ["message", "reply"])
async def test_what_arrives_during_an_erasure_finds_no_session(
    postgres_url: str, kind: str
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        claim = await start_and_claim(store, clock)
        await write(store, park(claim, question("req_1"), status="waiting"))
        said: dict[str, Admission] = {
            "message": message(clock, claim.session_id, LARGE),
            "reply": reply(clock, claim.session_id, "req_1"),
        }
        await rival.erase(claim.session_id)
        arriving = asyncio.create_task(admit_in_vain(store, said[kind]))
        await rival.has_waiting()
        await rival.commit()
        assert isinstance(await arriving, UnknownSession)
        assert await remains(postgres_url) == {}


async def test_an_erasure_that_waited_for_an_arrival_takes_the_lane_that_it_made(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        session = (await admit(store, new_session(clock))).session_id
        await rival.admit(message(clock, session, LARGE, lane="side"))
        erasing = asyncio.create_task(store.log.erase(session))
        await rival.has_waiting()
        await rival.commit()
        assert await erasing
        assert await remains(postgres_url) == {}


async def test_of_many_who_erase_at_once_one_has_done_it(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        session = (await admit(one, new_session(clock))).session_id
        stores = [one, two] * 5
        done = await asyncio.gather(*(store.log.erase(session) for store in stores))
        assert sorted(done) == [False] * 9 + [True]


async def test_a_start_without_a_name_is_known_to_have_been_erased(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        start = new_session(clock)
        start = replace(start, dispatch_id=start.delivery_id)
        said = message(clock, start.session_id)
        said = replace(said, dispatch_id=said.delivery_id)
        await admit(store, start)
        await admit(store, said)
        await store.log.erase(start.session_id)
        assert isinstance(await admit_in_vain(store, start), SessionErased)
        assert isinstance(await admit_in_vain(store, said), SessionErased)
        assert isinstance(
            await admit_in_vain(store, message(clock, start.session_id)), UnknownSession
        )


async def test_an_erasure_whose_acknowledgement_is_lost_has_been_done(postgres_url: str) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        session = (await admit(store, new_session(clock))).session_id
        wire.loses_the_answer_to = b".erase("
        assert await store.log.erase(session)
        assert wire.lost.is_set()
        assert not await store.log.erase(session)


async def test_a_store_that_is_closed_finishes_an_erasure_that_is_under_way(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        session = (await admit(store, new_session(clock))).session_id
        await rival.run("SELECT 1 FROM sessions FOR UPDATE")
        erasing = asyncio.create_task(store.log.erase(session))
        await rival.has_waiting()
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        await rival.rollback()
        async with asyncio.timeout(60):
            assert await erasing
            await closing
        assert await remains(postgres_url) == {}


async def test_other_processes_hear_of_an_erasure_and_of_who_may_go_on(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        holder = await start_and_claim(one, clock)
        waiter = await start_and_claim(one, clock, held=[holder])
        await one.limit.acquire([permit_request(holder)])
        await one.limit.acquire([permit_request(waiter)])
        await write(one, park(waiter, delta(), awaits_permit=True))
        heard: asyncio.Queue[str] = asyncio.Queue()
        two.work.listen(lambda session_id, arrived: heard.put_nowait(session_id if arrived else ""))
        await until_heard(heard, "")  # of others from now on
        await until_heard(heard, (await admit(one, new_session(clock))).session_id)

        await one.log.erase(holder.session_id)

        await until_heard(heard, holder.session_id, waiter.session_id)


async def until_heard(heard: asyncio.Queue[str], *sessions: str) -> None:
    missing = set(sessions)
    async with asyncio.timeout(60):
        while missing:
            missing.discard(await heard.get())


# Who reads


READS: dict[str, Callable[[Store, Claim], Coroutine[Any, Any, object]]] = {
    "read": lambda store, claim: store.log.read(claim.session_id, 0),
    "read back": lambda store, claim: store.log.read_back(claim.session_id, 100),
    "load": lambda store, claim: store.log.load(claim.session_id, claim.lane),
}


@pytest.mark.parametrize("kind", READS)
async def test_a_reader_of_large_values_finds_an_erased_session_unknown(
    postgres_url: str, kind: str
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, large_result()))
        await rival.run("LOCK TABLE blobs IN ACCESS EXCLUSIVE MODE")
        reading = asyncio.create_task(READS[kind](store, claim))
        await rival.has_waiting()
        await rival.erase(claim.session_id)
        await rival.commit()
        with pytest.raises(UnknownSession):
            await reading


async def test_a_commit_whose_arrivals_were_erased_has_lost_its_lane(postgres_url: str) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        claim = await start_and_claim(store, clock)
        await admit(store, message(clock, claim.session_id, LARGE))
        await rival.run("LOCK TABLE blobs IN ACCESS EXCLUSIVE MODE")
        writing = asyncio.create_task(store.log.commit([commit(claim, delta())]))
        await rival.has_waiting()
        await rival.erase(claim.session_id)
        await rival.commit()
        assert await writing == [LOST]


# What verify says


@tool(approval="always")
async def refund(cents: int) -> str:
    return f"{LARGE}{cents}"


async def test_verify_finds_nothing_wrong_beside_an_erased_session(postgres_url: str) -> None:
    script = [call("refund", cents=5), say("done")]
    async with running(agent(script, tools=[refund]), store=postgres_url) as app:
        gone, left = [await app.start("a", LARGE) for _ in range(2)]
        for session in (gone, left):
            [request] = (await session.wait()).requests
            await session.answer(request.request_id, "approve")
            assert (await session.wait()).output == "done"
            await session.send("again")

        await app.store.log.erase(gone.id)

        assert await verify(app.store, left.id) == []
        with pytest.raises(UnknownSession):
            await verify(app.store, gone.id)
