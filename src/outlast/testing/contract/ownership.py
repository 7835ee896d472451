"""Ownership of a lane: one living worker has it, until its lease runs out or its death is seen."""

import asyncio

from msgspec.structs import replace

from outlast.core.instant import date_of
from outlast.core.record import FORMAT
from outlast.store import Claim, Renewal, Store, WorkerInfo
from outlast.store.work import FIRST_PAUSE
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    AGENT,
    LEASE,
    admit,
    claim_one,
    commit,
    delta,
    end_of,
    enlist,
    message,
    new_session,
    park,
    places,
    start_and_claim,
    write,
    write_in_vain,
)
from outlast.testing.contract.store_under_test import StoreUnderTest


class OwnershipContract(StoreUnderTest):
    async def test_a_claim_says_what_was_claimed(self, store: Store, clock: ManualClock) -> None:
        await enlist(store, clock)
        receipt = await admit(store, new_session(clock, tenant="acme", agent="clerk"))
        claim = await claim_one(store)
        assert claim == Claim(
            receipt.session_id,
            "acme",
            "main",
            "clerk",
            fence=1,
            number=0,
            last_arrival=2,
            size=claim.size,
            epoch=claim.epoch,
        )

    async def test_a_worker_that_leaves_what_was_there_is_given_only_what_something_comes_to(
        self, store: Store, clock: ManualClock
    ) -> None:
        asleep = await start_and_claim(store, clock)
        await write(store, park(asleep, ready_at=store.clock.latest() + 500))
        left, sent = [await admit(store, new_session(clock)) for _ in range(2)]
        clock.advance(2)
        found = await store.work.find_unfinished([AGENT], None, ["w1"])
        assert found.sessions == {AGENT: 2}
        info = WorkerInfo(
            worker="w2",
            host="here",
            pid=1,
            started_at=date_of(found.now),
            arrived_since=date_of(found.now),
        )
        await store.work.enlist(info, LEASE)
        clock.advance(1_000)  # so that the timer of an old session is due, too

        assert await store.work.claim("w2", 10) == []
        started = await admit(store, new_session(clock))
        await admit(store, message(clock, sent.session_id))
        given = await store.work.claim("w2", 10)
        assert {claim.session_id for claim in given} == {started.session_id, sent.session_id}
        rest = await store.work.claim("w1", 10)
        assert {claim.session_id for claim in rest} == {left.session_id, asleep.session_id}
        [other] = [each for each in await store.work.workers() if each.worker == "w2"]
        assert other.arrived_since == info.arrived_since

    async def test_what_is_ready_and_carried_by_no_living_worker_is_unfinished(
        self, store: Store, clock: ManualClock
    ) -> None:
        nothing = await store.work.find_unfinished([AGENT, "clerk"], None, [])
        assert (nothing.sessions, nothing.oldest_at, nothing.is_whole) == ({}, None, True)

        claim = await start_and_claim(store, clock)
        await write(store, park(await start_and_claim(store, clock, held=[claim])))
        began = store.clock.earliest()
        for agent in ("clerk", "clerk", "other"):
            await admit(store, new_session(clock, agent=agent))
        clock.advance(5_000)

        alive = await store.work.find_unfinished([AGENT, "clerk"], None, ["w1"])
        assert alive.sessions == {"clerk": 2}
        assert alive.oldest_at is not None
        assert began <= alive.oldest_at <= alive.now - 4_990
        assert (await store.work.find_unfinished(["clerk"], ["bulk-*"], [])).sessions == {}
        dead = await store.work.find_unfinished([AGENT, "clerk"], ["ma*"], [])
        assert dead.sessions == {AGENT: 1, "clerk": 2}

    async def test_what_is_ready_of_agents_that_no_worker_serves_is_unserved(
        self, store: Store, clock: ManualClock
    ) -> None:
        for agent in ("gone", "gone", "clerk", AGENT):
            await admit(store, new_session(clock, agent=agent))
        info = WorkerInfo(
            worker="w2", host="here", pid=1, started_at=date_of(clock.now()), agents=("clerk",)
        )
        await store.work.enlist(info, LEASE)
        assert (await store.work.find_unfinished([AGENT], None, [])).unserved == {"gone": 2}

        await store.work.drain("w2")
        found = await store.work.find_unfinished([AGENT, "gone"], None, [])
        assert found.unserved == {"clerk": 1}

    async def test_a_lane_is_ready_when_its_time_has_come_by_the_stores_own_clock(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        ready_at = store.clock.latest() + 1_000
        await write(store, park(claim, ready_at=ready_at))

        clock.advance(999)
        assert store.clock.earliest() < ready_at
        assert await store.work.claim("w1", 10) == []

        clock.advance(1)
        assert await store.work.claim("w1", 10) != []
        assert ready_at <= store.clock.earliest() <= store.clock.date() <= store.clock.latest()

    async def test_a_claim_writes_no_record(self, store: Store, clock: ManualClock) -> None:
        claim = await start_and_claim(store, clock)
        assert await end_of(store, claim.session_id) == 2

    async def test_a_lane_whose_owner_lives_is_not_given_to_another(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await enlist(store, clock, "w2")
        await admit(store, message(clock, claim.session_id))
        assert not await store.work.claim("w2", 10)

    async def test_of_workers_that_claim_at_once_each_lane_goes_to_one(
        self, store: Store, clock: ManualClock
    ) -> None:
        workers = ["w1", "w2", "w3", "w4"]
        for worker in workers:
            await enlist(store, clock, worker)
        started = {(await admit(store, new_session(clock))).session_id for _ in range(20)}
        claims = await asyncio.gather(*(store.work.claim(worker, 20) for worker in workers))
        given = [claim.session_id for some in claims for claim in some]
        assert sorted(given) == sorted(started)

    async def test_no_more_lanes_are_given_than_asked_for(
        self, store: Store, clock: ManualClock
    ) -> None:
        await enlist(store, clock)
        for _ in range(5):
            await admit(store, new_session(clock))
        first = await store.work.claim("w1", 3)
        rest = await store.work.claim("w1", 3, held=places(first))
        assert (len(first), len(rest)) == (3, 2)
        assert not set(places(first)) & set(places(rest))

    async def test_lanes_that_are_ready_for_longest_come_first(
        self, store: Store, clock: ManualClock
    ) -> None:
        one = await start_and_claim(store, clock)
        two = await start_and_claim(store, clock, held=[one])
        three = await start_and_claim(store, clock, held=[one, two])
        for claim, wait in ((one, 300), (two, 100), (three, 200)):
            await write(store, park(claim, ready_at=clock.now() + wait))
        clock.advance(1_000)
        claims = [await claim_one_of_many(store) for _ in range(3)]
        assert claims == [two.session_id, three.session_id, one.session_id]

    async def test_a_lane_is_not_given_before_its_instant(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, park(claim, ready_at=clock.now() + 1_000))
        clock.advance(999)
        assert not await store.work.claim("w1", 10)
        clock.advance(1)
        assert (await claim_one(store)).session_id == claim.session_id

    async def test_a_parked_lane_is_not_given_however_long_it_waits(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, park(claim))
        clock.advance(10 * 365 * 24 * 3_600_000)
        assert not await store.work.claim("w1", 10)

    async def test_each_claim_raises_the_fence(self, store: Store, clock: ManualClock) -> None:
        claim = await start_and_claim(store, clock)
        fences = [claim.fence]
        for _ in range(3):
            await write(store, park(claim, ready_at=clock.now()))
            claim = await claim_one(store)
            fences.append(claim.fence)
        assert fences == sorted(set(fences))
        assert claim.number == 3

    async def test_a_claim_whose_acknowledgement_was_lost_is_handed_out_again(
        self, store: Store, clock: ManualClock
    ) -> None:
        lost = await start_and_claim(store, clock)
        (again,) = await store.work.claim("w1", 10)
        assert places([again]) == places([lost])
        assert again.fence > lost.fence

    async def test_a_lane_that_the_worker_holds_is_not_handed_out_again(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await admit(store, message(clock, claim.session_id))
        assert not await store.work.claim("w1", 10, held=places([claim]))

    async def test_a_held_lane_is_not_handed_out_again_even_if_the_lease_ran_out(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        clock.advance(LEASE + 1)
        assert not await store.work.claim("w1", 10, held=places([claim]))

    async def test_lanes_of_other_agents_are_left_alone(
        self, store: Store, clock: ManualClock
    ) -> None:
        await enlist(store, clock)
        for agent in ("clerk", "poet", "cook"):
            await admit(store, new_session(clock, agent=agent))
        claims = await store.work.claim("w1", 10, agents=["clerk", "cook"])
        assert {claim.agent for claim in claims} == {"clerk", "cook"}

    async def test_lanes_with_records_of_a_newer_format_are_left_alone(
        self, store: Store, clock: ManualClock
    ) -> None:
        await enlist(store, clock)
        await admit(store, new_session(clock))
        assert not await store.work.claim("w1", 10, version=FORMAT - 1)
        assert await store.work.claim("w1", 10, version=FORMAT)

    async def test_a_lane_is_free_when_its_owners_lease_ran_out(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, delta()))
        clock.advance(LEASE + 1)
        await enlist(store, clock, "w2")
        taken = await claim_one(store, "w2")
        assert places([taken]) == places([claim])
        assert (taken.fence, taken.number) == (claim.fence + 1, 1)

    async def test_a_worker_whose_own_lease_ran_out_is_given_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await admit(store, new_session(clock))
        clock.advance(LEASE + 1)
        assert await store.work.claim("w1", 10) == []
        await enlist(store, clock, "w2")
        assert len(await store.work.claim("w2", 10)) == 2
        assert (await write_in_vain(store, commit(claim, delta()))).reason == "lease_lost"

    async def test_a_worker_that_was_struck_off_is_given_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        lease = await enlist(store, clock)
        await admit(store, new_session(clock))
        lease.release()
        assert await store.work.claim("w1", 10) == []

    async def test_a_renewed_lease_keeps_its_lanes(self, store: Store, clock: ManualClock) -> None:
        lease = await enlist(store, clock)
        await enlist(store, clock, "w2", lease=10 * LEASE)
        await start_and_claim(store, clock)
        clock.advance(LEASE - 1)
        assert lease.renew().alive
        clock.advance(LEASE - 1)
        assert not await store.work.claim("w2", 10)

    async def test_what_a_worker_has_counted_is_listed(
        self, store: Store, clock: ManualClock
    ) -> None:
        lease = await enlist(store, clock)
        lease.renew('{"claims": 3}')
        lease.renew()

        (listed,) = await store.work.workers()

        assert listed.counters == '{"claims": 3}'

    async def test_a_lease_can_be_renewed_from_any_thread(
        self, store: Store, clock: ManualClock
    ) -> None:
        lease = await enlist(store, clock)
        assert (await asyncio.to_thread(lease.renew)).alive

    async def test_a_lease_that_ran_out_goes_on_with_what_nobody_took(
        self, store: Store, clock: ManualClock
    ) -> None:
        lease = await enlist(store, clock)
        taken = await start_and_claim(store, clock)
        kept = await start_and_claim(store, clock, held=[taken])
        clock.advance(LEASE)  # from this very instant on
        await enlist(store, clock, "w2", lease=10 * LEASE)
        assert places(await store.work.claim("w2", 1)) == places([taken])

        assert lease.renew() == Renewal(alive=True, lapsed=True)
        assert lease.renew() == Renewal(alive=True)

        assert not await store.work.claim("w2", 10, held=places([taken]))
        await write(store, commit(kept, delta()))
        assert (await write_in_vain(store, commit(taken, delta()))).reason == "lease_lost"

    async def test_a_worker_that_stopped_leaves_its_lanes_free(
        self, store: Store, clock: ManualClock
    ) -> None:
        lease = await enlist(store, clock)
        claim = await start_and_claim(store, clock)
        lease.release()
        await enlist(store, clock, "w2")
        assert places([await claim_one(store, "w2")]) == places([claim])

    async def test_a_released_lease_cannot_be_renewed(
        self, store: Store, clock: ManualClock
    ) -> None:
        lease = await enlist(store, clock)
        lease.release()
        assert not lease.renew().alive
        assert not await store.work.workers()

    async def test_living_workers_are_listed(self, store: Store, clock: ManualClock) -> None:
        await enlist(store, clock, "w1", lease=1_000)
        await enlist(store, clock, "w2", lease=5_000)
        ends = {info.worker: info.lease_until for info in await store.work.workers()}
        assert ends == {"w1": date_of(clock.now() + 1_000), "w2": date_of(clock.now() + 5_000)}
        clock.advance(1_001)
        (left,) = await store.work.workers()
        assert (left.worker, left.host, left.pid, left.version) == ("w2", "here", 1, "1")

    async def test_a_worker_is_listed_with_what_it_serves_and_its_load(
        self, store: Store, clock: ManualClock
    ) -> None:
        info = WorkerInfo(
            worker="w1",
            host="here",
            pid=7,
            started_at=date_of(clock.now()),
            version="1.2",
            concurrency=5,
            agents=("clerk", "cook"),
            lanes=("main", "bulk *"),
            at_once={"cook": 3},
        )
        lease = await store.work.enlist(info, LEASE)
        for _ in range(3):
            await admit(store, new_session(clock))
        parked, *_ = await store.work.claim("w1", 3)
        await write(store, park(parked))
        clock.advance(1_000)
        lease.renew()
        clock.advance(500)
        (listed,) = await store.work.workers()
        seen_at = clock.now() - 500
        known = replace(listed, evidence=())  # what can prove its death differs by store
        assert known == replace(
            info, held=2, seen_at=date_of(seen_at), lease_until=date_of(seen_at + LEASE)
        )

    async def test_workers_are_listed_oldest_first(self, store: Store, clock: ManualClock) -> None:
        for worker in ("w3", "w1", "w2"):
            await enlist(store, clock, worker)
            clock.advance(1)
        assert [info.worker for info in await store.work.workers()] == ["w3", "w1", "w2"]

    async def test_a_worker_that_is_asked_to_drain_is_told_when_it_renews_its_lease(
        self, store: Store, clock: ManualClock
    ) -> None:
        lease, other = await enlist(store, clock), await enlist(store, clock, "w2")
        assert lease.renew() == Renewal(alive=True)
        assert await store.work.drain("w1")
        assert lease.renew() == Renewal(alive=True, draining=True)
        assert lease.renew().draining
        assert not other.renew().draining
        assert {info.worker: info.draining for info in await store.work.workers()} == {
            "w1": True,
            "w2": False,
        }

    async def test_only_a_living_worker_can_be_asked_to_drain(
        self, store: Store, clock: ManualClock
    ) -> None:
        assert not await store.work.drain("nobody")
        lease = await enlist(store, clock)
        clock.advance(LEASE + 1)
        assert not await store.work.drain("w1")
        assert not lease.renew().draining
        lease.release()
        assert not await store.work.drain("w1")

    async def test_who_enlists_under_the_name_of_one_that_drained_does_not_drain(
        self, store: Store, clock: ManualClock
    ) -> None:
        first = await enlist(store, clock)
        await store.work.drain("w1")
        first.release()
        again = await enlist(store, clock)
        assert again.renew() == Renewal(alive=True)

    async def test_a_living_worker_is_not_found_dead(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await enlist(store, clock, "w2")
        assert not await find_dead_twice(store, clock)
        await admit(store, message(clock, claim.session_id))
        assert not await store.work.claim("w2", 10)

    async def test_a_killed_workers_lanes_are_free_long_before_its_lease_runs_out(
        self, store: Store, clock: ManualClock
    ) -> None:
        lease = await enlist(store, clock)
        await enlist(store, clock, "w2")
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, delta()))
        await self.kill(store, "w1", lease)
        assert await find_dead_twice(store, clock) == ["w1"]
        taken = await claim_one(store, "w2")
        assert places([taken]) == places([claim])
        assert taken.fence > claim.fence
        assert taken.evidence in ("lock_file", "port_refused")

    async def test_a_lane_whose_owner_left_says_on_which_evidence_it_was_taken(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        assert claim.evidence == ""
        clock.advance(LEASE + 1)
        second = await enlist(store, clock, "w2")
        assert (await claim_one(store, "w2")).evidence == "lease_expired"
        second.release()
        await enlist(store, clock, "w3")
        clock.advance(FIRST_PAUSE)  # it has lost two owners
        assert (await claim_one(store, "w3")).evidence == "released"

    async def test_a_killed_worker_is_not_listed_and_keeps_its_lanes_until_it_is_found_dead(
        self, store: Store, clock: ManualClock
    ) -> None:
        lease = await enlist(store, clock)
        await enlist(store, clock, "w2")
        claim = await start_and_claim(store, clock)
        await self.kill(store, "w1", lease)
        assert [info.worker for info in await store.work.workers()] == ["w2"]
        assert not await store.work.claim("w2", 10)
        await write(store, commit(claim, delta()))

    async def test_a_death_is_found_once(self, store: Store, clock: ManualClock) -> None:
        lease = await enlist(store, clock)
        await enlist(store, clock, "w2")
        await self.kill(store, "w1", lease)
        await find_dead_twice(store, clock)
        assert not await find_dead_twice(store, clock)
        assert [info.worker for info in await store.work.workers()] == ["w2"]


async def claim_one_of_many(store: Store) -> str:
    """Claim the first lane that is to be had, and give it up for good."""
    (claim,) = await store.work.claim("w1", 1)
    await write(store, park(claim))
    return claim.session_id


async def find_dead_twice(store: Store, clock: ManualClock) -> list[str]:
    """Look as often as it takes for a sign of life to be missing twice."""
    found: list[str] = []
    for _ in range(6):
        found += await store.work.find_dead()
        clock.advance(400)
    return found
