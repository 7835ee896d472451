"""A store's life: brought up to date, closed, and opened again with all that it held.

`LifeContract` holds for every store, `DurabilityContract` for those that outlive their process.
"""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.lane import FOLD
from outlast.errors import DispatchConflict, SessionErased, StoreCorrupt, StoreFromTheFuture
from outlast.store import FoldSnapshot, Refused, Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    admit_in_vain,
    commit,
    delta,
    effect,
    message,
    new_session,
    question,
    read_all,
    start_and_claim,
    write,
    write_in_vain,
)
from outlast.testing.contract.store_under_test import StoreUnderTest

TIMEOUT = 30.0


class LifeContract(StoreUnderTest):
    async def test_migrating_again_changes_nothing(self, store: Store, clock: ManualClock) -> None:
        session = (await admit(store, new_session(clock))).session_id
        before = await store.listing.session(session)
        await store.migrate()
        assert await store.listing.session(session) == before

    async def test_any_number_may_migrate_at_once(self, tmp_path: Path, clock: ManualClock) -> None:
        stores = [await self.open_store(tmp_path, clock) for _ in range(5)]
        try:
            await asyncio.gather(*(store.migrate() for store in stores))
            await admit(stores[0], new_session(clock))
        finally:
            for store in stores:
                await store.close()

    async def test_closing_twice_is_no_error(self, store: Store) -> None:
        await store.close()
        await store.close()

    async def test_closing_answers_what_is_being_read(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock, "x" * 1_000_000))).session_id
        before = await read_all(store, session)
        asked = [asyncio.create_task(read_all(store, session)) for _ in range(5)]
        await asyncio.sleep(0)  # they have asked, and nobody has answered yet
        async with asyncio.timeout(TIMEOUT):
            await store.close()
            assert await asyncio.gather(*asked) == [before] * 5


class DurabilityContract(StoreUnderTest):
    async def test_what_was_written_is_there_when_the_store_is_opened_again(
        self, store: Store, tmp_path: Path, clock: ManualClock
    ) -> None:
        token, hold = clock.token(), FoldSnapshot(2, FOLD, b"fold")
        claim = await start_and_claim(store, clock, token=token)
        large = delta("x" * 1_000_000)
        held = effect(claim)
        await write(
            store,
            commit(
                claim,
                large,
                question("req_1"),
                effects=(held,),
                snapshot=hold,
                slices=hold,
                turn="t1",
            ),
        )

        async def everything(store: Store) -> list[object]:
            return [
                await read_all(store, claim.session_id),
                await store.log.load(claim.session_id, "main"),
                await store.listing.session(claim.session_id),
                list(await store.listing.deliveries(claim.session_id)),
                list(await store.listing.requests()),
                list(await store.listing.tokens(claim.session_id)),
                await store.listing.find_token("default", token),
                await store.log.effect(held.scope, held.key),
            ]

        before = await everything(store)
        async with self.reopened(store, tmp_path, clock) as again:
            assert await everything(again) == before

    async def test_dispatches_are_remembered_when_the_store_is_opened_again(
        self, store: Store, tmp_path: Path, clock: ManualClock
    ) -> None:
        first = await admit(store, new_session(clock, dispatch_id="d1"))
        async with self.reopened(store, tmp_path, clock) as again:
            repeated = await admit(again, new_session(clock, dispatch_id="d1"))
            assert repeated == replace(first, duplicate=True)
            other = new_session(clock, "other", dispatch_id="d1")
            assert isinstance(await admit_in_vain(again, other), DispatchConflict)

    async def test_an_owner_goes_on_when_the_store_is_opened_again(
        self, store: Store, tmp_path: Path, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        last = commit(claim, delta())
        first = await write(store, last)
        async with self.reopened(store, tmp_path, clock) as again:
            assert (await write(again, last)).first_offset == first.first_offset
            stale = commit(claim, delta(), number=1, fence=claim.fence - 1)
            assert await write_in_vain(again, stale) == Refused("lease_lost")
            assert (await write(again, commit(claim, delta(), number=1))).first_offset == 4

    async def test_offsets_go_on_when_the_store_is_opened_again(
        self, store: Store, tmp_path: Path, clock: ManualClock
    ) -> None:
        session = (await admit(store, new_session(clock))).session_id
        async with self.reopened(store, tmp_path, clock) as again:
            assert (await admit(again, message(clock, session))).offset == 3

    async def test_two_open_stores_see_each_others_commits(
        self, store: Store, tmp_path: Path, clock: ManualClock
    ) -> None:
        other = await self.open_store(tmp_path, clock)
        try:
            await other.migrate()
            claim = await start_and_claim(store, clock)
            receipt = await admit(other, message(clock, claim.session_id))
            written = await write(store, commit(claim, r.SessionResumed(since=1)))
            assert [entry.offset for entry in written.arrivals] == [receipt.offset]
            assert await read_all(other, claim.session_id) == await read_all(
                store, claim.session_id
            )
        finally:
            await other.close()

    async def test_a_store_of_the_future_is_refused(
        self, store: Store, tmp_path: Path, clock: ManualClock
    ) -> None:
        await store.close()
        await self.make_newer(tmp_path)
        with pytest.raises(StoreFromTheFuture):
            async with self.reopened(store, tmp_path, clock):
                pass

    async def test_a_store_that_cannot_be_read_is_refused(
        self, store: Store, tmp_path: Path, clock: ManualClock
    ) -> None:
        await store.close()
        await self.make_unreadable(tmp_path)
        with pytest.raises(StoreCorrupt):
            async with self.reopened(store, tmp_path, clock):
                pass

    async def test_an_erased_session_stays_erased(
        self, store: Store, clock: ManualClock, tmp_path: Path
    ) -> None:
        start = new_session(clock, dispatch_id="order-17")
        receipt = await admit(store, start)
        await store.log.erase(receipt.session_id)

        async with self.reopened(store, tmp_path, clock) as again:
            assert await again.listing.session(receipt.session_id) is None
            assert isinstance(await admit_in_vain(again, start), SessionErased)
