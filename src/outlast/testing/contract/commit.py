"""Commits: whole or not at all, by the owner only, once, and never past an arrival."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from outlast.core.record import Entry
from outlast.store import Claim, Committed, Refused, Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
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
    read_all,
    start_and_claim,
    turn_started,
    write,
    write_in_vain,
)
from outlast.testing.contract.store_under_test import StoreUnderTest


async def lanes_of_one_session(store: Store, clock: ManualClock, count: int) -> list[Claim]:
    """Claim the lanes lane0, lane1 and so on of a new session."""
    await enlist(store, clock)
    session = (await admit(store, new_session(clock, lane="lane0"))).session_id
    for number in range(1, count):
        await admit(store, message(clock, session, lane=f"lane{number}"))
    claims = await store.work.claim("w1", count)
    return sorted(claims, key=lambda claim: claim.lane)


class CommitContract(StoreUnderTest):
    async def test_a_commit_is_in_the_log_when_it_returns(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        written = await write(store, commit(claim, delta("a"), delta("b"), at=clock.now() + 5))
        row = written.checksum
        assert written == Committed(3, clock.now() + 5, checksum=row)
        assert list(await read_all(store, claim.session_id))[2:] == [
            Entry(3, clock.now() + 5, "main", delta("a"), checksum=row),
            Entry(4, clock.now() + 5, "main", delta("b"), checksum=row),
        ]

    async def test_a_commit_that_stands_on_more_than_the_log_has_writes_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        """Its owner has folded something that the database has lost."""
        claim = await start_and_claim(store, clock)
        for seen in (3, 7):
            refused = await write_in_vain(store, commit(claim, delta(), seen=seen))
            assert refused.reason == "lease_lost"
            refused = await write_in_vain(store, park(claim, delta(), seen=seen))
            assert refused.reason == "lease_lost"
        assert await end_of(store, claim.session_id) == 2
        await write(store, commit(claim, delta(), seen=2))

    async def test_a_commit_that_had_landed_has_the_checksum_of_its_row(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        wanted = commit(claim, delta("a" * 1000), at=clock.now() + 5)
        written = await write(store, wanted)
        assert await write(store, wanted) == written
        assert (await store.log.read(claim.session_id, 3)).checksum == written.checksum

    async def test_a_commit_under_an_old_fence_writes_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        old = await start_and_claim(store, clock)
        clock.advance(LEASE + 1)
        await enlist(store, clock, "w2")
        await claim_one(store, "w2")
        refused = await write_in_vain(store, commit(old, delta()))
        assert refused == Refused("lease_lost")
        assert await end_of(store, old.session_id) == 2

    async def test_a_commit_under_an_old_fence_of_the_same_worker_writes_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        old = await start_and_claim(store, clock)
        await claim_one(store)
        assert await write_in_vain(store, commit(old, delta())) == Refused("lease_lost")
        assert await end_of(store, old.session_id) == 2

    async def test_a_commit_of_another_worker_writes_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        stranger = commit(claim, delta(), worker="w2")
        assert await write_in_vain(store, stranger) == Refused("lease_lost")
        assert await end_of(store, claim.session_id) == 2

    async def test_a_commit_after_the_lane_was_released_writes_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, park(claim))
        late = commit(claim, delta(), number=1)
        assert await write_in_vain(store, late) == Refused("lease_lost")
        assert await end_of(store, claim.session_id) == 2

    @pytest.mark.parametrize("number", [0, 2])
    async def test_a_commit_with_another_number_than_the_lanes_writes_nothing(
        self, store: Store, clock: ManualClock, number: int
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, delta("first")))
        other = commit(claim, delta("other"), number=number)
        assert await write_in_vain(store, other) == Refused("lease_lost")
        assert await end_of(store, claim.session_id) == 3

    async def test_a_commit_to_an_unknown_lane_writes_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        elsewhere = commit(replace(claim, lane="notes"), delta())
        nowhere = commit(replace(claim, session_id=clock.new_id("ses")), delta())
        results = await store.log.commit([elsewhere, nowhere])
        assert list(results) == [Refused("lease_lost"), Refused("lease_lost")]

    async def test_an_expired_lease_that_nobody_took_may_still_commit(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        clock.advance(10 * LEASE)
        await write(store, commit(claim, delta()))

    async def test_a_commit_whose_acknowledgement_was_lost_is_found_to_have_landed(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        wanted = commit(claim, delta("a"), delta("b"))
        first = await write(store, wanted)
        again = await write(store, wanted)
        assert (again.first_offset, again.at) == (first.first_offset, first.at)
        assert await end_of(store, claim.session_id) == 4
        assert (await write(store, commit(claim, delta(), number=1))).first_offset == 5

    async def test_a_commit_that_released_the_lane_is_found_to_have_landed(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        wanted = park(claim, delta())
        first = await write(store, wanted)
        assert (await write(store, wanted)).first_offset == first.first_offset
        assert await end_of(store, claim.session_id) == 3

    async def test_a_commit_that_landed_is_found_though_others_were_written_since(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        wanted = commit(claim, delta())
        first = await write(store, wanted)
        newer = await admit(store, message(clock, claim.session_id))
        again = await write(store, wanted)
        assert again.first_offset == first.first_offset
        assert [entry.offset for entry in again.arrivals] == [newer.offset]

    async def test_a_commit_that_landed_is_lost_to_who_was_overtaken(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        wanted = commit(claim, delta())
        await write(store, wanted)
        clock.advance(LEASE + 1)
        await enlist(store, clock, "w2")
        await claim_one(store, "w2")
        assert await write_in_vain(store, wanted) == Refused("lease_lost")

    async def test_a_commit_goes_on_past_an_arrival_and_is_told_of_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        seen = await admit(store, message(clock, claim.session_id))
        newer = message(clock, claim.session_id)
        receipt = await admit(store, newer)
        written = await write(store, commit(claim, delta(), seen=seen.offset))
        assert [(e.offset, e.record) for e in written.arrivals] == [
            (receipt.offset, newer.records[0])
        ]

    async def test_a_commit_is_not_told_of_arrivals_in_other_lanes(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await admit(store, message(clock, claim.session_id, lane="notes"))
        own = await admit(store, message(clock, claim.session_id))
        written = await write(store, commit(claim, delta()))
        assert [entry.offset for entry in written.arrivals] == [own.offset]

    async def test_a_lane_parks_past_arrivals_in_other_lanes(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await admit(store, message(clock, claim.session_id, lane="notes"))
        assert (await write(store, park(claim, delta()))).arrivals == ()

    @pytest.mark.parametrize(
        "rest",
        [
            {"release": True, "ready_at": None},
            {"release": True, "ready_at": 10**15},
            {"release": True, "ready_at": 0},
            {"release": False, "ready_at": None},
        ],
        ids=["parks", "sleeps", "hands back", "waits"],
    )
    async def test_a_commit_that_parks_past_an_arrival_is_refused_and_told_of_it(
        self, store: Store, clock: ManualClock, rest: dict[str, Any]
    ) -> None:
        claim = await start_and_claim(store, clock)
        receipt = await admit(store, message(clock, claim.session_id))
        refused = await write_in_vain(store, commit(claim, delta(), **rest))
        assert refused.reason == "arrivals"
        assert [entry.offset for entry in refused.arrivals] == [receipt.offset]
        assert await end_of(store, claim.session_id) == receipt.offset
        await write(store, commit(claim, delta(), seen=receipt.offset, **rest))

    async def test_a_refused_commit_leaves_the_lane_as_it_was(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        before = await admit(store, message(clock, claim.session_id))
        was = await store.listing.session(claim.session_id)
        started = turn_started(before.delivery_id)
        await write_in_vain(store, park(claim, started, turn="t1", status="waiting"))
        assert await store.listing.session(claim.session_id) == was
        delivery = await store.listing.delivery(before.delivery_id)
        assert delivery is not None
        assert delivery.state == "queued"

    async def test_a_message_and_a_park_at_once_never_leave_the_lane_asleep(
        self, store: Store, clock: ManualClock
    ) -> None:
        for _ in range(20):
            claim = await start_and_claim(store, clock)
            sent = store.log.admit([message(clock, claim.session_id)])
            _, (parked,) = await asyncio.gather(sent, store.log.commit([park(claim)]))
            if isinstance(parked, Refused):
                end = await end_of(store, claim.session_id)
                await write(store, park(claim, seen=end))
            else:
                again = await claim_one(store)
                await write(store, park(again))

    async def test_an_unseen_arrival_outlives_its_lanes_owner(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await admit(store, message(clock, claim.session_id))
        await write(store, commit(claim, delta(), ready_at=10**15))
        clock.advance(LEASE + 1)
        await enlist(store, clock, "w2")
        assert places([await claim_one(store, "w2")]) == places([claim])

    async def test_a_refused_commit_leaves_the_others_of_its_group_be(
        self, store: Store, clock: ManualClock
    ) -> None:
        one = await start_and_claim(store, clock)
        two = await start_and_claim(store, clock, held=[one])
        three = await start_and_claim(store, clock, held=[one, two])
        results = await store.log.commit(
            [commit(one, delta()), commit(two, delta(), fence=99), commit(three, delta())]
        )
        assert [type(result) for result in results] == [Committed, Refused, Committed]
        ends = [await end_of(store, claim.session_id) for claim in (one, two, three)]
        assert ends == [3, 2, 3]

    async def test_lanes_of_one_session_commit_in_one_group(
        self, store: Store, clock: ManualClock
    ) -> None:
        claims = await lanes_of_one_session(store, clock, 3)
        group = [commit(claim, delta("a"), delta("b")) for claim in claims]
        results = await store.log.commit(group)
        offsets = [result.first_offset for result in results if isinstance(result, Committed)]
        assert sorted(offsets) == [5, 7, 9]
        entries = await read_all(store, claims[0].session_id)
        assert [entry.offset for entry in entries] == list(range(1, 11))

    async def test_commits_and_arrivals_at_once_get_offsets_without_gaps(
        self, store: Store, clock: ManualClock
    ) -> None:
        claims = await lanes_of_one_session(store, clock, 5)
        session = claims[0].session_id

        async def carry(claim: Claim) -> None:
            for number in range(10):
                clock.advance(1)
                at = clock.now() - 3 * number
                await write(store, commit(claim, delta("a"), delta("b"), number=number, at=at))

        async def send() -> None:
            for _ in range(10):
                await admit(store, message(clock, session))

        await asyncio.gather(*(carry(claim) for claim in claims), send())
        entries = await read_all(store, session)
        assert [entry.offset for entry in entries] == list(range(1, len(entries) + 1))
        assert len(entries) == 6 + 5 * 20 + 10
        dates = [entry.at for entry in entries]
        assert dates == sorted(dates)

    async def test_a_reader_never_sees_a_later_commit_before_an_earlier_one(
        self, store: Store, clock: ManualClock
    ) -> None:
        claims = await lanes_of_one_session(store, clock, 3)
        session = claims[0].session_id

        async def carry(claim: Claim) -> None:
            for number in range(10):
                await write(store, commit(claim, delta(), delta(), number=number))

        writing = asyncio.gather(*(carry(claim) for claim in claims))
        seen: list[int] = []
        while not writing.done():
            page = await store.log.read(session, len(seen), 7)
            seen += [entry.offset for entry in page.entries]
            assert seen == list(range(1, len(seen) + 1))
            await asyncio.sleep(0)
        await writing

    async def test_a_commit_is_never_dated_before_what_it_follows(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        written = await write(store, commit(claim, delta(), at=5))
        assert written.at == clock.now()
        assert (await read_all(store, claim.session_id))[-1].at == clock.now()

    async def test_a_commit_without_records_moves_the_lane_and_not_the_log(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, park(claim, ready_at=clock.now()))
        assert await end_of(store, claim.session_id) == 2
        again = await claim_one(store)
        assert again.number == 1
        assert (await write(store, commit(again, delta()))).first_offset == 3

    async def test_the_same_commit_from_two_hands_at_once_is_written_once(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        wanted = commit(claim, delta())
        results = await asyncio.gather(*(write(store, wanted) for _ in range(10)))
        assert {result.first_offset for result in results} == {3}
        assert await end_of(store, claim.session_id) == 3
