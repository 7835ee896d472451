"""Deployments: what is pinned to one is given to its workers, the rest to the current one's."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core.instant import date_of
from outlast.store import ANYONE, NO_PIN, Claim, Pin, Store, WorkerInfo
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    AGENT,
    LEASE,
    admit,
    claim_one,
    commit,
    end_of,
    enlist,
    message,
    new_session,
    park,
    turn_started,
    write,
)
from outlast.testing.contract.store_under_test import StoreUnderTest


async def deploy(
    store: Store, clock: Clock, deployment: str, agents: Sequence[str] = (AGENT,)
) -> None:
    """Register a worker named like its deployment."""
    info = WorkerInfo(
        worker=deployment or "unnamed",
        host="here",
        pid=1,
        started_at=date_of(clock.now()),
        agents=tuple(agents),
        deployment=deployment,
    )
    await store.work.enlist(info, LEASE)


async def claimed(store: Store, worker: str) -> list[str]:
    return [claim.session_id for claim in await store.work.claim(worker, 10)]


async def rests(store: Store, claim: Claim, pin: Pin | None, worker: str) -> str:
    """Give a lane back in the middle of its turn, pinned, and ready again at once."""
    delivery = (await store.listing.deliveries(claim.session_id))[0].delivery_id
    started = turn_started(delivery)
    given = park(claim, started, worker=worker, turn="t1", pin=pin, ready_at=0)
    await write(store, given)
    return claim.session_id


class DeploymentContract(StoreUnderTest):
    async def test_a_new_deployment_is_current_and_is_given_what_is_pinned_to_none(
        self, store: Store, clock: ManualClock
    ) -> None:
        await deploy(store, clock, "v1")
        first = await admit(store, new_session(clock))
        assert await claimed(store, "v1") == [first.session_id]

        await deploy(store, clock, "v2")
        await deploy(store, clock, "v1")  # its second worker changes nothing
        second = await admit(store, new_session(clock))
        assert await claimed(store, "v1") == [first.session_id]  # handed out again: it is its own
        assert await claimed(store, "v2") == [second.session_id]
        found = await store.work.deployments()
        assert [(d.name, d.current) for d in found] == [("v2", (AGENT,)), ("v1", ())]
        assert [info.deployment for info in await store.work.workers()] == ["v1", "v2"]

    async def test_a_turn_stays_with_its_deployment_while_a_worker_of_it_claims(
        self, store: Store, clock: ManualClock
    ) -> None:
        await deploy(store, clock, "v1")
        await admit(store, new_session(clock))
        claim = await claim_one(store, "v1")
        assert claim.pin == NO_PIN
        session_id = await rests(store, claim, Pin("v1"), "v1")
        await deploy(store, clock, "v2")

        assert await store.listing.pins(session_id) == {"main": Pin("v1")}
        assert await claimed(store, "v2") == []
        again = await claim_one(store, "v1")
        assert again.pin == Pin("v1")
        await write(store, park(again, worker="v1", turn="t1", ready_at=0))
        await store.work.drain("v1")
        assert await claimed(store, "v2") == [session_id]

    async def test_a_dead_worker_keeps_no_turn_with_its_deployment(
        self, store: Store, clock: ManualClock
    ) -> None:
        await deploy(store, clock, "v1")
        await admit(store, new_session(clock))
        session_id = await rests(store, await claim_one(store, "v1"), Pin("v1"), "v1")
        clock.advance(LEASE + 1)
        await deploy(store, clock, "v2")

        assert await claimed(store, "v2") == [session_id]

    async def test_an_owner_that_was_lost_is_followed_by_one_of_the_same_deployment(
        self, store: Store, clock: ManualClock
    ) -> None:
        await deploy(store, clock, "v1")
        receipt = await admit(store, new_session(clock))
        claim = await claim_one(store, "v1")
        await write(
            store,
            commit(claim, turn_started(receipt.delivery_id), worker="v1", turn="t1", pin=Pin("v1")),
        )
        clock.advance(LEASE + 1)
        await deploy(store, clock, "v2")
        info = WorkerInfo(
            worker="second",
            host="here",
            pid=1,
            started_at=date_of(clock.now()),
            agents=(AGENT,),
            deployment="v1",
        )
        await store.work.enlist(info, LEASE)

        assert await claimed(store, "v2") == []
        assert await claimed(store, "second") == [receipt.session_id]

    async def test_what_stays_with_a_deployment_waits_for_it_until_it_is_moved(
        self, store: Store, clock: ManualClock
    ) -> None:
        await deploy(store, clock, "v1")
        receipt = await admit(store, new_session(clock))
        claim = await claim_one(store, "v1")
        session_id = await rests(store, claim, Pin("v1", stays=True), "v1")
        clock.advance(LEASE + 1)
        await deploy(store, clock, "v2")

        assert await claimed(store, "v2") == []
        await admit(store, message(clock, receipt.session_id, "beside", lane="other"))
        assert await claimed(store, "v2") == []  # a new lane of the session stays there as well
        assert await store.work.retire("v1", "v2") == 2
        assert await claimed(store, "v2") == [session_id, session_id]
        assert await store.listing.pins(session_id) == {
            "main": Pin("v2", stays=True),
            "other": Pin("v2", stays=True),
        }

    async def test_what_anyone_may_mend_is_given_to_every_deployment(
        self, store: Store, clock: ManualClock
    ) -> None:
        await deploy(store, clock, "v1")
        await admit(store, new_session(clock))
        session_id = await rests(store, await claim_one(store, "v1"), Pin(ANYONE), "v1")
        await deploy(store, clock, "v2")
        await deploy(store, clock, "")

        again = await claim_one(store, "v1")
        assert again.pin == Pin(ANYONE)
        await write(store, park(again, worker="v1", turn="t1", ready_at=0))
        again = await claim_one(store, "unnamed")
        await write(store, park(again, worker="unnamed", turn="t1", ready_at=0, pin=NO_PIN))
        assert await store.listing.pins(session_id) == {}
        assert await claimed(store, "unnamed") == []
        assert await claimed(store, "v2") == [session_id]

    async def test_what_waits_for_code_is_looked_at_first_by_what_becomes_current(
        self, store: Store, clock: ManualClock
    ) -> None:
        for name in ("v1", "v2"):
            await deploy(store, clock, name)
        receipt = await admit(store, new_session(clock))
        waits: dict[str, Any] = {"turn": "t1", "pin": Pin(ANYONE), "wait": ("code",)}

        async def looks_in_vain(worker: str) -> None:
            claim = await claim_one(store, worker)
            assert claim.session_id == receipt.session_id
            later = store.clock.latest() + 60_000
            await write(store, park(claim, worker=worker, ready_at=later, **waits))

        await looks_in_vain("v2")
        assert await store.work.promote("v1")
        assert await claimed(store, "v2") == []
        await looks_in_vain("v1")
        await deploy(store, clock, "v2")  # not the current one: its new worker changes nothing
        assert await claimed(store, "v1") == []
        await deploy(store, clock, "v3")
        assert await claimed(store, "v1") == []
        await looks_in_vain("v3")
        assert await store.work.retire("v3", "v1") == 0
        await looks_in_vain("v1")

        clock.advance(60_001)
        for name in ("v1", "v2"):
            await deploy(store, clock, name)
        assert await claimed(store, "v2") == []
        assert await claimed(store, "v1") == [receipt.session_id]

    async def test_what_waits_for_code_is_left_to_all_while_the_current_one_has_no_worker(
        self, store: Store, clock: ManualClock
    ) -> None:
        for name in ("v1", "v2"):
            await deploy(store, clock, name)
        receipt = await admit(store, new_session(clock))
        claim = await claim_one(store, "v2")
        waits: dict[str, Any] = {"turn": "t1", "pin": Pin(ANYONE), "wait": ("code",)}
        await write(store, park(claim, worker="v2", ready_at=0, **waits))
        await store.work.drain("v1")
        assert await store.work.promote("v1")
        assert await claimed(store, "v2") == [receipt.session_id]

    async def test_a_promoted_deployment_is_current_again(
        self, store: Store, clock: ManualClock
    ) -> None:
        for name in ("v1", "v2"):
            await deploy(store, clock, name)
        assert await store.work.promote("v1")
        assert not await store.work.promote("v3")

        receipt = await admit(store, new_session(clock))
        assert await claimed(store, "v2") == []
        assert await claimed(store, "v1") == [receipt.session_id]

    async def test_deployments_of_other_agents_are_none_of_an_agents(
        self, store: Store, clock: ManualClock
    ) -> None:
        await deploy(store, clock, "v1", [AGENT, "clerk"])
        await deploy(store, clock, "poems-7", ["poet"])
        await deploy(store, clock, "v2", [AGENT])
        await enlist(store, clock, "w1")  # of no deployment
        known = {
            agent: (await admit(store, new_session(clock, agent=agent))).session_id
            for agent in (AGENT, "clerk", "poet", "lone")
        }

        assert await claimed(store, "v2") == [known[AGENT], known["lone"]]
        assert await claimed(store, "w1") == []
        assert await claimed(store, "poems-7") == [known["poet"]]
        assert await claimed(store, "v1") == [known["clerk"]]

    async def test_a_child_goes_with_its_parent(self, store: Store, clock: ManualClock) -> None:
        await deploy(store, clock, "v1")
        await deploy(store, clock, "v2")
        child = await admit(store, replace(new_session(clock), deployment="v1", parent="ses_p"))

        assert await claimed(store, "v2") == []
        assert (await claim_one(store, "v1")).pin == Pin("v1")
        await store.log.erase(child.session_id)
        assert await store.listing.pins(child.session_id) == {}

    async def test_a_deployment_tells_what_is_left_on_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        await deploy(store, clock, "v1")
        first = await admit(store, new_session(clock))
        claim = await claim_one(store, "v1")
        await rests(store, claim, Pin("v1"), "v1")
        began = store.clock.earliest()
        clock.advance(5_000)
        await deploy(store, clock, "v2")

        new, old = await store.work.deployments()
        assert (new.name, new.workers, new.turns, new.can_be_retired) == ("v2", 1, 0, False)
        assert (old.name, old.workers, old.turns, old.can_be_retired) == ("v1", 1, 1, False)
        assert old.oldest_at is not None
        assert abs((old.oldest_at - date_of(began)).total_seconds()) < 1
        assert new.oldest_at is None

        again = await claim_one(store, "v1")
        await write(store, park(again, worker="v1", pin=NO_PIN))
        [_, old] = await store.work.deployments()
        assert (old.turns, old.oldest_at, old.can_be_retired) == (0, None, True)
        assert await end_of(store, first.session_id)

    async def test_a_worker_of_a_retired_deployment_pins_nothing_to_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        await deploy(store, clock, "v1", [AGENT, "clerk"])
        ours = await admit(store, new_session(clock))
        theirs = await admit(store, new_session(clock, agent="clerk"))
        claims = {claim.session_id: claim for claim in await store.work.claim("v1", 10)}
        await deploy(store, clock, "v2")
        await deploy(store, clock, "v3")
        assert await store.work.retire("v1", "v2") == 0
        for receipt in (ours, theirs):  # which its worker had, as yet pinned to none
            await rests(store, claims[receipt.session_id], Pin("v1", stays=True), "v1")

        assert await store.listing.pins(ours.session_id) == {"main": Pin("v2", stays=True)}
        assert await store.listing.pins(theirs.session_id) == {"main": Pin("v1", stays=True)}
        assert await store.work.retire("v2", "v3") == 1
        child = await admit(store, replace(new_session(clock), deployment="v1", parent="ses_p"))
        assert await store.listing.pins(child.session_id) == {"main": Pin("v3")}

        assert await store.work.promote("v1")
        child = await admit(store, replace(new_session(clock), deployment="v1", parent="ses_p"))
        assert await store.listing.pins(child.session_id) == {"main": Pin("v1")}

    async def test_only_deployments_that_are_known_are_retired(
        self, store: Store, clock: ManualClock
    ) -> None:
        await deploy(store, clock, "v1")
        await deploy(store, clock, "v2")

        assert await store.work.retire("v1", "v3") is None
        assert await store.work.retire("v3", "v1") is None
        assert await store.work.retire("v2", "v1") == 0
        assert [d.name for d in await store.work.deployments() if d.current] == ["v1"]
