"""An erased session is gone from every table of its SQLite file, and from the disk.

What anybody can see of an erasure is in the store contract.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from remains import LARGE, SECRET, STAYS, count, live, on_disk, tables_with_rows

from outlast.core import record as r
from outlast.errors import SessionErased
from outlast.store import Admission, Claim
from outlast.stores.sqlite import SqliteStore, erasure
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    admit_in_vain,
    commit,
    delta,
    message,
    new_session,
    read_all,
    start_and_claim,
    write,
)

TIMEOUT = 60.0


def unnamed(admission: Admission) -> Admission:
    """The same under a dispatch id that Outlast made."""
    return replace(admission, dispatch_id=admission.delivery_id)


async def test_nothing_of_an_erased_session_is_left_in_any_table(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    claim = await live(store, clock)
    all_tables = tables_with_rows(path)
    assert len(all_tables - STAYS) >= 12

    await store.log.erase(claim.session_id)

    assert tables_with_rows(path) == STAYS
    assert count(path, "outlast_effects") == 1
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT kind, state, fingerprint FROM outlast_deliveries"
        assert database.execute(query).fetchall() == [("", "settled", bytes(16))]


async def test_nothing_of_an_erased_session_is_left_on_the_disk(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    claim = await live(store, clock)
    assert SECRET.encode() in on_disk(path)

    await store.log.erase(claim.session_id)

    assert SECRET.encode() not in on_disk(path)


async def test_a_blob_goes_with_the_last_session_that_uses_it(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    large = r.ToolCompleted(call_id="t1.s1.c1", attempt=1, value=f'"{LARGE}"')
    claims: list[Claim] = []
    for _ in range(2):
        claims.append(await start_and_claim(store, clock, held=claims))
        for number in range(2):
            await write(store, commit(claims[-1], large, number=number))
    first, second = claims

    await store.log.erase(first.session_id)
    assert count(path, "outlast_blobs") == 1
    await store.log.erase(second.session_id)

    assert count(path, "outlast_blobs") == count(path, "outlast_blob_users") == 0


async def test_the_place_of_an_erased_session_is_not_given_to_another(
    store: SqliteStore, clock: ManualClock
) -> None:
    first, second = (new_session(clock, dispatch_id=name) for name in ("order-1", "order-2"))
    await store.log.erase((await admit(store, first)).session_id)

    receipt = await admit(store, second)

    assert isinstance(await admit_in_vain(store, first), SessionErased)
    assert await admit(store, second) == replace(receipt, duplicate=True)


async def test_what_was_sent_under_a_name_of_ours_is_known_after_the_erasure_too(
    store: SqliteStore, clock: ManualClock
) -> None:
    start = unnamed(new_session(clock))
    receipt = await admit(store, start)
    sent = unnamed(message(clock, receipt.session_id))
    await admit(store, sent)

    await store.log.erase(receipt.session_id)

    assert isinstance(await admit_in_vain(store, start), SessionErased)
    assert isinstance(await admit_in_vain(store, sent), SessionErased)
    assert await store.listing.delivery(sent.delivery_id) is None


async def test_who_listens_to_a_session_hears_that_it_was_erased(
    store: SqliteStore, clock: ManualClock
) -> None:
    receipt = await admit(store, new_session(clock))
    heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def hear(_: str, arrived: bool) -> None:
        if not heard.done():
            heard.set_result(arrived)

    store.work.listen(hear, receipt.session_id)

    await store.log.erase(receipt.session_id)

    async with asyncio.timeout(TIMEOUT):
        assert await heard


# Large ones


async def test_a_large_session_is_erased_in_pieces_between_which_others_write(
    store: SqliteStore, path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "PIECE", 100)
    claim = await live(store, clock)
    other = await start_and_claim(store, clock, held=[claim])
    for number in range(30):
        await write(store, commit(claim, delta(), number=claim.number + number))
    groups = store.counts()["groups"]

    erasing = asyncio.create_task(store.log.erase(claim.session_id))
    await asyncio.sleep(0)
    for number in range(3):
        await write(store, commit(other, delta(), number=number))
        assert not erasing.done()
    assert await store.listing.session(claim.session_id) is None
    await erasing

    assert store.counts()["groups"] - groups > 10
    assert SECRET.encode() not in on_disk(path)
    assert [e.offset for e in await read_all(store, other.session_id)] == [1, 2, 3, 4, 5]
    assert not {"outlast_erasures", "outlast_blobs"} & tables_with_rows(path)


async def test_who_erases_again_finishes_what_was_left(
    store: SqliteStore, path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "PIECE", 500)
    claim = await live(store, clock)
    (begun,) = await store._access.write(lambda db: erasure.write_erasure(db, claim.session_id))
    assert begun.has_more

    assert not await store.log.erase(claim.session_id)

    assert tables_with_rows(path) == STAYS
    assert SECRET.encode() not in on_disk(path)
