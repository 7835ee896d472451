"""Commits keep the indexes beside the log: deliveries, tokens, ends, holds on keys, blobs."""

import asyncio

import pytest
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.instant import date_of
from outlast.core.message import File, Text
from outlast.store import Committed, FailureFilter, Refused, Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    commit,
    delta,
    effect,
    end_of,
    message,
    new_session,
    park,
    read_all,
    settled,
    start_and_claim,
    turn_started,
    write,
    write_in_vain,
)
from outlast.testing.contract.store_under_test import StoreUnderTest

MEGABYTE = 1024 * 1024


class CommitIndexContract(StoreUnderTest):
    async def test_a_delivery_is_queued_then_running_then_settled(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        (queued,) = await store.listing.deliveries(claim.session_id)
        assert (queued.state, queued.outcome, queued.offset) == ("queued", "", 2)
        await write(store, commit(claim, turn_started(queued.delivery_id)))
        (running,) = await store.listing.deliveries(claim.session_id)
        assert (running.state, running.turn, running.settled_offset) == ("running", "t1", 0)
        answered = r.TurnCompleted(turn="t1", call_id="t1.s1")
        await write(store, park(claim, answered, settled(queued.delivery_id), number=1))
        (ended,) = await store.listing.deliveries(claim.session_id)
        assert (ended.state, ended.outcome, ended.turn) == ("settled", "completed", "t1")
        assert (ended.offset, ended.settled_offset) == (2, 5)

    @pytest.mark.parametrize(("kind", "past"), [("message", 1), ("retry", 0)])
    async def test_a_failed_turn_is_past_when_its_lane_has_taken_another_message(
        self, store: Store, clock: ManualClock, kind: str, past: int
    ) -> None:
        claim = await start_and_claim(store, clock, agent="a")
        (first,) = await store.listing.deliveries(claim.session_id)
        why = r.TurnFailed(turn="t1", error=r.Failure("BROKEN", "it broke"))
        ended = r.DeliverySettled(delivery_id=first.delivery_id, outcome="failed", turn="t1")
        await write(store, commit(claim, turn_started(first.delivery_id), why, ended))
        second = await admit(store, message(clock, claim.session_id, kind=kind))
        assert await store.listing.past_failures(FailureFilter()) == 0
        await write(store, commit(claim, turn_started(second.delivery_id, "t2"), number=1))

        assert await store.listing.past_failures(FailureFilter()) == past
        assert await store.listing.past_failures(FailureFilter("BROKEN"), agent="a") == past
        for choice in (FailureFilter("OTHER"), FailureFilter(since=date_of(clock.now() + 1))):
            assert await store.listing.past_failures(choice) == 0
        assert await store.listing.past_failures(FailureFilter(), tenant="other") == 0

    async def test_a_delivery_may_join_the_turn_of_another(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        receipt = await admit(store, message(clock, claim.session_id))
        joined = r.DeliveryJoined(delivery_id=receipt.delivery_id, turn="t1")
        await write(store, commit(claim, joined))
        delivery = await store.listing.delivery(receipt.delivery_id)
        assert delivery is not None
        assert (delivery.state, delivery.turn) == ("joined", "t1")

    async def test_a_new_token_leads_to_the_session_and_so_does_the_old(
        self, store: Store, clock: ManualClock
    ) -> None:
        old, new = clock.token(), clock.token()
        claim = await start_and_claim(store, clock, token=old)
        await write(store, commit(claim, r.SessionRekeyed(token=new)))
        assert await store.listing.find_token("default", old) == claim.session_id
        assert await store.listing.find_token("default", new) == claim.session_id
        assert list(await store.listing.tokens(claim.session_id)) == [(old, True), (new, True)]
        session = await store.listing.session(claim.session_id)
        assert session is not None
        assert session.token == new

    async def test_a_revoked_token_leads_nowhere(self, store: Store, clock: ManualClock) -> None:
        old, new = clock.token(), clock.token()
        claim = await start_and_claim(store, clock, token=old)
        await write(store, commit(claim, r.SessionRekeyed(token=new, revoked=(old,))))
        assert await store.listing.find_token("default", old) is None
        assert await store.listing.find_token("default", new) == claim.session_id
        assert list(await store.listing.tokens(claim.session_id)) == [(old, False), (new, True)]

    async def test_a_session_cannot_take_the_token_of_another(
        self, store: Store, clock: ManualClock
    ) -> None:
        token = clock.token()
        other = await admit(store, new_session(clock, token=token))
        claim = await start_and_claim(store, clock)
        stolen = commit(claim, r.SessionRekeyed(token=token))
        assert await write_in_vain(store, stolen) == Refused("token_taken")
        assert await store.listing.find_token("default", token) == other.session_id
        assert await end_of(store, claim.session_id) == 2

    async def test_tokens_are_dead_with_their_session(
        self, store: Store, clock: ManualClock
    ) -> None:
        token, later = clock.token(), clock.token()
        claim = await start_and_claim(store, clock, token=token)
        await write(store, commit(claim, r.SessionRekeyed(token=later)))
        await write(store, park(claim, r.SessionEnded(), number=1))
        assert await store.listing.find_token("default", token) is None
        assert await store.listing.find_token("default", later) is None
        assert list(await store.listing.tokens(claim.session_id)) == [
            (token, False),
            (later, False),
        ]
        assert await store.listing.find_token("default", token, living=False) == claim.session_id

    async def test_a_session_that_is_over_takes_no_token(
        self, store: Store, clock: ManualClock
    ) -> None:
        token = clock.token()
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, r.SessionEnded()))
        late = commit(claim, r.SessionRekeyed(token=token), number=1)
        assert await write_in_vain(store, late) == Refused("token_taken")
        heir = await admit(store, new_session(clock, token=token))
        assert await store.listing.find_token("default", token) == heir.session_id

    async def test_a_dead_token_may_be_used_again(self, store: Store, clock: ManualClock) -> None:
        token = clock.token()
        claim = await start_and_claim(store, clock, token=token)
        await write(store, park(claim, r.SessionEnded()))
        heir = await admit(store, new_session(clock, token=token))
        assert await store.listing.find_token("default", token) == heir.session_id

    async def test_an_unknown_token_leads_nowhere(self, store: Store, clock: ManualClock) -> None:
        assert await store.listing.find_token("default", clock.token()) is None

    async def test_a_hold_on_a_key_can_be_looked_up(self, store: Store, clock: ManualClock) -> None:
        claim = await start_and_claim(store, clock)
        held = effect(claim)
        assert await store.log.effect(held.scope, held.key) is None
        await write(store, commit(claim, delta(), effects=(held,)))
        assert await store.log.effect(held.scope, held.key) == held
        assert await store.log.effect("elsewhere", held.key) is None

    @pytest.mark.parametrize("state", ["held", "done", "unknown"])
    async def test_a_key_that_another_call_holds_refuses_the_commit(
        self, store: Store, clock: ManualClock, state: str
    ) -> None:
        one = await start_and_claim(store, clock)
        two = await start_and_claim(store, clock, held=[one])
        first = effect(one, state=state, value='"paid"')
        await write(store, commit(one, delta(), effects=(first,)))
        refused = await write_in_vain(store, commit(two, delta(), effects=(effect(two),)))
        assert refused == Refused("effect_taken", effect=first)
        assert await end_of(store, two.session_id) == 2
        assert await store.log.effect(first.scope, first.key) == first

    async def test_a_key_that_another_call_of_the_same_session_holds_refuses_the_commit(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        first, second = effect(claim, "t1.s1.c1"), effect(claim, "t1.s1.c2")
        await write(store, commit(claim, delta(), effects=(first,)))
        refused = await write_in_vain(store, commit(claim, delta(), number=1, effects=(second,)))
        assert refused == Refused("effect_taken", effect=first)

    async def test_a_key_that_was_let_go_may_be_taken_by_another_call(
        self, store: Store, clock: ManualClock
    ) -> None:
        one = await start_and_claim(store, clock)
        two = await start_and_claim(store, clock, held=[one])
        await write(store, commit(one, delta(), effects=(effect(one),)))
        await write(store, commit(one, delta(), number=1, effects=(effect(one, state="free"),)))
        await write(store, commit(two, delta(), effects=(effect(two),)))
        assert await store.log.effect("tool:pay", "order-17") == effect(two)

    async def test_a_call_changes_its_own_hold(self, store: Store, clock: ManualClock) -> None:
        claim = await start_and_claim(store, clock)
        states = ["held", "held", "unknown", "held", "done"]
        for number, state in enumerate(states):
            hold = effect(claim, state=state, value=str(number))
            await write(store, commit(claim, delta(), number=number, effects=(hold,)))
            assert await store.log.effect(hold.scope, hold.key) == hold

    async def test_of_calls_that_want_a_key_at_once_one_has_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        one = await start_and_claim(store, clock)
        two = await start_and_claim(store, clock, held=[one])
        (first,), (second,) = await asyncio.gather(
            store.log.commit([commit(one, delta(), effects=(effect(one),))]),
            store.log.commit([commit(two, delta(), effects=(effect(two),))]),
        )
        assert {type(first), type(second)} == {Committed, Refused}
        winner = effect(one if isinstance(first, Committed) else two)
        assert await store.log.effect(winner.scope, winner.key) == winner

    async def test_a_value_of_a_megabyte_comes_back_whole(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        large = delta("αβγ" * (MEGABYTE // 3))
        await write(store, commit(claim, large, delta("small")))
        records = [entry.record for entry in await read_all(store, claim.session_id)]
        assert records[2:] == [large, delta("small")]
        loaded = await store.log.load(claim.session_id, "main")
        assert [entry.record for entry in loaded.entries] == records

    async def test_bytes_of_a_megabyte_arrive_whole(self, store: Store, clock: ManualClock) -> None:
        session = (await admit(store, new_session(clock))).session_id
        picture = bytes(range(256)) * (MEGABYTE // 256)
        content = (Text("Look."), File(data=picture, name="map"))
        blank = message(clock, session)
        record = r.DeliveryQueued(delivery_id=blank.delivery_id, content=content)
        await admit(store, replace(blank, records=(record,)))
        assert (await read_all(store, session))[-1].record == record

    async def test_a_large_value_comes_back_to_any_tenant(
        self, store: Store, clock: ManualClock
    ) -> None:
        large = delta("y" * MEGABYTE)
        claim = await start_and_claim(store, clock, tenant="other")
        await write(store, commit(claim, large))
        assert (await read_all(store, claim.session_id))[-1].record == large

    async def test_a_large_value_that_was_stored_before_comes_back_in_every_place(
        self, store: Store, clock: ManualClock
    ) -> None:
        large = delta("x" * MEGABYTE)
        one = await start_and_claim(store, clock)
        two = await start_and_claim(store, clock, held=[one], tenant="other")
        await write(store, commit(one, large, large))
        await write(store, commit(one, large, number=1))
        await write(store, commit(two, large))
        for claim, count in ((one, 3), (two, 1)):
            records = [entry.record for entry in await read_all(store, claim.session_id)]
            assert records[2:] == [large] * count

    async def test_a_sessions_end_is_something_that_arrived_for_its_other_lanes(
        self, store: Store, clock: ManualClock
    ) -> None:
        main = await start_and_claim(store, clock)
        await admit(store, message(clock, main.session_id, lane="side"))
        (side,) = await store.work.claim("w1", 10, held=[(main.session_id, main.lane)])
        last = await end_of(store, main.session_id)
        ended = r.SessionEnded(reason="enough")
        await write(store, park(main, ended, settled("dlv_other"), seen=last))
        assert (await write_in_vain(store, park(side, seen=last))).reason == "arrivals"
        news = (await store.log.load(side.session_id, "side", after=last)).entries
        (end,) = (entry for entry in news if entry.record == ended)
        await write(store, park(side, seen=end.offset, status="ended"))

    async def test_of_two_ends_the_first_says_how_a_session_ended(
        self, store: Store, clock: ManualClock
    ) -> None:
        main = await start_and_claim(store, clock)
        await admit(store, message(clock, main.session_id, lane="side"))
        (side,) = await store.work.claim("w1", 10, held=[(main.session_id, main.lane)])
        await write(store, commit(main, r.SessionCompleted(turn="t1")))
        before = await store.listing.session(main.session_id)
        await write(store, commit(side, r.SessionEnded(reason="enough")))
        after = await store.listing.session(main.session_id)
        assert before is not None
        assert after is not None
        assert (before.over, after.over) == ("completed", "completed")
