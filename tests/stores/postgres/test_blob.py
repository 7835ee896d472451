"""Large values on PostgreSQL: kept once, for as long as the log of any session points at them."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from msgspec.structs import replace
from rival import ask, later, opened, remains, rivalling

from outlast.clock import Clock
from outlast.store import Committed, Refused
from outlast.store.log import FULL_PAGE
from outlast.stores.postgres import PostgresStore
from outlast.testing.contract.builder import (
    admit,
    commit,
    delta,
    message,
    new_session,
    read_all,
    start_and_claim,
    write,
)
from outlast.testing.contract.erasure import large_result

clock = Clock()

LARGE = "x" * 100_000
COUNT = "SELECT count(*) FROM blobs"


async def last_of(store: PostgresStore, session_id: str) -> object:
    return (await read_all(store, session_id))[-1].record


async def test_a_value_that_several_use_is_kept_once_and_goes_with_the_last(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store:
        first = await start_and_claim(store, clock)
        second = await start_and_claim(store, clock, held=[first])
        for claim in (first, later(first), second):
            await write(store, commit(claim, large_result()))
        assert await ask(postgres_url, COUNT) == [(1,)]

        await store.log.erase(first.session_id)
        assert await ask(postgres_url, COUNT) == [(1,)]

        await store.log.erase(second.session_id)
        assert await remains(postgres_url) == {}


async def test_a_long_message_goes_with_its_session(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        session = (await admit(store, new_session(clock, LARGE))).session_id
        await admit(store, message(clock, session, LARGE + "y"))
        assert await ask(postgres_url, COUNT) == [(2,)]
        await store.log.erase(session)
        assert await remains(postgres_url) == {}


async def test_the_same_value_of_another_tenant_stays(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        first = (await admit(store, new_session(clock, LARGE))).session_id
        second = (await admit(store, new_session(clock, LARGE, tenant="other"))).session_id
        await store.log.erase(first)
        assert len(await read_all(store, second)) == 2
        assert await ask(postgres_url, "SELECT tenant FROM blobs") == [("other",)]


async def test_a_commit_that_uses_a_value_while_it_is_erased_writes_it_anew(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        first = await start_and_claim(store, clock)
        second = await start_and_claim(store, clock, held=[first])
        await write(store, commit(first, large_result()))
        await rival.erase(first.session_id)
        writing = asyncio.create_task(write(store, commit(second, large_result())))
        await rival.has_waiting()
        await rival.commit()
        await writing
        assert await last_of(store, second.session_id) == large_result()


async def test_a_session_that_starts_with_a_value_while_it_is_erased_has_it(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        first = (await admit(store, new_session(clock, LARGE))).session_id
        await rival.erase(first)
        starting = asyncio.create_task(admit(store, new_session(clock, LARGE)))
        await rival.has_waiting()
        await rival.commit()
        assert len(await read_all(store, (await starting).session_id)) == 2


async def test_a_value_that_goes_after_it_was_found_is_written_anew(postgres_url: str) -> None:
    """Between the look for a value and the hold on it, the last session that used it is erased."""
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        first = await start_and_claim(store, clock)
        second = await start_and_claim(store, clock, held=[first])
        await write(store, commit(first, large_result()))
        await rival.run("SELECT 1 FROM blobs FOR UPDATE")
        writing = asyncio.create_task(write(store, commit(second, large_result())))
        await rival.has_waiting()
        await rival.run("DELETE FROM blobs")
        await rival.run("DELETE FROM blob_users")
        await rival.commit()
        await writing
        assert await last_of(store, second.session_id) == large_result()


async def test_the_value_of_a_commit_that_is_refused_is_not_kept(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        first = await start_and_claim(store, clock)
        second = await start_and_claim(store, clock, held=[first])
        await write(store, commit(first, large_result()))
        lost = replace(second, fence=second.fence - 1)
        other = large_result("y" * 100_000)
        group = [commit(lost, large_result(), other), commit(later(first), delta())]
        refused, written = await store.log.commit(group)
        assert refused == Refused("lease_lost")
        assert isinstance(written, Committed)
        assert await ask(postgres_url, COUNT) == [(1,)]
        assert await last_of(store, first.session_id) == delta()


@pytest.mark.parametrize("is_kept", [True, False], ids=["committed", "rolled back"])
async def test_an_erasure_waits_for_who_is_about_to_use_a_value(
    postgres_url: str, is_kept: bool
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        first = await start_and_claim(store, clock)
        second = await start_and_claim(store, clock, held=[first])
        await write(store, commit(first, large_result()))
        await rival.write(commit(second, large_result()))
        erasing = asyncio.create_task(store.log.erase(first.session_id))
        await rival.has_waiting()
        await (rival.commit() if is_kept else rival.rollback())
        assert await erasing
        if is_kept:
            assert await last_of(store, second.session_id) == large_result()
        else:
            assert await ask(postgres_url, COUNT) == [(0,)]


async def test_two_last_users_that_are_erased_at_once_leave_nothing(postgres_url: str) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        first = (await admit(store, new_session(clock, LARGE))).session_id
        second = (await admit(store, new_session(clock, LARGE))).session_id
        await rival.erase(first)
        erasing = asyncio.create_task(store.log.erase(second))
        await rival.has_waiting()
        await rival.commit()
        assert await erasing
        assert await remains(postgres_url) == {}


async def test_the_database_sends_no_more_of_a_log_than_goes_on_a_page(postgres_url: str) -> None:
    chance = Random(7)
    async with opened(postgres_url) as store:
        claim = await start_and_claim(store, clock)
        for number in range(25):
            parts = [delta(chance.randbytes(30_000).hex()) for _ in range(15)]
            await write(store, commit(claim, *parts, number=number))
        whole = f"('{claim.session_id}', {{}}) WHERE kind = 'log'"
        for name, rest in (("read", "0, 1000, NULL"), ("read_back", "1000, 1000")):
            [(size, largest)] = await ask(
                postgres_url,
                f"SELECT sum(octet_length(data)), max(octet_length(data)) FROM {name}"  # noqa: S608
                + whole.format(rest),
            )
            assert FULL_PAGE <= size < FULL_PAGE + largest
        assert len(await read_all(store, claim.session_id)) == 2 + 25 * 15
