"""Commits that meet another writer of the same session in PostgreSQL, alone and in a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from msgspec.structs import replace
from rival import TIMEOUT, Rival, looking, opened, rivalling

from outlast.clock import Clock
from outlast.core import record as r
from outlast.core.amount import NOTHING, Amounts, BudgetKey, BudgetTerms
from outlast.store import Claim, Commit, Committed, Refused
from outlast.stores.postgres import PostgresStore
from outlast.testing.contract.builder import (
    TENANT,
    admit,
    commit,
    delta,
    effect,
    message,
    park,
    read_all,
    settled,
    start_and_claim,
    turn_started,
)

clock = Clock()
kinds = pytest.mark.parametrize("kind", ["plain", "with a delivery", "with others"])


@pytest_asyncio.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with opened(postgres_url) as store:
        yield store


@pytest_asyncio.fixture
async def rival(postgres_url: str) -> AsyncIterator[Rival]:
    async with rivalling(postgres_url) as rival:
        yield rival


async def beside(store: PostgresStore, claim: Claim) -> Claim:
    """Return the claim of another lane of the same session."""
    await admit(store, message(clock, claim.session_id, lane="other"))
    [other] = await store.work.claim("w1", 10, held=[(claim.session_id, claim.lane)])
    return other


def following(claim: Claim) -> Claim:
    return replace(claim, number=claim.number + 1)


async def commits(store: PostgresStore, kind: str, claim: Claim, *held: Claim) -> list[Commit]:
    """Return what goes out in one of the ways that there are, the claim's own first."""
    [first, *_] = await store.listing.deliveries(claim.session_id)
    if kind == "with a delivery":
        return [commit(claim, turn_started(first.delivery_id))]
    if kind == "with others":
        other = await start_and_claim(store, clock, held=[claim, *held])
        return [commit(claim, delta()), commit(other, delta())]
    return [commit(claim, delta())]


@kinds
async def test_what_waited_for_another_lane_stands_behind_it(
    store: PostgresStore, rival: Rival, kind: str
) -> None:
    ours = await start_and_claim(store, clock)
    theirs = await beside(store, ours)
    wanted = await commits(store, kind, ours, theirs)
    await rival.write(commit(theirs, delta(), delta()))
    writing = asyncio.create_task(store.log.commit(wanted))
    await rival.has_waiting()
    await rival.commit()
    done = (await writing)[0]
    assert isinstance(done, Committed)
    assert done.first_offset == 6
    [again] = await store.log.commit([commit(following(ours), delta())])
    assert isinstance(again, Committed)
    assert again.first_offset == 7
    entries = await read_all(store, ours.session_id)
    assert [entry.offset for entry in entries] == list(range(1, 8))


@kinds
async def test_what_waited_for_its_lane_moves_it_on_all_the_same(
    store: PostgresStore, rival: Rival, kind: str
) -> None:
    claim = await start_and_claim(store, clock)
    wanted = await commits(store, kind, claim)
    await rival.run("UPDATE lanes SET ready_at = 5")  # as who has a permit to give does
    writing = asyncio.create_task(store.log.commit(wanted))
    await rival.has_waiting()
    await rival.commit()
    assert all(isinstance(done, Committed) for done in await writing)
    [again] = await store.log.commit([commit(following(claim), delta())])
    assert isinstance(again, Committed)


async def test_what_arrived_while_a_commit_waited_comes_with_its_answer(
    store: PostgresStore, rival: Rival
) -> None:
    claim = await start_and_claim(store, clock)
    await rival.admit(message(clock, claim.session_id))
    writing = asyncio.create_task(store.log.commit([commit(claim, delta())]))
    await rival.has_waiting()
    await rival.commit()
    [done] = await writing
    assert isinstance(done, Committed)
    assert (done.first_offset, [entry.offset for entry in done.arrivals]) == (4, [3])


