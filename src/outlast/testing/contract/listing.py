"""Sessions, lanes and deliveries as they are listed."""

from typing import Any

import pytest
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.instant import date_of
from outlast.store import DeliveryInfo, LaneInfo, OpenFilter, OpenLane, SessionInfo, Store
from outlast.store.listing import MOST_LANES_LISTED, SessionKind
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    cancel,
    claim_one,
    commit,
    delta,
    enlist,
    message,
    new_session,
    park,
    settled,
    start_and_claim,
    turn_started,
    write,
)
from outlast.testing.contract.store_under_test import StoreUnderTest


async def describe(store: Store, session_id: str) -> SessionInfo:
    session = await store.listing.session(session_id)
    assert session is not None
    return session


ANY_OPEN = OpenFilter()


async def listed_waits(store: Store, session_id: str) -> list[tuple[str, ...]]:
    """Return what a session's lane waits for, as the session and as the lanes are listed."""
    [lane] = await store.listing.lanes(session_id=session_id)
    return [(await describe(store, session_id)).lanes[0].wait, lane.wait]


class ListingContract(StoreUnderTest):
    async def test_what_does_not_exist_is_none(self, store: Store, clock: ManualClock) -> None:
        assert await store.listing.session(clock.new_id("ses")) is None
        assert await store.listing.delivery(clock.new_id("dlv")) is None

    async def test_a_session_is_described_with_its_lanes(
        self, store: Store, clock: ManualClock
    ) -> None:
        token, created_at = clock.token(), clock.now()
        claim = await start_and_claim(
            store, clock, tenant="acme", agent="clerk", mode="task", token=token
        )
        clock.advance(10)
        ready_at = clock.now() + 500
        working = commit(claim, delta(), at=clock.now(), turn="t1", ready_at=ready_at)
        await write(store, working)
        found = await describe(store, claim.session_id)
        assert found == SessionInfo(
            session_id=claim.session_id,
            tenant="acme",
            agent="clerk",
            mode="task",
            status="running",
            created_at=date_of(created_at),
            updated_at=date_of(clock.now()),
            end=3,
            token=token,
            lanes=(
                LaneInfo(
                    session_id=claim.session_id,
                    tenant="acme",
                    agent="clerk",
                    lane="main",
                    status="running",
                    turn="t1",
                    worker="w1",
                    fence=claim.fence,
                    ready_at=date_of(ready_at),
                    queued=1,
                    size=found.lanes[0].size,
                ),
            ),
            lane_count=1,
            seen_at=date_of(clock.now()),
        )

    async def test_a_list_shows_some_lanes_of_a_session_and_says_how_many_there_are(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, park(claim))
        many = MOST_LANES_LISTED + 5
        for number in range(1, many):
            await admit(store, message(clock, claim.session_id, lane=f"lane {number}"))
        claims = {each.lane: each for each in await store.work.claim("w1", many)}
        last = claims[f"lane {many - 1}"]
        failed = r.TurnFailed(turn="t1", error=r.Failure("BROKEN", "the last lane"))
        await write(store, park(last, failed, at=clock.now(), status="failed"))

        [listed] = await store.listing.sessions()
        whole = await describe(store, claim.session_id)

        shown = [lane.lane for lane in listed.lanes]
        first = ["main", *(f"lane {number}" for number in range(1, MOST_LANES_LISTED - 1))]
        assert shown == [*first, f"lane {many - 1}"]
        assert listed.failure is not None
        assert (listed.failure.message, listed.lane_count) == ("the last lane", many)
        assert (len(whole.lanes), whole.lane_count) == (many, many)
        assert whole.failure == listed.failure

    async def test_a_released_lane_has_no_owner(self, store: Store, clock: ManualClock) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, park(claim))
        (lane,) = (await describe(store, claim.session_id)).lanes
        assert (lane.worker, lane.ready_at) == ("", None)

    async def test_a_lane_counts_what_is_queued(self, store: Store, clock: ManualClock) -> None:
        claim = await start_and_claim(store, clock)
        first = (await store.listing.deliveries(claim.session_id))[0]
        await admit(store, message(clock, claim.session_id))
        await admit(store, message(clock, claim.session_id))
        await write(store, commit(claim, turn_started(first.delivery_id)))
        (lane,) = (await describe(store, claim.session_id)).lanes
        assert lane.queued == 2

    async def test_what_was_queued_leaves_once_however_often_it_changes(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock))).session_id
        for _ in range(3):
            await admit(store, message(clock, session))
        await enlist(store, clock)
        claim = await claim_one(store)
        one, two, three, four = (d.delivery_id for d in await store.listing.deliveries(session))
        changes: list[list[r.AnyRecord]] = [
            [turn_started(one)],
            [settled(one), turn_started(two)],
            [settled(two)],
            [settled(two), delta()],
            [turn_started(three), settled(three)],
            [settled(four)],
        ]
        left = []
        for number, records in enumerate(changes):
            await write(store, commit(claim, *records, number=number))
            (lane,) = (await describe(store, session)).lanes
            left.append(lane.queued)
        assert left == [3, 2, 2, 2, 1, 0]
        assert {d.state for d in await store.listing.deliveries(session)} == {"settled"}

    async def test_a_session_is_queued_before_anybody_took_it_up(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock))).session_id
        assert (await describe(store, session)).status == "queued"

    async def test_an_idle_session_is_queued_again_when_a_message_arrives(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        (first,) = await store.listing.deliveries(claim.session_id)
        done = r.DeliverySettled(delivery_id=first.delivery_id, outcome="completed")
        await write(store, park(claim, done, status="idle"))
        assert (await describe(store, claim.session_id)).status == "idle"
        await admit(store, message(clock, claim.session_id))
        assert (await describe(store, claim.session_id)).status == "queued"

    @pytest.mark.parametrize(
        ("main", "notes", "session"),
        [
            ("idle", "running", "running"),
            ("waiting", "idle", "waiting"),
            ("running", "waiting", "running"),
        ],
    )
    async def test_a_sessions_status_is_that_of_its_liveliest_lane(
        self, store: Store, clock: ManualClock, main: str, notes: str, session: str
    ) -> None:
        one = await start_and_claim(store, clock)
        await admit(store, message(clock, one.session_id, lane="notes"))
        (two,) = await store.work.claim("w1", 10, held=[(one.session_id, "main")])
        for claim, status in ((one, main), (two, notes)):
            arrived = [
                d for d in await store.listing.deliveries(one.session_id) if d.lane == claim.lane
            ]
            taken = turn_started(arrived[0].delivery_id)
            await write(store, commit(claim, taken, status=status))
        assert (await describe(store, one.session_id)).status == session

    async def test_a_session_that_is_over_says_how(self, store: Store, clock: ManualClock) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, park(claim, r.SessionCompleted(turn="t1")))
        session = await describe(store, claim.session_id)
        assert (session.status, session.over) == ("completed", "completed")

    async def test_sessions_are_listed_newest_first_in_pages(
        self, store: Store, clock: ManualClock
    ) -> None:
        started = []
        for _ in range(5):
            clock.advance(1)
            started.append((await admit(store, new_session(clock))).session_id)
        first = [s.session_id for s in await store.listing.sessions(limit=2)]
        assert first == [started[4], started[3]]
        rest = [s.session_id for s in await store.listing.sessions(before=first[-1])]
        assert rest == [started[2], started[1], started[0]]

    async def test_sessions_and_runs_are_listed_apart_each_newest_first(
        self, store: Store, clock: ManualClock
    ) -> None:
        names: dict[SessionKind, list[str]] = {"session": [], "run": []}
        for _ in range(3):
            for kind in names:
                clock.advance(1)
                name = clock.new_id(kind[:3])
                started = replace(new_session(clock, tags={"customer": "42"}), session_id=name)
                names[kind].insert(0, (await admit(store, started)).session_id)

        async def listed(kind: SessionKind | None, **filters: Any) -> list[str]:
            found = await store.listing.sessions(kind=kind, **filters)
            return [session.session_id for session in found]

        for filters in ({}, {"tenant": "default"}, {"tags": {"customer": "42"}}):
            for kind, expected in names.items():
                assert await listed(kind, **filters) == expected
                assert await listed(kind, limit=2, **filters) == expected[:2]
                assert await listed(kind, before=expected[0], **filters) == expected[1:]
            assert await listed(None, **filters) == names["session"] + names["run"]
        assert await listed("run", before=names["session"][0]) == names["run"]

    async def test_sessions_are_listed_by_tenant_agent_and_status(
        self, store: Store, clock: ManualClock
    ) -> None:
        running = await start_and_claim(store, clock, tenant="acme", agent="clerk")
        await write(store, commit(running, delta()))
        over = await start_and_claim(store, clock, held=[running], tenant="acme", agent="cook")
        await write(store, park(over, r.SessionEnded()))
        queued = await admit(store, new_session(clock))

        async def listed(**filters: str) -> set[str]:
            return {session.session_id for session in await store.listing.sessions(**filters)}  # type: ignore[arg-type]

        assert await listed(tenant="acme") == {running.session_id, over.session_id}
        assert await listed(agent="clerk") == {running.session_id}
        assert await listed(status="running") == {running.session_id}
        assert await listed(status="ended") == {over.session_id}
        assert await listed(status="queued") == {queued.session_id}
        assert await listed(tenant="acme", agent="support") == set()

    async def test_lanes_are_listed_with_whose_they_are_and_who_owns_them(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock, tenant="acme", agent="clerk")
        await write(store, commit(claim, delta(), turn="t1", ready_at=17))
        queued = await admit(store, new_session(clock))
        unowned, owned = sorted(await store.listing.lanes(), key=lambda lane: lane.worker)
        assert owned == LaneInfo(
            session_id=claim.session_id,
            tenant="acme",
            agent="clerk",
            lane="main",
            status="running",
            turn="t1",
            worker="w1",
            fence=claim.fence,
            ready_at=date_of(17),
            queued=1,
            size=owned.size,
        )
        assert (unowned.session_id, unowned.status) == (queued.session_id, "queued")
        assert (unowned.worker, unowned.fence, unowned.queued) == ("", 0, 1)

    async def test_lanes_are_listed_newest_session_first_and_by_name_in_pages(
        self, store: Store, clock: ManualClock
    ) -> None:
        sessions = []
        for _ in range(3):
            clock.advance(1)
            sessions.append((await admit(store, new_session(clock))).session_id)
        for lane in ("notes", "bulk"):
            await admit(store, message(clock, sessions[1], lane=lane))

        async def page(after: tuple[str, str] | None, limit: int) -> list[tuple[str, str]]:
            found = await store.listing.lanes(after=after, limit=limit)
            return [(info.session_id, info.lane) for info in found]

        first = await page(None, 3)
        rest = await page(first[-1], 10)
        assert first == [(sessions[2], "main"), (sessions[1], "bulk"), (sessions[1], "main")]
        assert rest == [(sessions[1], "notes"), (sessions[0], "main")]

    async def test_lanes_are_listed_by_session_tenant_agent_status_and_worker(
        self, store: Store, clock: ManualClock
    ) -> None:
        running = await start_and_claim(store, clock, tenant="acme", agent="clerk")
        await write(store, commit(running, delta()))
        idle = await start_and_claim(store, clock, held=[running], tenant="acme", agent="cook")
        (first,) = await store.listing.deliveries(idle.session_id)
        done = r.DeliverySettled(delivery_id=first.delivery_id, outcome="completed")
        await write(store, park(idle, done, status="idle"))
        queued = await admit(store, new_session(clock))

        async def listed(**filters: str) -> set[str]:
            return {info.session_id for info in await store.listing.lanes(**filters)}  # type: ignore[arg-type]

        assert await listed(session_id=idle.session_id) == {idle.session_id}
        assert await listed(tenant="acme") == {running.session_id, idle.session_id}
        assert await listed(agent="cook") == {idle.session_id}
        assert await listed(status="running") == {running.session_id}
        assert await listed(status="queued") == {queued.session_id}
        assert await listed(worker="w1") == {running.session_id}
        assert await listed(worker="w1", agent="cook") == set()
        await admit(store, message(clock, idle.session_id, tenant="acme"))
        assert await listed(status="queued") == {queued.session_id, idle.session_id}

    async def test_open_lanes_are_those_with_an_open_turn_or_a_message_that_is_next(
        self, store: Store, clock: ManualClock
    ) -> None:
        idle = await start_and_claim(store, clock)
        (first,) = await store.listing.deliveries(idle.session_id)
        done = r.DeliverySettled(delivery_id=first.delivery_id, outcome="completed")
        await write(store, park(idle, done, status="idle"))
        parked = await start_and_claim(store, clock, tenant="acme", agent="clerk")
        (first,) = await store.listing.deliveries(parked.session_id)
        begun = turn_started(first.delivery_id, "t1")
        await write(
            store, park(parked, begun, status="sleeping", turn="t1", wait=("provider", "timer"))
        )
        over = await start_and_claim(store, clock, held=[parked])
        await write(store, park(over, r.SessionEnded(), status="ended"))
        clock.advance(10)
        since = date_of(clock.now())
        queued = await admit(store, new_session(clock))
        await admit(store, cancel(clock, queued.session_id))
        await admit(store, message(clock, queued.session_id))
        side = await admit(store, message(clock, queued.session_id, lane="side"))
        newest = queued.session_id
        at_main = OpenLane(newest, "default", "main", "", queued.delivery_id)
        at_side = OpenLane(newest, "default", "side", "", side.delivery_id)
        at_work = OpenLane(parked.session_id, "acme", "main", "t1", "")

        async def found(sought: OpenFilter = ANY_OPEN, **others: Any) -> list[OpenLane]:
            return list(await store.listing.open_lanes(sought, **others))

        assert await found() == [at_main, at_side, at_work]
        assert await found(limit=1) == [at_main]
        assert await found(after=(newest, "main")) == [at_side, at_work]
        assert await found(tenant="acme") == await found(agent="clerk") == [at_work]
        assert await found(OpenFilter(status="sleeping")) == [at_work]
        assert await found(OpenFilter(status="queued")) == [at_main, at_side]
        assert await found(OpenFilter(wait="provider")) == [at_work]
        assert await found(OpenFilter(wait="request")) == []
        assert await found(OpenFilter(since=since)) == [at_main, at_side]
        assert await found(OpenFilter("queued", since=since), tenant="acme") == []

    async def test_deliveries_are_listed_in_the_order_of_their_arrival(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock))).session_id
        second = await admit(store, message(clock, session, lane="notes"))
        third = await admit(store, cancel(clock, session))
        listed = await store.listing.deliveries(session)
        assert [(d.offset, d.lane, d.kind) for d in listed] == [
            (2, "main", "message"),
            (3, "notes", "message"),
            (4, "main", "cancel"),
        ]
        assert [d.delivery_id for d in listed[1:]] == [second.delivery_id, third.delivery_id]

    async def test_a_delivery_is_found_by_its_id(self, store: Store, clock: ManualClock) -> None:
        receipt = await admit(store, new_session(clock))
        assert await store.listing.delivery(receipt.delivery_id) == DeliveryInfo(
            session_id=receipt.session_id,
            lane="main",
            delivery_id=receipt.delivery_id,
            kind="message",
            state="queued",
            outcome="",
            turn="",
            offset=2,
            settled_offset=0,
        )

    async def test_a_census_counts_lanes_by_what_they_do_and_wait_for(
        self, store: Store, clock: ManualClock
    ) -> None:
        running = await start_and_claim(store, clock)
        parked = await start_and_claim(store, clock, held=[running])
        await write(store, park(parked, delta(), status="waiting", wait=("request", "timer")))
        over = await start_and_claim(store, clock, held=[running])
        await write(store, park(over, r.SessionEnded(), status="ended"))
        await write(store, commit(running, delta(), status="running"))
        queued = await admit(store, new_session(clock))
        await admit(store, message(clock, queued.session_id))

        census = await store.listing.census()

        counts = {(each.status, each.wait): each.count for each in census.lanes}
        assert counts == {
            ("running", ()): 1,
            ("waiting", ("request", "timer")): 1,
            ("queued", ()): 1,
        }
        assert census.queued == 1 + 1 + 2  # what nobody has taken up yet, of sessions not over
        assert census.oldest_ready_at == date_of(clock.now())

    async def test_a_lane_is_listed_with_what_it_waits_for_until_it_goes_on(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, park(claim, delta(), status="sleeping", wait=("timer",), ready_at=0))
        assert await listed_waits(store, claim.session_id) == [("timer",), ("timer",)]
        again = await claim_one(store)

        await write(store, commit(again, delta()))

        assert await listed_waits(store, claim.session_id) == [(), ()]
        census = await store.listing.census()
        assert [(each.status, each.wait) for each in census.lanes] == [("running", ())]
        assert census.oldest_ready_at is None
