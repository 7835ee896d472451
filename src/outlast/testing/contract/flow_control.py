"""Flow control: fairness among tenants, limits on calls, and queues that may be full."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from outlast.core.limit import Bound
from outlast.errors import QueueFull
from outlast.store import Claim, LineInfo, Permit, PermitRequest, Refused, Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    admit_in_vain,
    cancel,
    commit,
    delta,
    enlist,
    message,
    new_session,
    park,
    places,
    put,
    settled,
    start_and_claim,
    turn_started,
    write,
    write_in_vain,
)
from outlast.testing.contract.store_under_test import StoreUnderTest

ONE = Bound("mutex:shop", concurrency=1)
WAITS = Permit(granted=False)
GRANTED = Permit(granted=True)


def request(
    claim: Claim, call_id: str = "t1.s1.c1", *bounds: Bound, **changes: Any
) -> PermitRequest:
    """The request of a lane's owner to begin a call."""
    wanted = PermitRequest(
        session_id=claim.session_id,
        lane=claim.lane,
        worker="w1",
        fence=claim.fence,
        call_id=call_id,
        bounds=bounds or (ONE,),
    )
    return replace(wanted, **changes)


async def ask_to_begin(
    store: Store, claim: Claim, *bounds: Bound, call_id: str = "t1.s1.c1"
) -> Any:
    (permit,) = await store.limit.acquire([request(claim, call_id, *bounds)])
    return permit


async def start_some(
    store: Store, clock: ManualClock, count: int, held: Sequence[Claim] = ()
) -> list[Claim]:
    claims = list(held)
    for _ in range(count):
        claims.append(await start_and_claim(store, clock, held=claims))
    return claims[len(held) :]


def after(claim: Claim, commits: int = 1) -> Claim:
    """The claim as it stands after some commits."""
    return replace(claim, number=claim.number + commits)


