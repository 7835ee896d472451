"""A primary that dies, a standby that takes its place with or without the last commits.

The standby is real. That it lags is decided by the test: it is cut off before what it is to lose.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from postgres_pair import PostgresPair, ask, postgres_pair
from postgres_server import Server
from rival import opened

from outlast.clock import Clock
from outlast.core import record as r
from outlast.engine.counters import WorkerCounters
from outlast.engine.lane_folds import HistoryChanged, LaneLost
from outlast.engine.owned_lane import OwnedLane
from outlast.errors import CursorAhead, StoreUnavailable
from outlast.store import Claim, Store
from outlast.stores.postgres import PostgresStore
from outlast.stores.postgres.timeline import ServerIdentity, ServerRefused
from outlast.testing.contract.builder import (
    admit,
    delta,
    end_of,
    enlist,
    message,
    new_session,
    read_all,
    turn_started,
)

clock = Clock()
LEASE = 60_000


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    with postgres_pair() as made:
        yield made


@pytest.fixture
def synchronous_pair() -> Iterator[PostgresPair]:
    with postgres_pair(synchronous=True) as made:
        yield made


@asynccontextmanager
async def lane_in_mid_turn(pair: PostgresPair) -> AsyncIterator[tuple[PostgresStore, OwnedLane]]:
    """A lane whose owner has begun a turn, all of it on both servers."""
    async with opened(pair.url) as store:
        await enlist(store, clock, lease=LEASE)
        receipt = await admit(store, new_session(clock))
        [claim] = await store.work.claim("w1", 10)
        lane = await own(store, claim)
        began = r.ModelStarted(call_id="t1.s1", attempt=1)
        lane.write([turn_started(receipt.delivery_id), began])
        await lane.flush()
        await asyncio.to_thread(pair.catch_up)
        yield store, lane


async def own(store: Store, claim: Claim) -> OwnedLane:
    lane = OwnedLane(claim, "w1", store, clock, WorkerCounters(store.counts))
    await lane.folds.load()
    return lane


async def claim_again(store: Store) -> OwnedLane:
    """Own the lane anew, as a worker does that has lost it."""
    [claim] = await store.work.claim("w1", 10)
    return await own(store, claim)


async def test_an_owner_that_has_folded_a_lost_message_does_not_go_on(pair: PostgresPair) -> None:
    async with lane_in_mid_turn(pair) as (store, lane):
        await asyncio.to_thread(pair.cut)
        lost = await admit(store, message(clock, lane.session_id, "two"))
        await lane.catch_up()
        assert lost.delivery_id in str(lane.folds.state)
        await asyncio.to_thread(pair.fail_over)
        lane.write([delta("of a turn that goes on")])
        with pytest.raises(LaneLost):
            await lane.flush()
        assert await end_of(store, lane.session_id) == lost.offset - 1
        again = await claim_again(store)
        assert lost.delivery_id not in str(again.folds.state)


async def test_a_message_in_the_place_of_a_lost_one_is_taken(pair: PostgresPair) -> None:
    async with lane_in_mid_turn(pair) as (store, lane):
        await asyncio.to_thread(pair.cut)
        lost = await admit(store, message(clock, lane.session_id, "two"))
        await lane.catch_up()
        await asyncio.to_thread(pair.fail_over)
        kept = await admit(store, message(clock, lane.session_id, "three"))
        assert kept.offset == lost.offset
        with pytest.raises(HistoryChanged):
            await lane.catch_up()
        lane.write([delta("of a turn that goes on")])
        with pytest.raises(HistoryChanged):
            await lane.flush()
        again = await claim_again(store)
        assert kept.delivery_id in str(again.folds.state)
        assert lost.delivery_id not in str(again.folds.state)
        again.write([delta("on")])
        await again.flush()


async def test_an_owner_that_has_lost_nothing_goes_on_in_the_same_turn(
    synchronous_pair: PostgresPair,
) -> None:
    async with lane_in_mid_turn(synchronous_pair) as (store, lane):
        arrived = await admit(store, message(clock, lane.session_id, "two"))
        await lane.catch_up()
        fence = lane.fence
        await asyncio.to_thread(synchronous_pair.fail_over)
        lane.write([delta("of a turn that goes on")])
        assert await lane.flush() == arrived.offset + 1
        lane.write([delta("and on")])
        assert await lane.flush() == arrived.offset + 2
        assert lane.fence == fence


async def test_a_lane_that_is_kept_in_memory_is_folded_anew(pair: PostgresPair) -> None:
    """The lost turn and the one in its place have as many commits."""
    async with lane_in_mid_turn(pair) as (store, lane):
        await asyncio.to_thread(pair.cut)
        lane.write([delta("lost")])
        await lane.flush()
        await asyncio.to_thread(pair.fail_over)
        other = await claim_again(store)
        other.write([delta("kept")])
        await other.flush()
        assert other.number == lane.number
        [claim] = await store.work.claim("w1", 10)
        with pytest.raises(HistoryChanged):
            await lane.renew(claim, "w1")


async def test_the_view_of_a_model_is_never_of_two_histories(pair: PostgresPair) -> None:
    async with lane_in_mid_turn(pair) as (store, lane):
        await asyncio.to_thread(pair.cut)
        lane.write([delta("lost")])
        await lane.flush()
        lane.folds._view = None  # as in a lane that was loaded from its snapshot
        await asyncio.to_thread(pair.fail_over)
        other = await claim_again(store)
        other.write([delta("kept")])
        await other.flush()
        with pytest.raises(HistoryChanged):
            await lane.folds.view()


async def test_an_old_primary_that_comes_back_is_refused(pair: PostgresPair) -> None:
    async with lane_in_mid_turn(pair) as (store, lane):
        await asyncio.to_thread(pair.fail_over)
        lane.write([delta("on the new primary")])
        await lane.flush()
        await asyncio.to_thread(pair.bring_back)
        await asyncio.to_thread(end_sessions, pair.second)
        offset = 0
        for _ in range(5):  # on several connections, which were all lost
            offset = (await admit(store, message(clock, lane.session_id, "more"))).offset
            await read_all(store, lane.session_id)
            await store.work.find_dead()
        async with store.log.transaction() as tx:
            assert await tx.fetch_one("SELECT inet_server_port()") == (pair.second.port,)
        assert await asyncio.to_thread(sessions_at, pair.first) == 0
        assert ask(pair.second, "SELECT last_offset FROM outlast.sessions") == offset


async def test_a_connection_to_a_server_that_was_replaced_is_given_up(pair: PostgresPair) -> None:
    """Nobody has cut it: the old primary lives on, and does not know that it is one no more."""
    async with opened(pair.first.url) as store:
        await enlist(store, clock, lease=LEASE)
        session = (await admit(store, new_session(clock))).session_id
        await read_all(store, session)
        store._access.guard.check(ServerIdentity(timeline=2))  # as another connection has found
        with pytest.raises(StoreUnavailable, match="old primary has come back"):
            await asyncio.wait_for(admit(store, message(clock, session)), 60)
        with pytest.raises(ServerRefused, match="timeline 1"):
            await store.listing.session(session)


async def test_another_database_system_is_refused(pair: PostgresPair, postgres_server: str) -> None:
    async with opened(postgres_server + "?schema=test_other_system") as other:
        store = PostgresStore(pair.first.url)
        store._access.guard.check(other._access.guard._newest)
        with pytest.raises(ServerRefused, match="another database system"):
            await store.migrate()


async def test_a_cursor_of_lost_events_is_told_so(pair: PostgresPair) -> None:
    async with lane_in_mid_turn(pair) as (store, lane):
        await asyncio.to_thread(pair.cut)
        lost = await admit(store, message(clock, lane.session_id, "lost"))
        read = await store.log.read(lane.session_id, lost.offset)
        await asyncio.to_thread(pair.fail_over)
        with pytest.raises(CursorAhead):
            await store.log.read(lane.session_id, lost.offset)
        await admit(store, message(clock, lane.session_id, "another"))
        again = await store.log.read(lane.session_id, lost.offset)
        assert read.checksum != again.checksum


def end_sessions(server: Server) -> None:
    ask(
        server,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE application_name = 'outlast'",
    )


def sessions_at(server: Server) -> object:
    return ask(server, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outlast'")