async def test_a_lane_that_another_took_meanwhile_takes_no_more(
    store: PostgresStore, rival: Rival
) -> None:
    claim = await start_and_claim(store, clock)
    await rival.run("UPDATE lanes SET fence = fence + 1, worker = 'w2'")
    writing = asyncio.create_task(store.log.commit([commit(claim, delta())]))
    await rival.has_waiting()
    await rival.commit()
    [done] = await writing
    assert not isinstance(done, Committed)
    assert done.reason == "lease_lost"
    assert len(await read_all(store, claim.session_id)) == 2


async def test_the_same_commit_twice_is_written_once(store: PostgresStore) -> None:
    claim = await start_and_claim(store, clock)
    wanted = commit(claim, delta())
    [first], [second] = await store.log.commit([wanted]), await store.log.commit([wanted])
    assert first == second
    assert len(await read_all(store, claim.session_id)) == 3


async def test_a_commit_that_is_refused_has_moved_nothing(
    store: PostgresStore, postgres_url: str
) -> None:
    claim = await start_and_claim(store, clock)
    late = replace(commit(replace(claim, fence=claim.fence - 1), delta()), at=clock.now() + 60_000)
    async with looking(postgres_url) as look:
        before = await look("SELECT last_offset, last_at FROM sessions")
        assert await store.log.commit([late]) == [Refused("lease_lost")]
        assert await look("SELECT last_offset, last_at FROM sessions") == before
    [written] = await store.log.commit([commit(claim, delta())])
    assert isinstance(written, Committed)
    assert written.first_offset == before[0][0] + 1


async def test_a_store_is_closed_though_who_asked_for_a_commit_was_stopped(
    postgres_url: str, rival: Rival
) -> None:
    async with opened(postgres_url) as store:
        claim = await start_and_claim(store, clock)
        await rival.write(commit(claim, delta()))
        writing = asyncio.create_task(store.log.commit([commit(claim, delta())]))
        await rival.has_waiting()
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        writing.cancel()
        async with asyncio.timeout(TIMEOUT):
            await closing
        assert writing.cancelled()


async def test_what_waited_for_a_lone_commit_is_written_though_it_was_stopped(
    store: PostgresStore, rival: Rival
) -> None:
    claim = await start_and_claim(store, clock)
    other = await start_and_claim(store, clock, held=[claim])
    await rival.write(commit(claim, delta()))
    writing = asyncio.create_task(store.log.commit([commit(claim, delta())]))
    await rival.has_waiting()
    behind = asyncio.create_task(store.log.commit([commit(other, delta())]))
    await asyncio.sleep(0)
    writing.cancel()
    await rival.rollback()
    async with asyncio.timeout(TIMEOUT):
        [written] = await behind
    assert isinstance(written, Committed)


async def test_a_commit_of_an_erased_session_is_refused(store: PostgresStore) -> None:
    claim = await start_and_claim(store, clock)
    await store.log.erase(claim.session_id)
    for wanted in (commit(claim, delta()), park(claim, delta())):
        [done] = await store.log.commit([wanted])
        assert not isinstance(done, Committed)
        assert done.reason == "lease_lost"


async def test_lanes_of_one_session_are_written_by_several_at_once(
    store: PostgresStore, postgres_url: str
) -> None:
    first = await start_and_claim(store, clock)
    session = first.session_id
    for lane in ("a", "b", "c"):
        await admit(store, message(clock, session, lane=lane))
    claims = [first, *await store.work.claim("w1", 10, held=[(session, "main")])]

    async def keep_writing(writer: PostgresStore, claim: Claim) -> None:
        for number in range(claim.number, claim.number + 60):
            claim = replace(claim, number=number)
            [done] = await writer.log.commit([commit(claim, delta(), delta())])
            assert isinstance(done, Committed)
            claim = replace(claim, last_arrival=max([0, *(e.offset for e in done.arrivals)]))

    async def keep_saying(writer: PostgresStore) -> None:
        for number in range(60):
            await admit(writer, message(clock, session, lane=claims[number % 4].lane))

    async with AsyncExitStack() as stack:
        writers = [await stack.enter_async_context(opened(postgres_url)) for _ in claims]
        works = [keep_writing(*each) for each in zip(writers, claims, strict=True)]
        await asyncio.gather(keep_saying(store), *works)
    entries = await read_all(store, session)
    assert [entry.offset for entry in entries] == list(range(1, len(entries) + 1))
    assert len(entries) == 5 + 60 + 4 * 60 * 2


