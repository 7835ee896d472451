"""Questions to humans: opened by a lane, closed once, by the first answer, expiry or cancel."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.instant import date_of
from outlast.core.record import AnyRecord
from outlast.errors import RequestClosed, UnknownRequest
from outlast.store import AdmissionReceipt, RequestInfo, Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    admit_in_vain,
    ask,
    claim_one,
    commit,
    end_of,
    park,
    question,
    reply,
    start_and_claim,
    write,
    write_in_vain,
)
from outlast.testing.contract.store_under_test import StoreUnderTest

CLOSINGS = (
    r.RequestResolved(request_id="req_1", how="cancelled"),
    r.RequestResolved(request_id="req_1", how="superseded"),
    r.RequestExpired(request_id="req_1"),
)


def name_of(closing: AnyRecord) -> str:
    return closing.how if isinstance(closing, r.RequestResolved) else "expired"


async def state_of(store: Store, request_id: str) -> str:
    request = await store.listing.request(request_id)
    assert request is not None
    return request.state


class RequestContract(StoreUnderTest):
    async def test_a_request_is_open_once_it_is_committed(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        asked = question("req_1", expires_at=clock.now() + 1_000)
        await ask(store, claim, asked)
        assert await store.listing.request("req_1") == RequestInfo(
            request_id="req_1",
            session_id=claim.session_id,
            lane="main",
            kind="approval",
            state="open",
            expires_at=date_of(asked.expires_at),
            data=msgspec.json.encode(asked).decode(),
            tenant="default",
            agent="support",
        )

    async def test_a_request_that_never_was_is_none(self, store: Store) -> None:
        assert await store.listing.request("req_1") is None

    async def test_an_answer_closes_its_request_and_arrives(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await ask(store, claim, question("req_1"))
        receipt = await admit(store, reply(clock, claim.session_id, "req_1"))
        assert await state_of(store, "req_1") == "answered"
        assert (await claim_one(store)).last_arrival == receipt.offset

    async def test_a_second_answer_is_refused_and_writes_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await ask(store, claim, question("req_1"))
        first = await admit(store, reply(clock, claim.session_id, "req_1"))
        second = reply(clock, claim.session_id, "req_1", "deny")
        assert isinstance(await admit_in_vain(store, second), RequestClosed)
        assert await end_of(store, claim.session_id) == first.offset

    async def test_the_same_answer_again_has_the_first_receipt(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await ask(store, claim, question("req_1"))
        answer = reply(clock, claim.session_id, "req_1")
        first = await admit(store, answer)
        assert await admit(store, answer) == replace(first, duplicate=True)

    async def test_of_many_answers_at_once_one_is_taken(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await ask(store, claim, question("req_1"))
        answers = [reply(clock, claim.session_id, "req_1", f"option {n}") for n in range(20)]
        found = [
            result for (result,) in await asyncio.gather(*(store.log.admit([a]) for a in answers))
        ]
        assert sum(isinstance(result, AdmissionReceipt) for result in found) == 1
        assert sum(isinstance(result, RequestClosed) for result in found) == 19

    async def test_an_answer_to_a_request_that_never_was_is_refused(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        answer = reply(clock, claim.session_id, "req_1")
        assert isinstance(await admit_in_vain(store, answer), UnknownRequest)

    async def test_an_answer_to_a_request_of_another_session_is_refused(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await ask(store, claim, question("req_1"))
        other = await start_and_claim(store, clock)
        answer = reply(clock, other.session_id, "req_1")
        assert isinstance(await admit_in_vain(store, answer), UnknownRequest)
        assert await state_of(store, "req_1") == "open"

    async def test_an_answer_is_taken_until_the_request_expires(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await ask(store, claim, question("req_1", expires_at=clock.now() + 1_000))
        clock.advance(999)
        await admit(store, reply(clock, claim.session_id, "req_1"))

    async def test_an_answer_after_the_request_expired_is_refused(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await ask(store, claim, question("req_1", expires_at=clock.now() + 1_000))
        before = await end_of(store, claim.session_id)
        clock.advance(1_000)
        answer = reply(clock, claim.session_id, "req_1")
        assert isinstance(await admit_in_vain(store, answer), RequestClosed)
        assert await end_of(store, claim.session_id) == before

    async def test_the_stores_clock_says_whether_a_request_expired(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await ask(store, claim, question("req_1", expires_at=clock.now() + 1_000))
        early = replace(reply(clock, claim.session_id, "req_1"), at=clock.now())
        clock.advance(2_000)
        assert isinstance(await admit_in_vain(store, early), RequestClosed)

    @pytest.mark.parametrize("closing", CLOSINGS, ids=name_of)
    async def test_a_request_that_its_lane_closed_takes_no_answer(
        self, store: Store, clock: ManualClock, closing: AnyRecord
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, question("req_1")))
        await write(store, park(replace(claim, number=1), closing))
        answer = reply(clock, claim.session_id, "req_1")
        assert isinstance(await admit_in_vain(store, answer), RequestClosed)
        assert await state_of(store, "req_1") == name_of(closing)

    @pytest.mark.parametrize("closing", CLOSINGS, ids=name_of)
    async def test_a_request_whose_answer_was_not_seen_cannot_be_closed_otherwise(
        self, store: Store, clock: ManualClock, closing: AnyRecord
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, question("req_1")))
        receipt = await admit(store, reply(clock, claim.session_id, "req_1"))
        refused = await write_in_vain(store, commit(claim, closing, number=1))
        assert refused.reason == "arrivals"
        assert [entry.offset for entry in refused.arrivals] == [receipt.offset]
        assert await end_of(store, claim.session_id) == receipt.offset
        assert await state_of(store, "req_1") == "answered"

    async def test_a_lane_that_saw_the_answer_may_still_close_the_request_by_a_cancel(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, question("req_1")))
        receipt = await admit(store, reply(clock, claim.session_id, "req_1"))
        await write(store, commit(claim, CLOSINGS[0], number=1, seen=receipt.offset))

    async def test_a_lane_takes_the_answer_that_closed_its_request(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, question("req_1")))
        receipt = await admit(store, reply(clock, claim.session_id, "req_1"))
        taken = r.RequestResolved(request_id="req_1", option="approve")
        await write(store, commit(claim, taken, number=1, seen=receipt.offset))
        assert await state_of(store, "req_1") == "answered"

    async def test_answer_and_expiry_at_once_have_one_winner(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        for number in range(0, 20, 2):
            name = f"req_{number}"
            seen = await end_of(store, claim.session_id)
            await write(store, commit(claim, question(name), number=number, seen=seen))
            expiry = commit(claim, r.RequestExpired(request_id=name), number=number + 1, seen=0)
            answer = reply(clock, claim.session_id, name)
            (answered,), _ = await asyncio.gather(
                store.log.admit([answer]), store.log.commit([expiry])
            )
            was_answered = isinstance(answered, AdmissionReceipt)
            assert await state_of(store, name) == ("answered" if was_answered else "expired")
            if was_answered:
                seen = await end_of(store, claim.session_id)
                await write(store, commit(claim, number=number + 1, seen=seen))

    async def test_listed_requests_are_the_open_ones_unless_all_are_wanted(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await ask(store, claim, question("req_1"), question("req_2"))
        await admit(store, reply(clock, claim.session_id, "req_1"))
        assert [q.request_id for q in await store.listing.requests(claim.session_id)] == ["req_2"]
        everything = await store.listing.requests(claim.session_id, open_only=False)
        assert {(q.request_id, q.state) for q in everything} == {
            ("req_1", "answered"),
            ("req_2", "open"),
        }

    async def test_requests_are_listed_for_one_session_or_for_all(
        self, store: Store, clock: ManualClock
    ) -> None:
        one = await start_and_claim(store, clock)
        await ask(store, one, question("req_1"))
        two = await start_and_claim(store, clock)
        await ask(store, two, question("req_2"))
        assert [q.request_id for q in await store.listing.requests(two.session_id)] == ["req_2"]
        assert {q.request_id for q in await store.listing.requests()} == {"req_1", "req_2"}
        assert len(await store.listing.requests(limit=1)) == 1

    async def test_requests_are_listed_by_tenant_agent_and_kind_behind_another(
        self, store: Store, clock: ManualClock
    ) -> None:
        one = await start_and_claim(store, clock, tenant="acme", agent="clerk")
        await ask(store, one, question("req_3"), replace(question("req_1"), kind="question"))
        two = await start_and_claim(store, clock)
        await ask(store, two, question("req_2"))

        async def listed(**filters: Any) -> list[str]:
            return [info.request_id for info in await store.listing.requests(**filters)]

        assert await listed() == ["req_3", "req_1", "req_2"]
        assert await listed(tenant="acme") == ["req_3", "req_1"]
        assert await listed(agent="support") == ["req_2"]
        assert await listed(kinds=["question"]) == ["req_1"]
        assert await listed(tenant="acme", after="req_3") == ["req_1"]
        assert await listed(after="req_1") == ["req_2"]

    async def test_a_request_names_its_tenant_and_agent(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock, tenant="acme", agent="clerk")
        await ask(store, claim, question("req_1"))

        found = await store.listing.request("req_1")

        assert found is not None
        assert (found.tenant, found.agent) == ("acme", "clerk")
