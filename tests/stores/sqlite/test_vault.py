"""Secrets, holds and schedules in a SQLite file that several processes use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from msgspec.structs import replace
from remains import count, on_disk, opened

from outlast.store import ScheduleInfo, StoredSecret
from outlast.stores.sqlite import SqliteStore
from outlast.testing.clock import ManualClock

STORES = 4
FIRST = StoredSecret(tenant="acme", name="github:ada", data=b"sealed", version=1)


@pytest_asyncio.fixture
async def stores(path: Path, clock: ManualClock) -> AsyncIterator[list[SqliteStore]]:
    """Several on one file, as in as many processes: each has a writer of its own."""
    stores = [SqliteStore(path, clock) for _ in range(STORES)]
    for store in stores:
        await store.migrate()
    yield stores
    for store in stores:
        await store.close()


async def test_of_several_who_replace_a_secret_one_does(stores: list[SqliteStore]) -> None:
    await stores[0].document.keep_secret(FIRST, expected=None)
    for version in range(1, 10):
        wanted = [
            replace(FIRST, data=bytes([place]), version=version + 1) for place in range(STORES)
        ]
        kept = await asyncio.gather(
            *(
                store.document.keep_secret(secret, expected=version)
                for store, secret in zip(stores, wanted, strict=True)
            )
        )

        assert kept.count(True) == 1
        assert await stores[0].document.secret("acme", FIRST.name) == wanted[kept.index(True)]


async def test_of_several_who_want_a_name_one_holds_it(stores: list[SqliteStore]) -> None:
    for name in "abcdefgh":
        held = await asyncio.gather(
            *(store.document.hold(name, f"w{place}", 1000) for place, store in enumerate(stores))
        )

        assert held.count(True) == 1


async def test_of_several_who_move_a_schedule_on_one_does(stores: list[SqliteStore]) -> None:
    await stores[0].document.arm_schedule(ScheduleInfo(name="digest", fingerprint="f", next_at=1))
    for seen in range(1, 9):
        moved = await asyncio.gather(
            *(
                store.document.advance_schedule(
                    "digest", seen, next_at=seen + 1, fired_at=seen, session_id=f"s{place}"
                )
                for place, store in enumerate(stores)
            )
        )

        assert moved.count(True) == 1
        [info] = await stores[0].document.schedules()
        assert (info.next_at, info.session_id) == (seen + 1, f"s{moved.index(True)}")


async def test_expired_secrets_do_not_pile_up(path: Path, clock: ManualClock) -> None:
    async with opened(path, clock) as store:
        for number in range(10):
            secret = replace(FIRST, name=f"sign-in:{number}", expires_at=clock.now() + 1000)
            assert await store.document.keep_secret(secret, expected=None)
            clock.advance(400)

        assert count(path, "outlast_secrets") == 3


async def test_a_secret_that_has_expired_is_neither_replaced_nor_kept_when_it_is_dropped(
    path: Path, clock: ManualClock
) -> None:
    async with opened(path, clock) as store:
        await store.document.keep_secret(
            replace(FIRST, expires_at=clock.now() + 1000), expected=None
        )
        clock.advance(1000)

        assert not await store.document.keep_secret(replace(FIRST, version=2), expected=1)
        assert not await store.document.drop_secret("acme", FIRST.name)

        assert count(path, "outlast_secrets") == 0


async def test_a_dropped_secret_is_not_left_in_the_file(path: Path, clock: ManualClock) -> None:
    async with opened(path, clock) as store:
        await store.document.keep_secret(replace(FIRST, data=b"sealed-4711"), expected=None)
        await store.document.drop_secret("acme", FIRST.name)

    assert b"sealed-4711" not in on_disk(path)
