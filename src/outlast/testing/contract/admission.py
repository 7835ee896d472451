"""Arrivals: accepted once, in order, or refused without a trace."""

import asyncio

import pytest
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.codec import encode
from outlast.core.instant import date_of
from outlast.core.message import Text
from outlast.core.record import AnyRecord, Failure
from outlast.errors import (
    DispatchConflict,
    NotEncodable,
    SessionOver,
    TokenTaken,
    UnknownSession,
)
from outlast.store import AdmissionReceipt, Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    admit_in_vain,
    cancel,
    claim_one,
    commit,
    delta,
    end_of,
    enlist,
    message,
    new_session,
    park,
    read_all,
    start_and_claim,
    turn_started,
    write,
)
from outlast.testing.contract.store_under_test import StoreUnderTest

ENDS = (
    r.SessionCompleted(turn="t1"),
    r.SessionFailed(error=Failure("BAD", "It is bad.")),
    r.SessionEnded(reason="enough"),
)


class AdmissionContract(StoreUnderTest):
    async def test_a_new_session_and_its_first_delivery_are_one_admission(
        self, store: Store, clock: ManualClock
    ) -> None:
        admission = new_session(clock)
        receipt = await admit(store, admission)
        entries = await read_all(store, receipt.session_id)
        assert [(e.offset, e.lane, e.record) for e in entries] == [
            (1, "main", admission.records[0]),
            (2, "main", admission.records[1]),
        ]
        assert receipt == AdmissionReceipt(
            session_id=admission.session_id,
            lane="main",
            delivery_id=admission.delivery_id,
            offset=2,
        )

    async def test_records_that_are_encoded_already_are_written_as_they_are(
        self, store: Store, clock: ManualClock
    ) -> None:
        started = await admit(store, new_session(clock))
        said = message(clock, started.session_id, "hello")
        # Other words, so that encoding the records once more would be seen.
        queued = r.DeliveryQueued(delivery_id=said.delivery_id, content=(Text("encoded"),))
        receipt = await admit(store, replace(said, body=encode([queued])))

        entries = await read_all(store, started.session_id)
        assert (entries[-1].offset, entries[-1].record) == (receipt.offset, queued)

    async def test_a_repeated_dispatch_returns_the_first_receipt(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock))).session_id
        first = await admit(store, message(clock, session, dispatch_id="d1"))
        again = await admit(store, message(clock, session, dispatch_id="d1"))
        assert not first.duplicate
        assert again == replace(first, duplicate=True)
        assert await end_of(store, session) == first.offset

    async def test_a_repeated_start_returns_the_first_session(
        self, store: Store, clock: ManualClock
    ) -> None:
        first = await admit(store, new_session(clock, dispatch_id="d1"))
        another = new_session(clock, dispatch_id="d1")
        again = await admit(store, another)
        assert again == replace(first, duplicate=True)
        assert await store.listing.session(another.session_id) is None

    async def test_a_repeated_start_is_not_refused_for_its_own_token(
        self, store: Store, clock: ManualClock
    ) -> None:
        token = clock.token()
        first = await admit(store, new_session(clock, dispatch_id="d1", token=token))
        again = await admit(store, new_session(clock, dispatch_id="d1", token=token))
        assert again == replace(first, duplicate=True)

    async def test_other_content_under_the_same_dispatch_is_a_conflict_and_writes_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock))).session_id
        first = await admit(store, message(clock, session, "one", dispatch_id="d1"))
        other = message(clock, session, "two", dispatch_id="d1")
        assert isinstance(await admit_in_vain(store, other), DispatchConflict)
        assert await end_of(store, session) == first.offset
        assert await store.listing.delivery(other.delivery_id) is None

    async def test_a_hundred_equal_dispatches_at_once_are_admitted_once(
        self, store: Store, clock: ManualClock
    ) -> None:
        starts = [new_session(clock, dispatch_id="d1") for _ in range(100)]
        receipts = await asyncio.gather(*(admit(store, start) for start in starts))
        assert [receipt.duplicate for receipt in receipts].count(False) == 1
        assert len({(receipt.session_id, receipt.delivery_id) for receipt in receipts}) == 1
        assert len(await store.listing.sessions(limit=200)) == 1
        assert await end_of(store, receipts[0].session_id) == 2

    async def test_the_same_dispatch_twice_in_one_call_is_admitted_once(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock))).session_id
        twice = [message(clock, session, dispatch_id="d1") for _ in range(2)]
        first, again = await store.log.admit(twice)
        assert isinstance(first, AdmissionReceipt)
        assert again == replace(first, duplicate=True)

    async def test_the_same_dispatch_in_another_scope_is_another_admission(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock))).session_id
        await admit(store, message(clock, session, dispatch_id="d1", scope="a"))
        other = await admit(store, message(clock, session, dispatch_id="d1", scope="b"))
        assert not other.duplicate

    async def test_the_same_dispatch_of_another_tenant_is_another_admission(
        self, store: Store, clock: ManualClock
    ) -> None:
        ours = await admit(store, new_session(clock, dispatch_id="d1"))
        theirs = await admit(store, new_session(clock, dispatch_id="d1", tenant="other"))
        assert ours.session_id != theirs.session_id
        assert not theirs.duplicate

    async def test_a_refused_admission_leaves_the_others_be(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock))).session_id
        first, refused, last = await store.log.admit(
            [
                message(clock, session),
                message(clock, clock.new_id("ses")),
                message(clock, session),
            ]
        )
        assert isinstance(refused, UnknownSession)
        assert isinstance(first, AdmissionReceipt)
        assert isinstance(last, AdmissionReceipt)
        assert (first.offset, last.offset) == (3, 4)

    async def test_what_cannot_be_encoded_is_refused_by_itself(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock))).session_id
        bad, good = await store.log.admit(
            [message(clock, session, "\ud800"), message(clock, session)]
        )
        assert isinstance(bad, NotEncodable)
        assert isinstance(good, AdmissionReceipt)
        assert good.offset == 3

    async def test_a_refused_dispatch_may_be_tried_again(
        self, store: Store, clock: ManualClock
    ) -> None:
        start = new_session(clock)
        early = message(clock, start.session_id)
        assert isinstance(await admit_in_vain(store, early), UnknownSession)
        await admit(store, start)
        assert not (await admit(store, early)).duplicate

    async def test_a_message_to_an_unknown_session_is_refused(
        self, store: Store, clock: ManualClock
    ) -> None:
        lost = message(clock, clock.new_id("ses"))
        assert isinstance(await admit_in_vain(store, lost), UnknownSession)
        assert await store.listing.session(lost.session_id) is None

    async def test_a_session_of_another_tenant_is_unknown(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock))).session_id
        foreign = message(clock, session, tenant="other")
        assert isinstance(await admit_in_vain(store, foreign), UnknownSession)
        assert await end_of(store, session) == 2

    @pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
    async def test_a_session_that_is_over_takes_nothing_more(
        self, store: Store, clock: ManualClock, end: AnyRecord
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, park(claim, end))
        late = message(clock, claim.session_id)
        assert isinstance(await admit_in_vain(store, late), SessionOver)
        assert await end_of(store, claim.session_id) == 3

    async def test_a_dispatch_keeps_its_receipt_when_the_session_is_over(
        self, store: Store, clock: ManualClock
    ) -> None:
        await enlist(store, clock)
        first = await admit(store, new_session(clock, dispatch_id="d1"))
        claim = await claim_one(store)
        await write(store, park(claim, ENDS[0]))
        again = await admit(store, new_session(clock, dispatch_id="d1"))
        assert again == replace(first, duplicate=True)

    async def test_a_token_in_use_refuses_the_new_session_and_writes_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        token = clock.token()
        first = await admit(store, new_session(clock, token=token))
        second = new_session(clock, token=token)
        assert isinstance(await admit_in_vain(store, second), TokenTaken)
        assert await store.listing.session(second.session_id) is None
        assert await store.listing.find_token("default", token) == first.session_id

    async def test_of_many_sessions_with_one_token_at_once_one_is_started(
        self, store: Store, clock: ManualClock
    ) -> None:
        token = clock.token()
        starts = [new_session(clock, token=token) for _ in range(20)]
        results = [
            result for (result,) in await asyncio.gather(*(store.log.admit([s]) for s in starts))
        ]
        assert sum(isinstance(result, AdmissionReceipt) for result in results) == 1
        assert sum(isinstance(result, TokenTaken) for result in results) == 19

    async def test_tenants_may_use_the_same_token(self, store: Store, clock: ManualClock) -> None:
        token = clock.token()
        ours = await admit(store, new_session(clock, token=token))
        theirs = await admit(store, new_session(clock, token=token, tenant="other"))
        assert await store.listing.find_token("default", token) == ours.session_id
        assert await store.listing.find_token("other", token) == theirs.session_id

    async def test_a_message_to_a_new_lane_makes_the_lane(
        self, store: Store, clock: ManualClock
    ) -> None:
        await enlist(store, clock)
        session = (await admit(store, new_session(clock))).session_id
        receipt = await admit(store, message(clock, session, lane="notes"))
        assert receipt.lane == "notes"
        claims = {claim.lane: claim for claim in await store.work.claim("w1", 10)}
        assert set(claims) == {"main", "notes"}
        assert (claims["notes"].number, claims["notes"].last_arrival) == (0, receipt.offset)

    async def test_a_receipts_position_counts_the_messages_queued_before_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        await enlist(store, clock)
        start = new_session(clock)
        session = (await admit(store, start)).session_id
        assert (await admit(store, message(clock, session))).position == 1
        assert (await admit(store, message(clock, session, lane="notes"))).position == 0
        claim = next(c for c in await store.work.claim("w1", 10) if c.lane == "main")
        await write(store, commit(claim, turn_started(start.delivery_id)))
        assert (await admit(store, message(clock, session))).position == 1

    async def test_an_arrival_makes_a_parked_lane_ready_at_once(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, park(claim))
        assert not await store.work.claim("w1", 10)
        await admit(store, message(clock, claim.session_id))
        assert (await claim_one(store)).session_id == claim.session_id

    async def test_an_arrival_makes_a_sleeping_lane_ready_at_once(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, park(claim, ready_at=clock.now() + 60_000))
        await admit(store, message(clock, claim.session_id))
        assert (await claim_one(store)).session_id == claim.session_id

    async def test_a_cancel_that_names_no_turn_is_given_the_open_one(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, turn_started("dlv_1", "t7"), turn="t7"))
        await admit(store, cancel(clock, claim.session_id))
        last = (await read_all(store, claim.session_id))[-1].record
        assert isinstance(last, r.CancelRequested)
        assert last.turn == "t7"

    async def test_a_cancel_that_names_a_turn_keeps_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, turn_started("dlv_1", "t7"), turn="t7"))
        await admit(store, cancel(clock, claim.session_id, turn="t6"))
        last = (await read_all(store, claim.session_id))[-1].record
        assert isinstance(last, r.CancelRequested)
        assert last.turn == "t6"

    async def test_a_cancel_that_names_a_message_is_given_no_turn(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, turn_started("dlv_1", "t7"), turn="t7"))
        blank = cancel(clock, claim.session_id)
        record = r.CancelRequested(delivery_id=blank.delivery_id, message="dlv_1")
        await admit(store, replace(blank, records=(record,)))
        last = (await read_all(store, claim.session_id))[-1].record
        assert last == record

    async def test_a_cancel_between_turns_names_none(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, turn_started("dlv_1", "t7"), turn="t7"))
        await write(store, park(replace(claim, number=1), turn=""))
        await admit(store, cancel(clock, claim.session_id))
        last = (await read_all(store, claim.session_id))[-1].record
        assert isinstance(last, r.CancelRequested)
        assert last.turn == ""

    async def test_messages_at_once_get_offsets_without_gaps(
        self, store: Store, clock: ManualClock
    ) -> None:
        sessions = [(await admit(store, new_session(clock))).session_id for _ in range(3)]
        sent = [message(clock, session) for session in sessions for _ in range(20)]
        receipts = await asyncio.gather(*(admit(store, one) for one in sent))
        for session in sessions:
            offsets = [receipt.offset for receipt in receipts if receipt.session_id == session]
            assert sorted(offsets) == list(range(3, 23))
            assert [e.offset for e in await read_all(store, session)] == list(range(1, 23))

    async def test_an_arrival_is_never_dated_before_what_it_follows(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock, at=5_000))).session_id
        await admit(store, message(clock, session, at=4_000))
        await admit(store, message(clock, session, at=6_000))
        dates = [entry.at for entry in await read_all(store, session)]
        assert dates == [5_000, 5_000, 5_000, 6_000]

    async def test_what_comes_from_a_clock_that_is_ahead_is_dated_by_the_stores(
        self, store: Store, clock: ManualClock
    ) -> None:
        ahead = clock.now() + 3_600_000
        session = (await admit(store, new_session(clock, at=ahead))).session_id
        await admit(store, message(clock, session, at=ahead))
        await enlist(store, clock)
        written = await write(store, commit(await claim_one(store), delta(), at=clock.now()))
        dates = [entry.at for entry in await read_all(store, session)]
        assert {*dates, written.at} == {clock.now()}
        info = await store.listing.session(session)
        assert info is not None
        assert info.created_at == info.updated_at == date_of(clock.now())