class FlowControlContract(StoreUnderTest):
    # Fairness

    @pytest.mark.parametrize("waiting", [20, 200])
    async def test_a_tenant_with_much_to_do_does_not_keep_others_waiting(
        self, store: Store, clock: ManualClock, waiting: int
    ) -> None:
        await enlist(store, clock)
        await store.log.admit([new_session(clock, tenant="large") for _ in range(waiting)])
        clock.advance(1000)
        small = [await admit(store, new_session(clock, tenant="small")) for _ in range(2)]
        claims = await store.work.claim("w1", 4)
        assert Counter(claim.tenant for claim in claims) == {"large": 2, "small": 2}
        assert {receipt.session_id for receipt in small} < {claim.session_id for claim in claims}

    async def test_what_a_tenant_has_at_work_counts_against_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        await enlist(store, clock)
        await enlist(store, clock, "w2")
        for _ in range(5):
            await admit(store, new_session(clock, tenant="large"))
        assert len(await store.work.claim("w1", 3)) == 3
        clock.advance(1000)
        for _ in range(4):
            await admit(store, new_session(clock, tenant="small"))
        claims = await store.work.claim("w2", 3)
        assert [claim.tenant for claim in claims] == ["small"] * 3

    async def test_the_work_of_the_dead_does_not_count(
        self, store: Store, clock: ManualClock
    ) -> None:
        await enlist(store, clock, lease=1000)
        for _ in range(3):
            await admit(store, new_session(clock, tenant="large"))
        assert len(await store.work.claim("w1", 3)) == 3
        clock.advance(2000)
        await enlist(store, clock, "w2")
        await admit(store, new_session(clock, tenant="small"))
        claims = await store.work.claim("w2", 2)
        assert [claim.tenant for claim in claims] == ["large", "small"]

    async def test_only_lanes_of_the_given_names_are_claimed(
        self, store: Store, clock: ManualClock
    ) -> None:
        await enlist(store, clock)
        session = (await admit(store, new_session(clock))).session_id
        await admit(store, message(clock, session, lane="bulk-1"))
        await admit(store, message(clock, session, lane="bulk?1"))
        claims = await store.work.claim("w1", 10, lanes=["bulk-*"])
        assert [claim.lane for claim in claims] == ["bulk-1"]
        claims = await store.work.claim("w1", 10, held=places(claims), lanes=["bulk?1"])
        assert [claim.lane for claim in claims] == ["bulk?1"]
        claims = await store.work.claim("w1", 10, held=[(session, "bulk-1"), (session, "bulk?1")])
        assert [claim.lane for claim in claims] == ["main"]

    async def test_of_an_agent_no_more_lanes_are_at_work_than_allowed(
        self, store: Store, clock: ManualClock
    ) -> None:
        await enlist(store, clock)
        await enlist(store, clock, "w2")
        for _ in range(4):
            await admit(store, new_session(clock))
        other = await admit(store, new_session(clock, agent="other"))
        first = await store.work.claim("w1", 1, most={"support": 2})
        claims = await store.work.claim("w2", 10, most={"support": 2})
        assert Counter(claim.agent for claim in claims) == {"support": 1, "other": 1}
        assert other.session_id in {claim.session_id for claim in claims}
        await write(store, park(first[0]))
        assert len(await store.work.claim("w1", 10, most={"support": 2})) == 1

    async def test_an_agent_at_its_limit_does_not_keep_others_waiting(
        self, store: Store, clock: ManualClock
    ) -> None:
        await enlist(store, clock)
        await store.log.admit([new_session(clock) for _ in range(150)])
        held = await store.work.claim("w1", 5, most={"support": 1})
        assert len(held) == 1
        clock.advance(1000)
        await admit(store, new_session(clock, agent="other"))
        (claim,) = await store.work.claim("w1", 5, held=places(held), most={"support": 1})
        assert claim.agent == "other"

    # Limits

    async def test_no_more_calls_begin_than_the_limit_allows(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second, third = await start_some(store, clock, 3)
        two = Bound("tool:search", concurrency=2)
        assert await ask_to_begin(store, first, two) == GRANTED
        assert await ask_to_begin(store, second, two) == GRANTED
        assert await ask_to_begin(store, third, two) == WAITS

    async def test_a_permit_is_granted_again_to_who_has_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        (claim,) = await start_some(store, clock, 1)
        assert await ask_to_begin(store, claim) == GRANTED
        assert await ask_to_begin(store, claim) == GRANTED
        assert await ask_to_begin(store, claim, call_id="t1.s1.c2") == WAITS

    async def test_limits_of_other_names_are_apart(self, store: Store, clock: ManualClock) -> None:
        first, second = await start_some(store, clock, 2)
        assert await ask_to_begin(store, first) == GRANTED
        assert await ask_to_begin(store, second, Bound("mutex:office", concurrency=1)) == GRANTED

    async def test_a_permit_that_is_given_back_makes_the_next_lane_ready(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second, third = await start_some(store, clock, 3)
        for claim in (first, second, third):
            await ask_to_begin(store, claim)
        await write(store, park(second, awaits_permit=True))
        await write(store, park(third, awaits_permit=True))
        assert await store.work.claim("w1", 10, held=places([first])) == []
        await write(store, commit(first, delta(), frees=("t1.s1.c1",)))
        (woken,) = await store.work.claim("w1", 10, held=places([first]))
        assert woken.session_id == second.session_id
        assert woken.permits == ("t1.s1.c1",)
        assert await ask_to_begin(store, woken) == GRANTED

    async def test_a_freed_permit_goes_to_who_asked_first(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second, third = await start_some(store, clock, 3)
        for claim in (first, second, third):
            await ask_to_begin(store, claim)
        await write(store, commit(first, delta(), frees=("t1.s1.c1",)))
        assert await ask_to_begin(store, third) == WAITS
        assert await ask_to_begin(store, second) == GRANTED

    async def test_who_gives_up_waiting_is_passed_by(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second, third = await start_some(store, clock, 3)
        for claim in (first, second, third):
            await ask_to_begin(store, claim)
        await write(store, commit(second, delta(), frees=("t1.s1.c1",)))
        await write(store, commit(first, delta(), frees=("t1.s1.c1",)))
        assert await ask_to_begin(store, third) == GRANTED

    async def test_nobody_rests_while_there_is_a_place_for_him(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second = await start_some(store, clock, 2)
        await ask_to_begin(store, first)
        assert await ask_to_begin(store, second) == WAITS
        await write(store, commit(first, delta(), frees=("t1.s1.c1",)))
        refused = await write_in_vain(store, park(second, awaits_permit=True))
        assert refused.reason == "arrivals"

    async def test_a_permit_outlives_its_lanes_owner(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second = await start_some(store, clock, 2)
        await ask_to_begin(store, first)
        await write(store, park(first, ready_at=0))
        (again,) = await store.work.claim("w1", 10, held=places([second]))
        assert again.permits == ("t1.s1.c1",)
        assert await ask_to_begin(store, second) == WAITS
        assert await ask_to_begin(store, again) == GRANTED

    async def test_a_worker_that_lost_the_lane_gets_no_permit(
        self, store: Store, clock: ManualClock
    ) -> None:
        (claim,) = await start_some(store, clock, 1)
        await store.work.claim("w1", 10)
        assert await ask_to_begin(store, claim) == Refused("lease_lost")
        assert await store.limit.permits() == []

    async def test_a_worker_that_lost_the_lane_frees_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second = await start_some(store, clock, 2)
        await ask_to_begin(store, first)
        await store.work.claim("w1", 10, held=places([second]))
        await write_in_vain(store, commit(first, delta(), frees=("t1.s1.c1",)))
        assert await ask_to_begin(store, second) == WAITS

    async def test_a_rate_lets_so_many_begin_and_names_the_time_for_the_next(
        self, store: Store, clock: ManualClock
    ) -> None:
        claims = await start_some(store, clock, 4)
        rate = Bound("model:gpt", rate=2, per=1000)
        assert await ask_to_begin(store, claims[0], rate) == GRANTED
        assert await ask_to_begin(store, claims[1], rate) == GRANTED
        third = await ask_to_begin(store, claims[2], rate)
        fourth = await ask_to_begin(store, claims[3], rate)
        assert (third.granted, third.again_at) == (False, clock.now() + 500)
        assert (fourth.granted, fourth.again_at) == (False, clock.now() + 1000)
        clock.advance(500)
        assert not (await ask_to_begin(store, claims[3], rate)).granted
        assert await ask_to_begin(store, claims[2], rate) == GRANTED
        clock.advance(500)
        assert await ask_to_begin(store, claims[3], rate) == GRANTED
        assert await store.limit.permits() == []

    async def test_a_call_under_several_limits_needs_a_place_under_each(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second = await start_some(store, clock, 2)
        both = (Bound("a", concurrency=2), Bound("b", concurrency=1))
        assert await ask_to_begin(store, first, *both) == GRANTED
        assert await ask_to_begin(store, second, *both) == WAITS
        await write(store, commit(first, delta(), frees=("t1.s1.c1",)))
        assert await ask_to_begin(store, second, *both) == GRANTED

    async def test_under_a_limit_tenants_take_turns(self, store: Store, clock: ManualClock) -> None:
        two = Bound("model:gpt", concurrency=2)
        large = [await start_and_claim(store, clock, tenant="large")]
        for _ in range(4):
            large.append(await start_and_claim(store, clock, held=large, tenant="large"))
        for claim in large:
            await ask_to_begin(store, claim, two)
        small = await start_and_claim(store, clock, held=large, tenant="small")
        assert await ask_to_begin(store, small, two) == WAITS
        rows = await store.limit.permits(name=two.name)
        order = [claim.session_id for claim in (*large[:2], small, *large[2:])]
        assert [row.session_id for row in rows] == order
        assert [row.ahead for row in rows] == [0, 0, 0, 1, 2, 3]
        await write(store, commit(large[0], delta(), frees=("t1.s1.c1",)))
        assert await ask_to_begin(store, large[2], two) == WAITS
        assert await ask_to_begin(store, small, two) == GRANTED
        await write(store, commit(large[1], delta(), frees=("t1.s1.c1",)))
        assert await ask_to_begin(store, large[2], two) == GRANTED

    async def test_one_at_a_time_tenants_take_turns(self, store: Store, clock: ManualClock) -> None:
        held: list[Claim] = []
        for tenant in ("large", "large", "large", "large", "small", "small"):
            held.append(await start_and_claim(store, clock, held=held, tenant=tenant))
            await ask_to_begin(store, held[-1])
        began = [held.pop(0)]
        while held:
            await write(store, commit(began[-1], delta(), frees=("t1.s1.c1",)))
            (one,) = [one for one in held if await ask_to_begin(store, one) == GRANTED]
            held.remove(one)
            began.append(one)
        tenants = [claim.tenant for claim in began[1:5]]
        assert tenants in (["large", "small"] * 2, ["small", "large"] * 2)

    async def test_a_rate_of_hundreds_in_a_second_is_what_it_says(
        self, store: Store, clock: ManualClock
    ) -> None:
        (claim,) = await start_some(store, clock, 1)
        rate = Bound("model:gpt:rate", rate=700, per=1000)
        begun = 0
        for _ in range(100):
            while (await ask_to_begin(store, claim, rate, call_id=f"t1.s1.c{begun}")).granted:
                begun += 1
            clock.advance(10)
        assert 1380 <= begun <= 1400

    async def test_what_a_call_asked_for_before_and_does_not_ask_for_now_is_free(
        self, store: Store, clock: ManualClock
    ) -> None:
        one, two = await start_some(store, clock, 2)
        other = Bound("mutex:other", concurrency=1)
        assert await ask_to_begin(store, one, ONE) == GRANTED
        assert await ask_to_begin(store, two, ONE) == WAITS
        await write(store, park(two, awaits_permit=True))
        assert await ask_to_begin(store, one, other) == GRANTED
        (again,) = await store.work.claim("w1", 1, held=places([one]))
        assert again.session_id == two.session_id
        assert await ask_to_begin(store, again, ONE) == GRANTED
        assert [(p.name, p.session_id) for p in await store.limit.permits()] == [
            ("mutex:other", one.session_id),
            ("mutex:shop", two.session_id),
        ]

    async def test_a_call_that_is_freed_with_a_rest_is_not_rested_for(
        self, store: Store, clock: ManualClock
    ) -> None:
        one, two = await start_some(store, clock, 2)
        bounds = {"t1.s1.c1": ONE, "t1.s1.c2": Bound("mutex:other", concurrency=1)}
        for call_id, bound in bounds.items():
            assert await ask_to_begin(store, one, bound, call_id=call_id) == GRANTED
            assert await ask_to_begin(store, two, bound, call_id=call_id) == WAITS
        await write(store, commit(one, delta(), frees=("t1.s1.c1",)))
        await write(store, park(two, awaits_permit=True, frees=("t1.s1.c1",)))

    async def test_under_a_rate_tenants_take_turns(self, store: Store, clock: ManualClock) -> None:
        rate = Bound("model:gpt:rate", rate=1, per=1000)
        held: list[Claim] = []
        for tenant in ("large", "large", "large", "large", "small", "small"):
            held.append(await start_and_claim(store, clock, held=held, tenant=tenant))
            await ask_to_begin(store, held[-1], rate)
        began = [held.pop(0)]
        while held:
            clock.advance(1000)
            (one,) = [one for one in held if await ask_to_begin(store, one, rate) == GRANTED]
            held.remove(one)
            began.append(one)
        tenants = [claim.tenant for claim in began[1:5]]
        assert tenants in (["large", "small"] * 2, ["small", "large"] * 2)

    async def test_a_call_that_is_ahead_comes_before_those_that_asked_a_little_earlier(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second, urgent, late = await start_some(store, clock, 4)
        await ask_to_begin(store, first)
        await ask_to_begin(store, second)
        clock.advance(5000)
        wants = request(urgent, ahead=5001)
        assert await store.limit.acquire([wants]) == [WAITS]
        assert await store.limit.acquire([replace(wants, ahead=0)]) == [WAITS]  # as it said first
        clock.advance(5000)
        assert await store.limit.acquire([request(late, ahead=4999)]) == [WAITS]
        rows = await store.limit.permits(name=ONE.name)
        order = [each.session_id for each in (first, urgent, second, late)]
        assert [row.session_id for row in rows] == order
        await write(store, commit(first, delta(), frees=("t1.s1.c1",)))
        assert await ask_to_begin(store, second) == WAITS
        assert await ask_to_begin(store, urgent) == GRANTED

    async def test_a_call_that_is_behind_comes_after_those_that_ask_a_little_later(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, patient, second = await start_some(store, clock, 3)
        rate = Bound("queue:mail:rate", rate=1, per=1000)
        await ask_to_begin(store, first, rate)
        await store.limit.acquire([request(patient, "t1.s1.c1", rate, ahead=-600)])
        clock.advance(500)
        assert (await ask_to_begin(store, second, rate)).again_at == clock.now() + 500
        clock.advance(500)
        assert not (await ask_to_begin(store, patient, rate)).granted
        assert await ask_to_begin(store, second, rate) == GRANTED

    async def test_however_many_come_ahead_of_a_call_it_has_its_turn(
        self, store: Store, clock: ManualClock
    ) -> None:
        began, patient = await start_some(store, clock, 2)
        await ask_to_begin(store, began)
        assert await store.limit.acquire([request(patient, ahead=-3000)]) == [WAITS]
        held, overtaken = [began, patient], 0
        while True:
            clock.advance(1000)
            (urgent,) = await start_some(store, clock, 1, held)
            held.append(urgent)
            assert await store.limit.acquire([request(urgent, ahead=3000)]) == [WAITS]
            await write(store, commit(began, delta(), frees=("t1.s1.c1",)))
            if await ask_to_begin(store, patient) == GRANTED:
                break
            assert await ask_to_begin(store, urgent) == GRANTED
            began, overtaken = urgent, overtaken + 1
        assert overtaken == 5

    async def test_the_calls_of_limits_are_counted(self, store: Store, clock: ManualClock) -> None:
        first, second, third = await start_some(store, clock, 3)
        mail, post = Bound("queue:mail", concurrency=1), Bound("queue:post", concurrency=1)
        other = Bound("queuf", concurrency=1)
        for bound in (other, post, mail):
            await ask_to_begin(store, first, bound, call_id=bound.name)
        clock.advance(10)
        since = clock.now()
        await store.limit.acquire([request(second, "t1", mail, ahead=9000)])
        clock.advance(10)
        await ask_to_begin(store, third, mail)
        assert await store.limit.lines("queue:") == [
            LineInfo(name="queue:mail", held=1, waiting=2, oldest_at=since),
            LineInfo(name="queue:post", held=1, waiting=0),
        ]
        assert [line.name for line in await store.limit.lines("")] == [
            "queue:mail",
            "queue:post",
            "queuf",
        ]

    async def test_a_limit_that_is_widened_wakes_as_many_more_as_have_a_place(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, *others = await start_some(store, clock, 4)
        for claim in (first, *others):
            await ask_to_begin(store, claim)
        for claim in (first, *others):
            await write(store, park(claim, awaits_permit=True))
        assert not await store.work.claim("w1", 10)

        assert await store.limit.resize(ONE.name, 3) == 3
        ready = await store.work.claim("w1", 10)
        holder, *woken = sorted(claim.session_id for claim in ready)
        assert [holder, *woken] == sorted(c.session_id for c in (first, *others[:2]))
        three = Bound(ONE.name, concurrency=3)
        assert [await ask_to_begin(store, claim, three) for claim in ready] == [GRANTED] * 3

    async def test_a_limit_that_nobody_waits_for_can_be_resized(
        self, store: Store, clock: ManualClock
    ) -> None:
        (holder,) = await start_some(store, clock, 1)
        await ask_to_begin(store, holder)
        assert await store.limit.resize(ONE.name, 7) == 0
        assert await store.limit.resize("mutex:unheard-of", 1) == 0

    async def test_who_does_not_come_for_his_place_is_passed_by(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second, third = await start_some(store, clock, 3)
        for claim in (first, second, third):
            await ask_to_begin(store, claim)
        await write(store, park(second, awaits_permit=True))
        await write(store, park(third, awaits_permit=True))
        assert await store.limit.skip_stale(1000) == 0
        await write(store, commit(first, delta(), frees=("t1.s1.c1",)))
        clock.advance(1000)
        assert await store.limit.skip_stale(1000) == 0
        clock.advance(1)
        assert await store.limit.skip_stale(1000) == 1
        claims = await store.work.claim("w1", 10, held=places([first]))
        (next_one,) = [claim for claim in claims if claim.session_id == third.session_id]
        assert await ask_to_begin(store, next_one) == GRANTED
        assert await store.limit.skip_stale(1000) == 0

    async def test_who_was_passed_by_comes_before_those_after_him_when_he_asks(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second, third = await start_some(store, clock, 3)
        for claim in (first, second, third):
            await ask_to_begin(store, claim)
        await write(store, commit(first, delta(), frees=("t1.s1.c1",)))
        clock.advance(1001)
        assert await store.limit.skip_stale(1000) == 1
        rows = await store.limit.permits()
        assert [(row.session_id, row.ahead) for row in rows] == [
            (third.session_id, 0),
            (second.session_id, 1),
        ]
        assert await ask_to_begin(store, second) == GRANTED
        assert await ask_to_begin(store, third) == WAITS

    async def test_who_was_passed_by_asks_before_he_rests(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second, third = await start_some(store, clock, 3)
        for claim in (first, second, third):
            await ask_to_begin(store, claim)
        await write(store, commit(first, delta(), frees=("t1.s1.c1",)))
        clock.advance(1001)
        await store.limit.skip_stale(1000)
        assert await ask_to_begin(store, third) == GRANTED
        refused = await write_in_vain(store, park(second, awaits_permit=True))
        assert refused.reason == "arrivals"
        assert await ask_to_begin(store, second) == WAITS
        await write(store, park(second, awaits_permit=True))

    async def test_who_does_not_come_for_his_turn_under_a_rate_is_passed_by(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second, third = await start_some(store, clock, 3)
        rate = Bound("model:gpt:rate", rate=1, per=1000)
        assert await ask_to_begin(store, first, rate) == GRANTED
        await ask_to_begin(store, second, rate)
        clock.advance(1500)
        assert not (await ask_to_begin(store, third, rate)).granted
        clock.advance(501)
        assert await store.limit.skip_stale(1000) == 1
        assert await ask_to_begin(store, third, rate) == GRANTED

    async def test_who_holds_a_permit_in_a_lane_that_nobody_takes_is_passed_by_in_a_line(
        self, store: Store, clock: ManualClock
    ) -> None:
        line, other = Bound("line:gpt", concurrency=1), Bound("lines", concurrency=1)
        first, second, third = await start_some(store, clock, 3)
        for bound in (other, line):
            assert await ask_to_begin(store, first, bound, call_id=bound.name) == GRANTED
            for claim in (second, third):
                assert await ask_to_begin(store, claim, bound, call_id=bound.name) == WAITS
        clock.advance(5000)
        assert await store.limit.skip_stale(1000, "line:") == 0  # its worker is at it
        due_at = clock.now() + 500
        await write(store, park(first, ready_at=due_at))
        await write(store, park(second, awaits_permit=True))
        clock.advance(1500)
        assert await store.limit.skip_stale(1000, "line:") == 0
        clock.advance(1)
        assert await store.limit.skip_stale(1000) == 0
        assert await store.limit.skip_stale(1000, "line:") == 1

        [again] = [
            claim
            for claim in await store.work.claim("w1", 10, held=places([third]))
            if claim.session_id == second.session_id
        ]
        assert await ask_to_begin(store, again, line, call_id=line.name) == GRANTED
        assert await ask_to_begin(store, again, other, call_id=other.name) == WAITS

    async def test_who_holds_and_who_waits_is_listed_in_order(
        self, store: Store, clock: ManualClock
    ) -> None:
        claims = await start_some(store, clock, 3)
        for claim in claims:
            await ask_to_begin(store, claim)
        rows = await store.limit.permits(name=ONE.name)
        assert [row.session_id for row in rows] == [claim.session_id for claim in claims]
        assert [(row.held, row.ahead) for row in rows] == [(True, 0), (False, 0), (False, 1)]
        (only,) = await store.limit.permits(claims[1].session_id)
        assert (only.name, only.lane, only.call_id) == (ONE.name, "main", "t1.s1.c1")

    # Queues

    async def test_a_session_takes_no_more_messages_than_fit_its_queue(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock, most_queued=2))).session_id
        await admit(store, message(clock, session, lane="side", most_queued=2))
        refusal = await admit_in_vain(store, message(clock, session, most_queued=2))
        assert isinstance(refusal, QueueFull)
        assert refusal.details == {"most": 2, "session": session}
        assert len(await store.listing.deliveries(session)) == 2

    async def test_what_is_taken_up_leaves_room(self, store: Store, clock: ManualClock) -> None:
        await enlist(store, clock)
        first = await admit(store, new_session(clock, most_queued=1))
        (claim,) = await store.work.claim("w1", 1)
        await admit_in_vain(store, message(clock, first.session_id, most_queued=1))
        await write(store, commit(claim, turn_started(first.delivery_id)))
        await admit(store, message(clock, first.session_id, most_queued=1))
        await write(store, commit(after(claim), settled(first.delivery_id)))
        await admit_in_vain(store, message(clock, first.session_id, most_queued=1))

    async def test_a_tenant_takes_no_more_messages_than_fit_its_queue(
        self, store: Store, clock: ManualClock
    ) -> None:
        await admit(store, new_session(clock, most_queued_of_tenant=2))
        session = (await admit(store, new_session(clock, most_queued_of_tenant=2))).session_id
        third = new_session(clock, most_queued_of_tenant=2)
        refusal = await admit_in_vain(store, third)
        assert isinstance(refusal, QueueFull)
        assert refusal.details == {"most": 2, "tenant": "default"}
        assert await store.listing.session(third.session_id) is None
        await admit_in_vain(store, message(clock, session, most_queued_of_tenant=2))
        await admit(store, new_session(clock, tenant="other", most_queued_of_tenant=2))

    async def test_a_full_queue_still_takes_cancels_and_repeats(
        self, store: Store, clock: ManualClock
    ) -> None:
        first = new_session(clock, most_queued=1)
        session = (await admit(store, first)).session_id
        await admit(store, replace(cancel(clock, session), most_queued=1))
        assert (await admit(store, first)).duplicate

    # Slices

    async def test_a_commit_made_of_older_slices_is_refused(
        self, store: Store, clock: ManualClock
    ) -> None:
        main = await start_and_claim(store, clock)
        await admit(store, message(clock, main.session_id, lane="side"))
        (side,) = await store.work.claim("w1", 10, held=places([main]))
        changed = await write(store, commit(side, put("1"), slices_seen=0))
        refused = await write_in_vain(store, commit(main, put("2"), slices_seen=0))
        assert refused.reason == "slices_changed"
        await write(store, commit(main, put("2"), slices_seen=changed.first_offset))
