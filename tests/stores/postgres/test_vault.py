"""Secrets, holds and schedules on PostgreSQL: many at once, and answers that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace
from postgres_proxy import Wire, through
from rival import ask, opened

from outlast.clock import Clock
from outlast.store import Store
from outlast.testing.contract.schedule import DIGEST
from outlast.testing.contract.vault import FIRST

clock = Clock()

SECOND = replace(FIRST, data=b"second", version=2)


async def test_of_many_who_replace_a_secret_at_once_one_does(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        await one.document.keep_secret(FIRST, expected=None)
        wanted = [replace(SECOND, data=bytes([number])) for number in range(20)]
        stores = [one, two] * 10
        kept = await asyncio.gather(
            *(
                s.document.keep_secret(each, expected=1)
                for s, each in zip(stores, wanted, strict=True)
            )
        )
        assert sum(kept) == 1
        assert await one.document.secret(FIRST.tenant, FIRST.name) == wanted[kept.index(True)]


async def test_of_many_who_ask_for_a_name_at_once_one_has_it(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        stores = [one, two] * 10
        got = await asyncio.gather(
            *(s.document.hold("refresh", f"w{n}", 60_000) for n, s in enumerate(stores))
        )
        assert sum(got) == 1


async def test_secrets_that_have_expired_are_taken_out_when_another_is_kept(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store:
        await store.document.keep_secret(replace(FIRST, expires_at=clock.now() - 1), expected=None)
        await store.document.keep_secret(replace(FIRST, name="other"), expected=None)
        assert await ask(postgres_url, "SELECT name FROM secrets") == [("other",)]


async def keep_first(store: Store) -> bool:
    return await store.document.keep_secret(FIRST, expected=None)


async def keep_second(store: Store) -> bool:
    return await store.document.keep_secret(SECOND, expected=1)


async def drop(store: Store) -> bool:
    return await store.document.drop_secret(FIRST.tenant, FIRST.name)


async def advance(store: Store) -> bool:
    return await store.document.advance_schedule(
        "digest", DIGEST.next_at, next_at=2000, fired_at=1000, session_id="ses_1"
    )


async def drop_schedule(store: Store) -> bool:
    return await store.document.drop_schedule("digest")


async def hold(store: Store) -> bool:
    return await store.document.hold("refresh", "w1", 60_000)


async def have_first(store: Store) -> object:
    return await store.document.keep_secret(FIRST, expected=None)


async def have_digest(store: Store) -> object:
    return await store.document.arm_schedule(DIGEST)


async def have_nothing(store: Store) -> object:
    return None


DEEDS: dict[
    str, tuple[Callable[[Store], Awaitable[object]], Callable[[Store], Awaitable[bool]]]
] = {
    'INSERT INTO "{}".secrets': (have_nothing, keep_first),
    'UPDATE "{}".secrets': (have_first, keep_second),
    'DELETE FROM "{}".secrets': (have_first, drop),
    'INSERT INTO "{}".holds': (have_nothing, hold),
    'UPDATE "{}".schedules': (have_digest, advance),
    'DELETE FROM "{}".schedules': (have_digest, drop_schedule),
}


@pytest.mark.parametrize("words", DEEDS)
async def test_what_was_done_and_whose_answer_is_lost_is_said_to_be_done(
    postgres_url: str, words: str
) -> None:
    prepare, do = DEEDS[words]
    schema = postgres_url.partition("schema=")[2].partition("&")[0]
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        await prepare(store)
        wire.loses_the_answer_to = words.format(schema).encode()
        assert await do(store)
        assert wire.lost.is_set()
