"""The same start of a session from two processes at once, as after a lost connection."""

from __future__ import annotations

import asyncio

from rival import opened

from outlast.clock import Clock
from outlast.testing.contract.builder import admit, new_session

clock = Clock()
ROUNDS = 30
AT_ONCE = 20


async def test_a_start_that_comes_twice_at_once_is_accepted_twice_as_one(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        for _ in range(ROUNDS):
            starts = [new_session(clock, token=clock.new_id("thread")) for _ in range(AT_ONCE)]
            sent = [admit(store, start) for start in starts for store in (one, two)]
            receipts = await asyncio.gather(*sent)
            assert sum(receipt.duplicate for receipt in receipts) == AT_ONCE
            assert len({receipt.session_id for receipt in receipts}) == AT_ONCE
