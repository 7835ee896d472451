"""A question to the file is answered from one state of it."""

from __future__ import annotations

import asyncio

from holdfast.clock import Clock
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.listing import session
from holdfast.testing.store_contract.builder import admit, message, new_session


async def test_what_is_read_in_several_statements_belongs_together(tmp_path):
    store = SqliteStore(tmp_path / "one.db")
    await store.migrate()
    receipt = await admit(store, new_session(Clock()))
    loop = asyncio.get_running_loop()

    def look_twice(desk):
        before = session(desk, receipt.session_id)
        arrival = admit(store, message(Clock(), receipt.session_id))
        asyncio.run_coroutine_threadsafe(arrival, loop).result(30)
        return before, session(desk, receipt.session_id)

    before, after = await store._read(look_twice)
    assert before == after
    assert (await store.session(receipt.session_id)).end == before.end + 1
    await store.close()
