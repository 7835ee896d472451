"""Lanes whose last turn failed, as they are listed and counted."""

from typing import Any

from outlast.core import record as r
from outlast.core.index import SHOWN_MESSAGE
from outlast.core.instant import date_of
from outlast.store import Claim, FailureFilter, FailureInfo, Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    claim_one,
    commit,
    message,
    park,
    start_and_claim,
    turn_started,
    write,
)
from outlast.testing.contract.store_under_test import StoreUnderTest

ANY = FailureFilter()


async def fail(
    store: Store,
    clock: ManualClock,
    code: str = "MODEL_FAILED",
    text: str = "no answer",
    **start: Any,
) -> Claim:
    """Start a session whose first turn fails now; its lane rests."""
    claim = await start_and_claim(store, clock, **start)
    (first,) = await store.listing.deliveries(claim.session_id)
    failed = r.TurnFailed(turn="t1", error=r.Failure(code, text))
    told = r.DeliverySettled(delivery_id=first.delivery_id, outcome="failed", turn="t1")
    records = turn_started(first.delivery_id), failed, told
    await write(store, park(claim, *records, at=clock.now(), status="failed"))
    return claim


async def failure_of(store: Store, session_id: str) -> FailureInfo | None:
    found = await store.listing.session(session_id)
    assert found is not None
    return found.failure


async def found(store: Store, failed: FailureFilter = ANY, **filters: Any) -> list[str]:
    """List failed sessions; their lanes are found by the same filters."""
    sessions = await store.listing.sessions(failed=failed, **filters)
    lanes = await store.listing.lanes(failed=failed, **filters)
    assert {info.session_id for info in lanes} == {info.session_id for info in sessions}
    return [info.session_id for info in sessions]


