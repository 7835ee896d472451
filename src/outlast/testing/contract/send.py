"""Messages of a commit to other sessions arrive with it, or not at all."""

from msgspec.structs import replace

from outlast.core import record as r
from outlast.store import Claim, Committed, Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    ask,
    cancel,
    claim_one,
    commit,
    delta,
    message,
    new_session,
    park,
    places,
    question,
    read_all,
    reply,
    start_and_claim,
    write,
    write_in_vain,
)
from outlast.testing.contract.store_under_test import StoreUnderTest


class SendContract(StoreUnderTest):
    async def test_a_session_is_started_by_the_commit_that_sends_its_start(
        self, store: Store, clock: ManualClock
    ) -> None:
        parent = await start_and_claim(store, clock)
        child = new_session(clock, "look this up", parent=parent.session_id, token="c1")  # noqa: S106

        await write(store, commit(parent, delta(), sends=(child,)))

        info = await store.listing.session(child.session_id)
        assert info is not None
        assert (info.parent, info.token, info.lanes[0].queued) == (parent.session_id, "c1", 1)
        [claim] = await store.work.claim("w1", 10, held=places([parent]))
        assert claim.session_id == child.session_id
        assert [type(e.record) for e in await read_all(store, child.session_id)] == [
            r.SessionStarted,
            r.DeliveryQueued,
        ]

    async def test_children_are_listed_by_their_parent(
        self, store: Store, clock: ManualClock
    ) -> None:
        parent = await start_and_claim(store, clock)
        children = [new_session(clock, parent=parent.session_id) for _ in range(3)]
        await write(store, commit(parent, delta(), sends=tuple(children)))

        listed = await store.listing.sessions(parent=parent.session_id)

        assert [info.session_id for info in listed] == [c.session_id for c in reversed(children)]
        assert await store.listing.sessions(parent=children[0].session_id) == []
        found = await store.listing.session(parent.session_id)
        assert found is not None
        assert found.parent == ""

    async def test_a_commit_that_is_refused_sends_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        parent = await start_and_claim(store, clock)
        child = new_session(clock)

        await write_in_vain(store, commit(parent, delta(), fence=0, sends=(child,)))

        assert await store.listing.session(child.session_id) is None

    async def test_a_repeated_commit_sends_once(self, store: Store, clock: ManualClock) -> None:
        parent = await start_and_claim(store, clock)
        other = await admit(store, new_session(clock))
        said = message(clock, other.session_id, "hello")
        wanted = commit(parent, delta(), sends=(said,))

        first = await write(store, wanted)
        again = await write(store, wanted)

        assert again.first_offset == first.first_offset
        assert len(await store.listing.deliveries(other.session_id)) == 2

    async def test_a_reply_that_is_sent_closes_its_request_and_wakes_the_lane(
        self, store: Store, clock: ManualClock
    ) -> None:
        parent = await start_and_claim(store, clock)
        await ask(store, parent, question("req_1"))
        child = await start_and_claim(store, clock)
        answer = reply(clock, parent.session_id, "req_1")

        await write(store, park(child, delta(), sends=(answer,)))

        asked = await store.listing.request("req_1")
        assert asked is not None
        assert asked.state == "answered"
        assert (await claim_one(store)).session_id == parent.session_id

    async def test_what_nobody_can_take_is_dropped_and_the_commit_is_written(
        self, store: Store, clock: ManualClock
    ) -> None:
        closed = await start_and_claim(store, clock)
        closed = await ask(store, closed, question("req_1"))
        await admit(store, reply(clock, closed.session_id, "req_1"))
        over = await start_and_claim(store, clock, held=[closed])
        await write(store, park(over, r.SessionEnded(), status="ended"))
        sender = await start_and_claim(store, clock, held=[closed, over])
        sends = (
            reply(clock, closed.session_id, "req_1", "deny"),
            message(clock, over.session_id),
            message(clock, clock.new_id("ses")),
        )

        result = await write(store, commit(sender, delta(), sends=sends))

        assert result.first_offset == 3
        assert len(await store.listing.deliveries(closed.session_id)) == 2
        assert len(await store.listing.deliveries(over.session_id)) == 1

    async def test_what_is_sent_after_something_dropped_arrives(
        self, store: Store, clock: ManualClock
    ) -> None:
        other = await admit(store, new_session(clock))
        sender = await start_and_claim(store, clock)
        sends = (message(clock, "ses_unknown"), message(clock, other.session_id, "second"))

        await write(store, commit(sender, delta(), sends=sends))

        assert len(await store.listing.deliveries(other.session_id)) == 2

    async def test_a_cancel_that_is_sent_is_given_the_turn_that_is_open(
        self, store: Store, clock: ManualClock
    ) -> None:
        other = await start_and_claim(store, clock)
        await write(store, commit(other, delta(), turn="t7"))
        sender = await start_and_claim(store, clock, held=[other])

        await write(store, commit(sender, delta(), sends=(cancel(clock, other.session_id),)))

        last = (await read_all(store, other.session_id))[-1].record
        assert isinstance(last, r.CancelRequested)
        assert last.turn == "t7"

    async def test_the_owner_of_the_other_lane_is_handed_what_was_sent_to_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        other = await start_and_claim(store, clock)
        sender = await start_and_claim(store, clock, held=[other])
        await write(store, commit(sender, delta(), sends=(message(clock, other.session_id),)))

        refused = await write_in_vain(store, park(other, delta()))

        assert refused.reason == "arrivals"
        assert len(refused.arrivals) == 1

    async def test_two_sessions_of_one_group_send_to_each_other(
        self, store: Store, clock: ManualClock
    ) -> None:
        claims: list[Claim] = []
        for _ in range(6):
            claims.append(await start_and_claim(store, clock, held=claims))
        others = [*claims[1:], claims[0]]
        wanted = [
            commit(claim, delta(), sends=(message(clock, other.session_id, "over to you"),))
            for claim, other in zip(claims, others, strict=True)
        ]

        results = await store.log.commit(wanted)

        assert all(isinstance(result, Committed) for result in results)
        for claim in claims:
            assert len(await store.listing.deliveries(claim.session_id)) == 2
            info = await store.listing.session(claim.session_id)
            assert info is not None
            assert info.end == 4
            assert len(await read_all(store, claim.session_id)) == 4

    async def test_children_of_an_erased_session_are_orphans(
        self, store: Store, clock: ManualClock
    ) -> None:
        parent = await start_and_claim(store, clock)
        child = new_session(clock, parent=parent.session_id)
        await write(store, commit(parent, delta(), sends=(child,)))
        [claim] = await store.work.claim("w1", 10, held=places([parent]))
        grandchild = new_session(clock, parent=child.session_id)
        await write(store, commit(claim, delta(), sends=(grandchild,)))
        assert await store.log.find_orphans(10) == []

        await store.log.erase(parent.session_id)
        assert await store.log.find_orphans(10) == [child.session_id]
        await store.log.erase(child.session_id)
        assert await store.log.find_orphans(10) == [grandchild.session_id]
        await store.log.erase(grandchild.session_id)

        assert await store.log.find_orphans(10) == []
        assert await store.listing.sessions() == []

    async def test_a_child_that_is_sent_by_an_erased_session_never_begins(
        self, store: Store, clock: ManualClock
    ) -> None:
        parent = await start_and_claim(store, clock)
        await store.log.erase(parent.session_id)
        child = new_session(clock, parent=parent.session_id)

        refused = await write_in_vain(store, commit(parent, delta(), sends=(child,)))

        assert refused.reason == "lease_lost"
        assert await store.listing.session(child.session_id) is None

    async def test_a_repeated_start_of_a_child_is_the_same_child(
        self, store: Store, clock: ManualClock
    ) -> None:
        parent = await start_and_claim(store, clock)
        child = new_session(clock, parent=parent.session_id, dispatch_id="p:t1.s1.c1")
        await write(store, commit(parent, delta(), sends=(child,)))
        parent = replace(parent, number=parent.number + 1)
        again = replace(child, session_id=clock.new_id("ses"), delivery_id=clock.new_id("dlv"))

        await write(store, commit(parent, delta(), sends=(again,)))

        assert len(await store.listing.sessions(parent=parent.session_id)) == 1
