"""The outbox on PostgreSQL: told by commits, taken and settled by others, erased by yet others."""

from __future__ import annotations

import asyncio

import pytest
from postgres_proxy import Wire, through
from rival import ask, opened, remains, rivalling

from outlast.clock import Clock
from outlast.testing.contract.builder import commit, delta, write
from outlast.testing.contract.outbox import (
    HOLD,
    HOOK,
    letter,
    start_with_cursor,
    take_one,
    tell,
)

clock = Clock()

TAKEN = "UPDATE outbox_cursors SET held = held + 1, held_until = 0"
SETTLED = (
    "WITH done AS (UPDATE outbox_cursors SET position = 3 RETURNING tenant, sid, name)"
    " INSERT INTO dead_letters (tenant, sid, cursor_name, event_offset, type, error, at)"
    " SELECT tenant, sid, name, 3, 'turn.completed', '503', 9 FROM done"
)


@pytest.mark.parametrize("statement", [TAKEN, SETTLED], ids=["taken", "settled"])
async def test_an_erasure_waits_for_an_outbox_cursor_and_takes_its_dead_letters(
    postgres_url: str, statement: str
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        claim = await start_with_cursor(store, clock)
        await rival.run(statement)
        erasing = asyncio.create_task(store.log.erase(claim.session_id))
        await rival.has_waiting()
        await rival.commit()
        assert await erasing
        assert await remains(postgres_url) == {}


async def test_who_settles_during_an_erasure_settles_nothing(postgres_url: str) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        await tell(store, await start_with_cursor(store, clock))
        taken = await take_one(store)
        await rival.erase(taken.session_id)
        dead = [letter(taken)]
        settling = asyncio.create_task(
            store.outbox.settle(taken, position=3, again_at=None, dead=dead)
        )
        await rival.has_waiting()
        await rival.commit()
        assert not await settling
        assert await remains(postgres_url) == {}


async def test_outbox_cursors_that_somebody_has_in_hand_are_passed_over(postgres_url: str) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        first = await tell(store, await start_with_cursor(store, clock))
        second = await start_with_cursor(store, clock, held=[first])
        await tell(store, second)
        await rival.run("SELECT 1 FROM outbox_cursors ORDER BY due_at LIMIT 1 FOR UPDATE")
        assert (await take_one(store)).session_id == second.session_id


async def test_a_settlement_whose_acknowledgement_is_lost_is_made_once(postgres_url: str) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        await tell(store, await start_with_cursor(store, clock))
        taken = await take_one(store)
        dead = [letter(taken)]
        wire.loses_the_answer_to = b"turn.completed"
        assert await store.outbox.settle(taken, position=3, again_at=None, dead=dead)
        assert wire.lost.is_set()
        assert await store.outbox.dead_letters() == dead
        assert await store.outbox.take(10, HOLD) == []


async def test_a_commit_that_tells_and_lost_its_acknowledgement_loses_no_event(
    postgres_url: str,
) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        claim = await start_with_cursor(store, clock)
        wire.loses_the_answer_to = b"a rare word"
        await write(store, commit(claim, delta("a rare word"), tells=True))
        assert wire.lost.is_set()
        assert (await take_one(store)).name == HOOK.name


async def test_a_transaction_of_a_tool_tells_too(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        claim = await start_with_cursor(store, clock)
        async with store.log.transaction() as transaction:
            await transaction.commit(commit(claim, delta(), tells=True, wait=("request",)))
        assert (await take_one(store)).session_id == claim.session_id
        assert await ask(postgres_url, "SELECT wait FROM lanes") == [(["request"],)]
