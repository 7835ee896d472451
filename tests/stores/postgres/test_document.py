"""Documents on PostgreSQL: many writers at once, and answers that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from postgres_proxy import Wire, through
from rival import ask, opened

from outlast.clock import Clock
from outlast.store import Store
from outlast.testing.contract.document import FIRST, get

clock = Clock()

SECOND = replace(FIRST, data=b"second", version=2)


async def test_of_many_writers_that_replace_a_document_at_once_one_does(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        await one.document.put(FIRST, expected=None)
        wanted = [replace(SECOND, data=bytes([number])) for number in range(20)]
        stores = [one, two] * 10
        written = await asyncio.gather(
            *(s.document.put(each, expected=1) for s, each in zip(stores, wanted, strict=True))
        )
        assert sum(written) == 1
        assert await get(one) == wanted[written.index(True)]


async def test_of_many_writers_that_add_a_document_at_once_one_does(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        wanted = [replace(FIRST, data=bytes([number])) for number in range(20)]
        stores = [one, two] * 10
        written = await asyncio.gather(
            *(
                s.document.put(each, expected=None, lifetime=60_000)
                for s, each in zip(stores, wanted, strict=True)
            )
        )
        assert sum(written) == 1


async def test_expired_documents_are_removed_when_another_is_added(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await store.document.put(replace(FIRST, expires_at=clock.now() - 1), expected=None)
        await store.document.put(replace(FIRST, name="other"), expected=None)
        assert await ask(postgres_url, "SELECT name FROM documents") == [("other",)]


async def add(store: Store) -> bool:
    return await store.document.put(FIRST, expected=None)


async def add_for_a_while(store: Store) -> bool:
    return await store.document.put(FIRST, expected=None, lifetime=60_000)


async def replace_first(store: Store) -> bool:
    return await store.document.put(SECOND, expected=1)


async def delete(store: Store) -> bool:
    return await store.document.delete(FIRST)


async def have_nothing(store: Store) -> bool:
    return False


Deed = Callable[[Store], Awaitable[bool]]

DEEDS: list[tuple[str, Deed, Deed]] = [
    ('INSERT INTO "{}".documents', have_nothing, add),
    ('INSERT INTO "{}".documents', have_nothing, add_for_a_while),
    ('UPDATE "{}".documents', add, replace_first),
    ('DELETE FROM "{}".documents', add, delete),
]


@pytest.mark.parametrize(("words", "prepare", "do"), DEEDS)
async def test_what_was_done_and_whose_answer_is_lost_is_said_to_be_done(
    postgres_url: str, words: str, prepare: Deed, do: Deed
) -> None:
    schema = postgres_url.partition("schema=")[2].partition("&")[0]
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        await prepare(store)
        wire.loses_the_answer_to = words.format(schema).encode()
        assert await do(store)
        assert wire.lost.is_set()
