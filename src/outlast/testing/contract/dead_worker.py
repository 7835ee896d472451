"""Lanes whose owners die: each death counts, and a lane that kills its workers is left alone."""

from outlast.core import record as r
from outlast.core.instant import date_of
from outlast.errors import SessionTooLarge
from outlast.store import Claim, Store
from outlast.store.work import FIRST_PAUSE, LONGEST_PAUSE
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    LEASE,
    admit,
    admit_in_vain,
    cancel,
    claim_one,
    commit,
    delta,
    enlist,
    message,
    new_session,
    park,
    start_and_claim,
    state_change,
    write,
)
from outlast.testing.contract.store_under_test import StoreUnderTest

LARGE = "x" * 100_000


class DeadWorkerContract(StoreUnderTest):
    async def lose(self, store: Store, clock: ManualClock, worker: str) -> Claim:
        """Let a worker claim the only lane and die with it."""
        lease = await enlist(store, clock, worker)
        claim = await claim_one(store, worker)
        await self.bury(store, clock, worker, lease)
        return claim

    async def bury(self, store: Store, clock: ManualClock, worker: str, lease: object) -> None:
        await self.kill(store, worker, lease)  # type: ignore[arg-type]
        found: list[str] = []
        while worker not in found:  # it has to be missing twice
            found += await store.work.find_dead()
            clock.advance(300)

    async def test_a_lane_that_lost_its_owner_counts_one_death(
        self, store: Store, clock: ManualClock
    ) -> None:
        await admit(store, new_session(clock))
        assert (await self.lose(store, clock, "w1")).deaths == 0
        await enlist(store, clock, "w2")
        claim = await claim_one(store, "w2")
        assert claim.deaths == 1
        [lane] = await store.listing.lanes()
        assert (lane.deaths, lane.claimable_at) == (1, None)

    async def test_a_lane_that_was_given_back_counts_none(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, park(claim, ready_at=clock.now()))
        assert (await claim_one(store)).deaths == 0

    async def test_a_lane_whose_owners_lease_ran_out_counts_one_death(
        self, store: Store, clock: ManualClock
    ) -> None:
        await start_and_claim(store, clock)
        clock.advance(LEASE + 1)
        await enlist(store, clock, "w2")
        assert (await claim_one(store, "w2")).deaths == 1

    async def test_a_claim_that_is_handed_out_again_counts_none(
        self, store: Store, clock: ManualClock
    ) -> None:
        await start_and_claim(store, clock)
        assert (await claim_one(store)).deaths == 0

    async def test_after_each_further_death_the_lane_is_left_alone_for_twice_as_long(
        self, store: Store, clock: ManualClock
    ) -> None:
        await admit(store, new_session(clock))
        await self.lose(store, clock, "w0")
        due = FIRST_PAUSE
        for number in range(1, 12):
            before = clock.now()
            await self.lose(store, clock, f"w{number}")
            await enlist(store, clock, f"x{number}")
            assert not await store.work.claim(f"x{number}", 10)
            at = await store.work.next_ready_at(clock.now())
            assert at is not None
            assert before + due <= at <= clock.now() + due
            [lane] = await store.listing.lanes()
            assert lane.claimable_at == date_of(at)
            clock.advance(at - clock.now())
            due = min(2 * due, LONGEST_PAUSE)

    async def test_nothing_that_arrives_ends_the_pause(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock))).session_id
        for worker in ("w1", "w2"):
            await self.lose(store, clock, worker)
        await admit(store, message(clock, session))
        await admit(store, cancel(clock, session))
        await enlist(store, clock, "w3")
        assert not await store.work.claim("w3", 10)
        clock.advance(FIRST_PAUSE)
        assert (await claim_one(store, "w3")).deaths == 2

    async def test_the_lanes_of_others_are_not_left_alone(
        self, store: Store, clock: ManualClock
    ) -> None:
        await admit(store, new_session(clock))
        for worker in ("w1", "w2"):
            await self.lose(store, clock, worker)
        other = await admit(store, new_session(clock))
        await enlist(store, clock, "w3")
        assert (await claim_one(store, "w3")).session_id == other.session_id

    async def test_a_commit_that_says_so_ends_the_count_and_the_pause(
        self, store: Store, clock: ManualClock
    ) -> None:
        await admit(store, new_session(clock))
        for worker in ("w1", "w2"):
            await self.lose(store, clock, worker)
        clock.advance(FIRST_PAUSE)
        lease = await enlist(store, clock, "w3")
        claim = await claim_one(store, "w3")
        await write(store, commit(claim, delta(), worker="w3"))
        [lane] = await store.listing.lanes()
        assert lane.deaths == 2
        counted = commit(claim, delta(), worker="w3", number=claim.number + 1, deaths=0)
        await write(store, counted)
        [lane] = await store.listing.lanes()
        assert (lane.deaths, lane.claimable_at) == (0, None)
        await self.bury(store, clock, "w3", lease)
        await enlist(store, clock, "w4")
        assert (await claim_one(store, "w4")).deaths == 1

    async def test_a_commit_may_leave_some_deaths_to_count(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, delta(), deaths=3))
        [lane] = await store.listing.lanes()
        assert lane.deaths == 3

    # Sizes

    async def test_a_claim_says_how_large_the_session_is(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock, text=LARGE)
        assert len(LARGE) < claim.size < len(LARGE) + 1000
        await write(store, commit(claim, delta(LARGE), delta("y")))
        await admit(store, message(clock, claim.session_id, LARGE, lane="side"))
        clock.advance(LEASE + 1)
        await enlist(store, clock, "w2")
        claims = await store.work.claim("w2", 10)
        assert [3 * len(LARGE) < each.size < 3 * len(LARGE) + 1000 for each in claims] == [True] * 2
        sizes = [lane.size for lane in await store.listing.lanes()]
        assert sum(sizes) == claims[0].size == claims[1].size

    async def test_a_session_takes_no_message_that_it_has_no_room_for(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock, LARGE, most_bytes=10))).session_id
        most = 2 * len(LARGE)
        refusal = await admit_in_vain(store, message(clock, session, LARGE, most_bytes=most))
        assert isinstance(refusal, SessionTooLarge)
        assert refusal.details == {"session_id": session, "most": most}
        await admit(store, message(clock, session, "small", most_bytes=most))
        await admit(store, message(clock, session, LARGE))

    async def test_a_session_takes_no_change_of_its_state_that_it_has_no_room_for(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock, LARGE))).session_id
        refusal = await admit_in_vain(store, state_change(clock, session, most_bytes=1))
        assert isinstance(refusal, SessionTooLarge)
        await admit(store, state_change(clock, session, most_bytes=2 * len(LARGE)))

    async def test_a_session_without_room_still_takes_cancels(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock, LARGE))).session_id
        stop = cancel(clock, session)
        await admit(store, stop)
        refusal = await admit_in_vain(store, message(clock, session, most_bytes=1))
        assert isinstance(refusal, SessionTooLarge)

    async def test_a_log_is_read_without_its_large_values(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock, text=LARGE)
        await write(store, commit(claim, delta(LARGE), delta("small")))
        page = await store.log.read(claim.session_id, 0, large=False)
        whole = await store.log.read(claim.session_id, 0)
        assert [entry.offset for entry in page.entries] == [1, 2, 3, 4]
        texts = [e.record.text for e in page.entries if isinstance(e.record, r.MessageDelta)]
        assert texts == ["", "small"]
        assert page.entries[0] == whole.entries[0]
        assert (page.cursor, page.end) == (whole.cursor, whole.end)
