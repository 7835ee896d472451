"""A question to the file is answered from one state of it, and a census counts who lives."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from known import known

from outlast.core.record import SessionEnded
from outlast.store import StoreCounts
from outlast.stores.sqlite import SqliteStore
from outlast.stores.sqlite.listing import session
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    message,
    new_session,
    park,
    start_and_claim,
    write,
)


async def test_what_is_read_in_several_statements_belongs_together(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "one.db", clock)
    await store.migrate()
    receipt = await admit(store, new_session(clock))
    loop = asyncio.get_running_loop()

    def look_twice(desk: Any) -> Any:
        before = session(desk, receipt.session_id)
        arrival = admit(store, message(clock, receipt.session_id))
        asyncio.run_coroutine_threadsafe(arrival, loop).result(30)
        return before, session(desk, receipt.session_id)

    before, after = await store._access.read(look_twice)
    assert before == after
    assert known(await store.listing.session(receipt.session_id)).end == before.end + 1
    await store.close()


async def test_a_lane_that_has_yet_to_see_the_end_of_its_session_is_not_counted(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "one.db", clock)
    await store.migrate()
    claim = await start_and_claim(store, clock)
    await admit(store, message(clock, claim.session_id, lane="side"))
    assert {lane.status for lane in (await store.listing.census()).lanes} == {"queued"}

    await write(store, park(claim, SessionEnded(), status="ended"))

    assert await store.listing.census() == StoreCounts((), queued=0, oldest_ready_at=None)
    await store.close()
