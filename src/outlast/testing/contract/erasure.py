"""An erased session is gone with all that was known of it, but for the names of its dispatches."""

import pytest
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.limit import Bound
from outlast.errors import SessionErased, UnknownSession
from outlast.store import Claim, EffectClaim, Permit, PermitRequest, Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    admit_in_vain,
    ask,
    commit,
    delta,
    effect,
    message,
    new_session,
    park,
    put,
    question,
    read_all,
    reply,
    start_and_claim,
    write,
    write_in_vain,
)
from outlast.testing.contract.outbox import HOLD, start_with_cursor, take_one, tell
from outlast.testing.contract.store_under_test import StoreUnderTest

LARGE = "x" * 300_000
ADDRESS = "desk-7"


def large_result(text: str = LARGE) -> r.ToolCompleted:
    return r.ToolCompleted(call_id="t1.s1.c1", attempt=1, value=f'"{text}"')


class ErasureContract(StoreUnderTest):
    async def test_an_erased_session_is_unknown(self, store: Store, clock: ManualClock) -> None:
        claim = await start_and_claim(store, clock, token=ADDRESS)
        await write(store, commit(claim, delta(), put("1")))
        other = await admit(store, new_session(clock))

        assert await store.log.erase(claim.session_id)

        assert await store.listing.session(claim.session_id) is None
        assert [each.session_id for each in await store.listing.sessions()] == [other.session_id]
        assert await store.listing.lanes(session_id=claim.session_id) == []
        assert await store.listing.deliveries(claim.session_id) == []
        assert await store.listing.tokens(claim.session_id) == []
        assert await store.listing.find_token("default", ADDRESS) is None
        assert await store.listing.find_token("default", ADDRESS, living=False) is None
        for read in (store.log.read, store.log.read_back):
            with pytest.raises(UnknownSession):
                await read(claim.session_id, 0)

    async def test_erasing_what_is_not_there_does_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        receipt = await admit(store, new_session(clock))

        assert not await store.log.erase("ses_unknown")
        assert await store.log.erase(receipt.session_id)
        assert not await store.log.erase(receipt.session_id)

    async def test_the_owner_of_an_erased_lane_is_refused(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await store.log.erase(claim.session_id)

        assert (await write_in_vain(store, commit(claim, delta()))).reason == "lease_lost"
        assert await store.work.claim("w1", 10) == []

    async def test_a_group_with_a_commit_to_an_erased_session_writes_the_others(
        self, store: Store, clock: ManualClock
    ) -> None:
        claims: list[Claim] = []
        for _ in range(6):
            claims.append(await start_and_claim(store, clock, held=claims))
        gone = claims[2]
        await store.log.erase(gone.session_id)

        results = await store.log.commit([commit(claim, delta()) for claim in claims])

        refused = [getattr(result, "reason", "") for result in results]
        assert refused == ["", "", "lease_lost", "", "", ""]

    async def test_a_retried_start_is_told_that_its_session_was_erased(
        self, store: Store, clock: ManualClock
    ) -> None:
        start = new_session(clock, dispatch_id="order-17")
        receipt = await admit(store, start)
        await store.log.erase(receipt.session_id)

        error = await admit_in_vain(store, start)

        assert isinstance(error, SessionErased)
        assert await store.listing.sessions() == []

    async def test_a_message_to_an_erased_session_finds_none(
        self, store: Store, clock: ManualClock
    ) -> None:
        receipt = await admit(store, new_session(clock))
        await store.log.erase(receipt.session_id)

        error = await admit_in_vain(store, message(clock, receipt.session_id))

        assert isinstance(error, UnknownSession)

    async def test_open_requests_go_with_their_session(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await ask(store, claim, question("req_1"))

        await store.log.erase(claim.session_id)

        assert await store.listing.request("req_1") is None
        assert await store.listing.requests() == []
        error = await admit_in_vain(store, reply(clock, claim.session_id, "req_1"))
        assert isinstance(error, UnknownSession)

    async def test_a_token_of_an_erased_session_is_free(
        self, store: Store, clock: ManualClock
    ) -> None:
        receipt = await admit(store, new_session(clock, token=ADDRESS))
        await store.log.erase(receipt.session_id)

        again = await admit(store, new_session(clock, token=ADDRESS))

        assert await store.listing.find_token("default", ADDRESS) == again.session_id

    async def test_values_that_others_use_stay(self, store: Store, clock: ManualClock) -> None:
        first = await start_and_claim(store, clock)
        second = await start_and_claim(store, clock, held=[first])
        await write(store, commit(first, large_result()))
        await write(store, commit(second, large_result()))

        await store.log.erase(first.session_id)

        assert (await read_all(store, second.session_id))[-1].record == large_result()

    async def test_values_of_erased_sessions_can_be_written_again(
        self, store: Store, clock: ManualClock
    ) -> None:
        first = await start_and_claim(store, clock)
        await write(store, commit(first, large_result()))
        await store.log.erase(first.session_id)
        second = await start_and_claim(store, clock)

        await write(store, commit(second, large_result()))

        assert (await read_all(store, second.session_id))[-1].record == large_result()

    async def test_a_permit_that_an_erased_session_held_is_given_back(
        self, store: Store, clock: ManualClock
    ) -> None:
        holder = await start_and_claim(store, clock)
        waiter = await start_and_claim(store, clock, held=[holder])
        assert await acquire(store, holder) == Permit(True)
        assert not (await acquire(store, waiter)).granted
        await write(store, commit(waiter, delta(), release=True, ready_at=None, awaits_permit=True))

        await store.log.erase(holder.session_id)

        (claim,) = await store.work.claim("w1", 10)
        assert claim.session_id == waiter.session_id
        assert await acquire(store, claim) == Permit(True)

    async def test_a_shared_idempotency_key_stays_used_without_its_outcome(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        shared = effect(claim, state="done", value='["secret",null]')
        own = EffectClaim(
            f"session:{claim.session_id}", "k", claim.session_id, "t1.s1.c2", "done", "1"
        )
        await write(store, commit(claim, delta(), effects=(shared, own)))

        await store.log.erase(claim.session_id)

        kept = await store.log.effect(shared.scope, shared.key)
        assert kept == replace(shared, state="unknown", value="")
        assert await store.log.effect(own.scope, own.key) is None

    async def test_outbox_cursors_and_dead_letters_go_with_their_session(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await tell(store, await start_with_cursor(store, clock))
        taken = await take_one(store)

        await store.log.erase(claim.session_id)

        assert not await store.outbox.settle(taken, position=3, again_at=None)
        assert await store.outbox.cursors() == []
        clock.advance(HOLD)
        assert await store.outbox.take(10, HOLD) == []

    async def test_a_session_can_be_erased_after_its_end(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock, token=ADDRESS)
        ended = park(claim, r.SessionEnded(reason="enough"), status="ended")
        await write(store, ended)
        assert await store.listing.find_token("default", ADDRESS, living=False) == claim.session_id

        assert await store.log.erase(claim.session_id)

        assert await store.listing.find_token("default", ADDRESS, living=False) is None


async def acquire(store: Store, claim: Claim) -> Permit:
    request = PermitRequest(
        session_id=claim.session_id,
        lane=claim.lane,
        worker="w1",
        fence=claim.fence,
        call_id="t1.s1.c1",
        bounds=(Bound(name="bank", concurrency=1),),
    )
    (permit,) = await store.limit.acquire([request])
    assert isinstance(permit, Permit)
    return permit