# Commits of one group that touch the same things


@pytest.mark.parametrize("what", ["token", "key"])
async def test_of_two_commits_in_one_group_that_take_the_same_thing_the_first_gets_it(
    store: PostgresStore, what: str
) -> None:
    first = await start_and_claim(store, clock)
    second = await start_and_claim(store, clock, held=[first])

    def take(claim: Claim) -> Commit:
        if what == "token":
            return commit(claim, r.SessionRekeyed(token="one"))
        return commit(claim, delta(), effects=(effect(claim),))

    done = await store.log.commit([take(first), take(second)])
    assert [isinstance(each, Committed) for each in done] == [True, False]
    counts = store.counts()
    assert counts["grouped"] - counts["groups"] > 0  # both went out together
    refused = done[1]
    assert isinstance(refused, Refused)
    assert refused.reason == ("token_taken" if what == "token" else "effect_taken")


async def test_a_lane_does_not_rest_for_what_comes_back_to_a_budget_in_the_same_group(
    store: PostgresStore,
) -> None:
    tenant, amounts = BudgetKey("tenant"), Amounts(tokens=60)
    terms = BudgetTerms(Amounts(tokens=100))
    await store.budget.set_budget(TENANT, tenant, terms, expected=None)
    holder = await start_and_claim(store, clock)
    waiter = await start_and_claim(store, clock, held=[holder])
    reserve = r.BudgetCharged(call_id="t1.s1", budgets=(tenant,), reserved=amounts)
    settle = replace(reserve, reserved=NOTHING - amounts)
    await store.log.commit([commit(holder, reserve, asks_budgets=True)])
    [state] = await store.budget.find_budgets(TENANT, [tenant])
    rests = park(waiter, awaits_budgets=((tenant, state.returns),))

    before = dict(store.counts())
    done = await store.log.commit([commit(following(holder), settle), rests])
    after = dict(store.counts())

    assert isinstance(done[0], Committed)
    assert isinstance(done[1], Refused)
    assert done[1].reason == "arrivals"
    # One group, at the first try: it is not tried in vain until its commits go out one by one.
    assert (after["groups"] - before["groups"], after["grouped"] - before["grouped"]) == (1, 2)


async def test_commits_of_one_group_to_one_session_stand_behind_one_another(
    store: PostgresStore,
) -> None:
    claim = await start_and_claim(store, clock)
    other = await beside(store, claim)
    group = [
        commit(claim, delta(), delta()),
        commit(other, delta()),
        replace(commit(following(claim), delta()), at=clock.now()),
    ]
    done = await store.log.commit(group)
    assert [each.first_offset for each in done if isinstance(each, Committed)] == [4, 6, 7]


async def test_a_delivery_that_one_commit_changes_twice_leaves_the_queue_once(
    store: PostgresStore,
) -> None:
    claim = await start_and_claim(store, clock)
    [first] = await store.listing.deliveries(claim.session_id)
    await admit(store, message(clock, claim.session_id))
    records = (turn_started(first.delivery_id), settled(first.delivery_id))
    [done] = await store.log.commit([commit(claim, *records)])
    assert isinstance(done, Committed)
    [changed, waiting] = await store.listing.deliveries(claim.session_id)
    assert (changed.state, changed.turn) == ("settled", "t1")
    assert changed.settled_offset == done.first_offset + 1
    assert waiting.state == "queued"
    [lane] = await store.listing.lanes(session_id=claim.session_id)
    assert lane.queued == 1
