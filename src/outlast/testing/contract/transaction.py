"""A tool's own statements and the record of its outcome: one transaction, or neither."""

import asyncio
import re
from importlib.resources import files

import pytest

from outlast.errors import OutlastError
from outlast.store import AdmissionReceipt, Claim, Committed, Refused, Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    commit,
    delta,
    end_of,
    message,
    start_and_claim,
    write,
)
from outlast.testing.contract.store_under_test import StoreUnderTest

TIMEOUT = 10.0


def read_statements() -> dict[str, str]:
    text = (files(__package__) / "transaction.sql").read_text("utf-8")
    found = re.findall(r"-- name: (\w+)\n(.+?);", text, re.DOTALL)
    return dict(found)


SQL = read_statements()


async def count_notes(store: Store) -> int:
    async with store.log.transaction() as tx:
        row = await tx.fetch_one(SQL["count_notes"])
    assert row is not None
    return int(row[0])


class TransactionContract(StoreUnderTest):
    async def make_notes(self, store: Store, clock: ManualClock) -> Claim:
        """Make a table with one note in it, in the first commit of a lane."""
        claim = await start_and_claim(store, clock)
        async with store.log.transaction() as tx:
            await tx.execute(SQL["make_notes"])
            assert await tx.execute(SQL["add_note"]) == 1
            written = await tx.commit(commit(claim, delta()))
            assert isinstance(written, Committed)
            assert (written.first_offset, written.at) == (3, clock.now())
        return claim

    async def test_a_tools_statements_and_its_commit_are_one(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await self.make_notes(store, clock)
        assert await count_notes(store) == 1
        assert await end_of(store, claim.session_id) == 3
        await write(store, commit(claim, delta(), number=1))

    async def test_a_transaction_left_without_a_commit_undoes_all(
        self, store: Store, clock: ManualClock
    ) -> None:
        await self.make_notes(store, clock)
        async with store.log.transaction() as tx:
            await tx.execute(SQL["add_note"])
            assert await tx.fetch(SQL["count_notes"]) == [(2,)]
        assert await count_notes(store) == 1

    async def test_a_transaction_that_an_error_left_undoes_all(
        self, store: Store, clock: ManualClock
    ) -> None:
        await self.make_notes(store, clock)

        async def stumble() -> None:
            async with store.log.transaction() as tx:
                await tx.execute(SQL["add_note"])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await stumble()
        assert await count_notes(store) == 1

    async def test_a_refused_commit_undoes_the_tools_statements(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await self.make_notes(store, clock)
        async with store.log.transaction() as tx:
            await tx.execute(SQL["add_note"])
            refused = await tx.commit(commit(claim, delta(), number=1, fence=99))
        assert refused == Refused("lease_lost")
        assert await count_notes(store) == 1
        assert await end_of(store, claim.session_id) == 3

    async def test_what_arrives_during_a_transaction_outlives_its_undoing(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await self.make_notes(store, clock)
        async with store.log.transaction() as tx:
            await tx.execute(SQL["add_note"])
            sent = asyncio.create_task(store.log.admit([message(clock, claim.session_id)]))
            await asyncio.wait([sent], timeout=0.05)
        (receipt,) = await sent
        assert isinstance(receipt, AdmissionReceipt)
        assert await count_notes(store) == 1
        assert await end_of(store, claim.session_id) == receipt.offset

    async def test_a_transaction_that_takes_too_long_is_undone(
        self, store: Store, clock: ManualClock
    ) -> None:
        await self.make_notes(store, clock)

        async def dawdle() -> None:
            async with store.log.transaction(limit=0.05) as tx:
                await tx.execute(SQL["add_note"])
                while True:
                    await tx.fetch(SQL["count_notes"])
                    await asyncio.sleep(0.01)

        async with asyncio.timeout(TIMEOUT):
            with pytest.raises(OutlastError):
                await dawdle()
        assert await count_notes(store) == 1
