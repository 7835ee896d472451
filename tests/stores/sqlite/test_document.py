"""Documents in a SQLite file that several processes use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from msgspec.structs import replace
from remains import count, on_disk, opened

from outlast.store import Document
from outlast.stores.sqlite import SqliteStore
from outlast.testing.clock import ManualClock

STORES = 4
FIRST = Document(kind="grant", tenant="acme", name="github:ada", data=b"sealed", version=1)


@pytest_asyncio.fixture
async def stores(path: Path, clock: ManualClock) -> AsyncIterator[list[SqliteStore]]:
    """Several on one file, as in as many processes: each has a writer of its own."""
    stores = [SqliteStore(path, clock) for _ in range(STORES)]
    for store in stores:
        await store.migrate()
    yield stores
    for store in stores:
        await store.close()


async def test_of_several_writers_that_replace_a_document_one_does(
    stores: list[SqliteStore],
) -> None:
    await stores[0].document.put(FIRST, expected=None)
    for version in range(1, 10):
        wanted = [
            replace(FIRST, data=bytes([place]), version=version + 1) for place in range(STORES)
        ]
        written = await asyncio.gather(
            *(
                store.document.put(document, expected=version)
                for store, document in zip(stores, wanted, strict=True)
            )
        )

        assert written.count(True) == 1
        found = await stores[0].document.get("grant", "acme", FIRST.name)
        assert found == wanted[written.index(True)]


async def test_of_several_writers_that_add_a_document_one_does(stores: list[SqliteStore]) -> None:
    for name in "abcdefgh":
        written = await asyncio.gather(
            *(
                store.document.put(
                    replace(FIRST, name=name, data=bytes([place])), expected=None, lifetime=1000
                )
                for place, store in enumerate(stores)
            )
        )

        assert written.count(True) == 1


async def test_expired_documents_do_not_pile_up(path: Path, clock: ManualClock) -> None:
    async with opened(path, clock) as store:
        for number in range(10):
            document = replace(FIRST, name=f"sign-in:{number}", expires_at=clock.now() + 1000)
            assert await store.document.put(document, expected=None)
            clock.advance(400)

        assert count(path, "outlast_documents") == 3


async def test_an_expired_document_is_removed_when_it_is_deleted(
    path: Path, clock: ManualClock
) -> None:
    async with opened(path, clock) as store:
        brief = replace(FIRST, expires_at=clock.now() + 1000)
        await store.document.put(brief, expected=None)
        clock.advance(1000)

        assert not await store.document.delete(brief)

        assert count(path, "outlast_documents") == 0


async def test_a_deleted_document_is_not_left_in_the_file(path: Path, clock: ManualClock) -> None:
    sealed = replace(FIRST, data=b"sealed-4711")
    async with opened(path, clock) as store:
        await store.document.put(sealed, expected=None)
        assert await store.document.delete(sealed)

    assert b"sealed-4711" not in on_disk(path)