class FailureContract(StoreUnderTest):
    async def test_a_failed_turn_is_shown_until_the_next_one_begins(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await fail(store, clock)
        since = clock.now()
        clock.advance(10)
        receipt = await admit(store, message(clock, claim.session_id))
        shown = FailureInfo("MODEL_FAILED", "no answer", date_of(since), "t1")
        assert await failure_of(store, claim.session_id) == shown
        again = await claim_one(store)
        started = turn_started(receipt.delivery_id, "t2")
        await write(store, commit(again, started, at=clock.now()))
        assert await failure_of(store, claim.session_id) is None
        assert await found(store) == []

    async def test_a_lane_at_rest_after_a_failed_turn_is_failed_and_queued_by_a_message(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await fail(store, clock)
        for status in ("failed", "queued"):
            info = await store.listing.session(claim.session_id)
            assert info is not None
            assert (info.status, info.lanes[0].status, info.over) == (status, status, "")
            (lane,) = await store.listing.lanes(status=status)
            assert lane.session_id == claim.session_id
            await admit(store, message(clock, claim.session_id))

    async def test_failures_are_found_by_code_instant_tenant_and_agent(
        self, store: Store, clock: ManualClock
    ) -> None:
        await start_and_claim(store, clock)
        early = await fail(store, clock, "QUOTA", tenant="acme", agent="clerk")
        clock.advance(1000)
        late = await fail(store, clock, "QUOTA")
        other = await fail(store, clock, "TIMEOUT", agent="clerk")
        ids = [claim.session_id for claim in (other, late, early)]
        assert await found(store) == ids
        assert await found(store, FailureFilter("QUOTA")) == ids[1:]
        assert await found(store, FailureFilter(since=date_of(clock.now()))) == ids[:2]
        assert await found(store, FailureFilter("QUOTA", date_of(clock.now()))) == [ids[1]]
        assert await found(store, FailureFilter("QUOTA"), tenant="acme") == [ids[2]]
        assert await found(store, agent="clerk") == [ids[0], ids[2]]
        assert await found(store, status="idle") == []
        assert await found(store, FailureFilter("NONE")) == []

    async def test_failures_are_found_by_the_queue_that_their_session_stands_in(
        self, store: Store, clock: ManualClock
    ) -> None:
        await fail(store, clock)
        other = await fail(store, clock, queue="mails")
        first = await fail(store, clock, "QUOTA", queue="reports", tenant="acme")
        later = await fail(store, clock, queue="reports")
        ids = [later.session_id, first.session_id]
        assert await found(store, FailureFilter(queue="reports")) == ids
        assert await found(store, FailureFilter(queue="mails")) == [other.session_id]
        assert await found(store, FailureFilter("QUOTA", queue="reports")) == ids[1:]
        assert await found(store, FailureFilter(queue="reports"), tenant="acme") == ids[1:]
        assert await found(store, FailureFilter(queue="none")) == []

    async def test_a_lane_that_is_made_later_stands_in_the_queue_of_its_session(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock, queue="reports")
        sent = await admit(store, message(clock, claim.session_id, lane="other"))
        [lane] = [each for each in await store.work.claim("w1", 10) if each.lane == "other"]
        failed = r.TurnFailed(turn="other/t1", error=r.Failure("BROKEN", "no answer"))
        records = turn_started(sent.delivery_id, "other/t1"), failed
        await write(store, park(lane, *records, at=clock.now(), status="failed"))
        lanes = await store.listing.lanes(failed=FailureFilter(queue="reports"))
        assert [(each.session_id, each.lane) for each in lanes] == [(claim.session_id, "other")]

    async def test_failures_are_listed_in_pages(self, store: Store, clock: ManualClock) -> None:
        ids = [(await fail(store, clock)).session_id for _ in range(3)][::-1]
        first = await store.listing.sessions(failed=ANY, limit=2)
        rest = await store.listing.sessions(failed=ANY, before=first[-1].session_id)
        assert [info.session_id for info in (*first, *rest)] == ids
        lanes = await store.listing.lanes(failed=ANY, limit=2)
        more = await store.listing.lanes(failed=ANY, after=(ids[1], "main"))
        assert [info.session_id for info in (*lanes, *more)] == ids

    async def test_a_session_that_failed_is_found_and_one_that_ended_otherwise_is_not(
        self, store: Store, clock: ManualClock
    ) -> None:
        broken = await start_and_claim(store, clock)
        late = r.SessionFailed(error=r.Failure("DEADLINE_EXCEEDED", "too late"))
        await write(store, park(broken, late, at=clock.now(), status="failed"))
        claim = await fail(store, clock)
        await admit(store, message(clock, claim.session_id, lane="notes"))
        notes = await claim_one(store)
        await write(store, park(notes, r.SessionEnded(), status="ended"))
        assert await found(store) == [broken.session_id]
        assert await failure_of(store, claim.session_id) is None
        shown = FailureInfo("DEADLINE_EXCEEDED", "too late", date_of(clock.now()))
        assert await failure_of(store, broken.session_id) == shown

    async def test_a_failure_of_any_length_and_character_is_stored(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await fail(store, clock, text="\0" + "x" * 10 * SHOWN_MESSAGE)
        failure = await failure_of(store, claim.session_id)
        assert failure is not None
        assert failure.message == "x" * (SHOWN_MESSAGE - 1)

    async def test_a_census_counts_lanes_that_rest_after_a_failure_by_its_code(
        self, store: Store, clock: ManualClock
    ) -> None:
        for code in ("QUOTA", "QUOTA"):
            await fail(store, clock, code)
        claim = await fail(store, clock, "TIMEOUT")
        over = await start_and_claim(store, clock)
        late = r.SessionFailed(error=r.Failure("DEADLINE_EXCEEDED", "too late"))
        await write(store, park(over, late, status="failed"))
        await admit(store, message(clock, claim.session_id))
        counts = {
            (each.status, each.code): each.count for each in (await store.listing.census()).lanes
        }
        assert counts == {("failed", "QUOTA"): 2, ("queued", ""): 1}
