"""What commits send on PostgreSQL: between processes, around erasures, on a bad wire.

What anybody can see of it is in the store contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from postgres_proxy import Wire, through
from rival import ask, later, opened, remains, rivalling

from outlast.clock import Clock
from outlast.core import record as r
from outlast.store import Admission, Claim, Committed, Refused, Store
from outlast.stores.postgres import PostgresStore
from outlast.testing.contract.builder import (
    admit,
    cancel,
    commit,
    delta,
    message,
    new_session,
    park,
    read_all,
    start_and_claim,
    write,
)

clock = Clock()

LOST = Refused("lease_lost")
LARGE = "x" * 100_000
HOLD = "SELECT 1 FROM sessions WHERE id = %s FOR UPDATE"
HOLD_LANE = (
    "SELECT 1 FROM lanes WHERE sid = (SELECT sid FROM sessions WHERE id = %s) FOR NO KEY UPDATE"
)
MAKE_NOTES = "CREATE TABLE contract_notes (id integer)"
ADD_NOTE = "INSERT INTO contract_notes VALUES (1)"
COUNT_NOTES = "SELECT count(*) FROM contract_notes"


async def start(store: Store, count: int) -> list[Claim]:
    claims: list[Claim] = []
    for _ in range(count):
        claims.append(await start_and_claim(store, clock, held=claims))
    return sorted(claims, key=lambda claim: claim.session_id)


def child_of(claim: Claim, text: str = "hello") -> Admission:
    return new_session(clock, text, parent=claim.session_id)


async def arrivals(store: Store, session_id: str) -> int:
    """Count what came after the start; the log must be whole."""
    entries = await read_all(store, session_id)
    assert [entry.offset for entry in entries] == list(range(1, len(entries) + 1))
    return sum(isinstance(entry.record, r.DeliveryQueued) for entry in entries) - 1


# Between processes


async def test_processes_that_send_to_each_other_at_once_all_hear_all(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        claims = await start(one, 8)

        async def keep_sending(store: PostgresStore, own: Sequence[Claim]) -> None:
            for step in range(12):
                sent = [[message(clock, c.session_id) for c in claims if c != o] for o in own]
                wanted = [
                    commit(later(claim, step), delta(), sends=tuple(letters))
                    for claim, letters in zip(own, sent, strict=True)
                ]
                assert all(isinstance(done, Committed) for done in await store.log.commit(wanted))

        await asyncio.gather(keep_sending(one, claims[::2]), keep_sending(two, claims[1::2]))

        for claim in claims:
            assert await arrivals(one, claim.session_id) == 7 * 12


async def test_who_waits_for_a_session_to_send_to_holds_none_of_a_later_name(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        early, late = await start(store, 2)
        async with rivalling(postgres_url) as rival:
            await rival.run(HOLD, early.session_id)
            letter = message(clock, early.session_id)
            writing = asyncio.create_task(write(store, commit(late, delta(), sends=(letter,))))
            await rival.has_waiting()
            async with asyncio.timeout(60):
                await admit(other, message(clock, late.session_id))
            await rival.commit()
            await writing
        assert await arrivals(store, early.session_id) == 1


async def test_who_waits_for_a_lane_to_send_to_holds_none_of_a_later_name(
    postgres_url: str,
) -> None:
    """Who frees the lanes of a dead worker holds no sessions, and takes them in this order."""
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        early, late = await start(store, 2)
        await rival.run("SET lock_timeout = '500ms'")
        await rival.run(HOLD_LANE, early.session_id)
        letter = message(clock, early.session_id)
        writing = asyncio.create_task(write(store, commit(late, delta(), sends=(letter,))))
        await rival.has_waiting()
        await rival.run(HOLD_LANE, late.session_id)
        await rival.commit()
        await writing


async def test_a_commit_whose_acknowledgement_is_lost_has_sent_once(postgres_url: str) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        sender, other = await start(store, 2)
        letters = (message(clock, other.session_id), child_of(sender))
        wire.loses_the_answer_to = b"a rare word"
        await write(store, commit(sender, delta("a rare word"), sends=letters))
        assert wire.lost.is_set()
        assert await arrivals(store, other.session_id) == 1
        assert len(await store.listing.sessions(parent=sender.session_id)) == 1


async def test_a_delivery_that_is_there_under_another_name_is_dropped(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        sender, other = await start(store, 2)
        said = message(clock, other.session_id)
        await admit(store, said)
        again = replace(said, dispatch_id="another name")
        await write(store, commit(sender, delta(), sends=(again, message(clock, other.session_id))))
        assert await arrivals(store, other.session_id) == 2


# Around erasures


async def test_what_is_sent_to_a_session_that_is_being_erased_is_dropped(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        gone, sender = await start(store, 2)
        await rival.erase(gone.session_id)
        letter = message(clock, gone.session_id, LARGE)
        writing = asyncio.create_task(write(store, commit(sender, delta(), sends=(letter,))))
        await rival.has_waiting()
        await rival.commit()
        assert (await writing).first_offset == 3
        await store.log.erase(sender.session_id)
        assert await remains(postgres_url) == {}


async def test_a_child_of_a_session_that_is_being_erased_never_begins(postgres_url: str) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        [parent] = await start(store, 1)
        await rival.erase(parent.session_id)
        wanted = commit(parent, delta(), sends=(child_of(parent, LARGE),))
        writing = asyncio.create_task(store.log.commit([wanted]))
        await rival.has_waiting()
        await rival.commit()
        assert await writing == [LOST]
        assert await remains(postgres_url) == {}


async def test_an_erasure_that_waited_for_the_start_of_a_child_orphans_it(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        [parent] = await start(store, 1)
        child = child_of(parent)
        await rival.write(commit(parent, delta(), sends=(child,)))
        erasing = asyncio.create_task(store.log.erase(parent.session_id))
        await rival.has_waiting()
        await rival.commit()
        assert await erasing
        assert await store.log.find_orphans() == [child.session_id]
        await store.log.erase(child.session_id)
        assert await remains(postgres_url) == {}


async def test_a_parent_and_its_child_are_erased_at_once(postgres_url: str) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        [parent] = await start(store, 1)
        child = child_of(parent)
        await write(store, commit(parent, delta(), sends=(child,)))
        await rival.erase(child.session_id)
        erasing = asyncio.create_task(store.log.erase(parent.session_id))
        await rival.has_waiting()
        await rival.commit()
        assert await erasing
        assert await store.log.find_orphans() == []
        assert await remains(postgres_url) == {}


# A tool's own transaction


async def test_the_commit_of_a_tools_transaction_sends_and_is_heard(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        sender, other = await start(store, 2)
        await write(store, commit(other, delta(), turn="t7"))
        child = child_of(sender, LARGE)
        heard: dict[str, bool] = {}
        store.work.listen(lambda session, arrived: heard.update({session: arrived}))
        async with store.log.transaction() as tx:
            await tx.execute(MAKE_NOTES)
            await tx.execute(ADD_NOTE)
            wanted = commit(sender, delta(), sends=(child, cancel(clock, other.session_id)))
            assert isinstance(await tx.commit(wanted), Committed)
        assert await ask(postgres_url, COUNT_NOTES) == [(1,)]
        assert len(await read_all(store, child.session_id)) == 2
        last = (await read_all(store, other.session_id))[-1].record
        assert isinstance(last, r.CancelRequested)
        assert last.turn == "t7"
        assert heard == {sender.session_id: False, child.session_id: True, other.session_id: True}


async def test_a_refused_commit_of_a_tools_transaction_sends_nothing(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        [sender] = await start(store, 1)
        await admit(store, message(clock, sender.session_id))
        async with store.log.transaction() as tx:
            await tx.execute(MAKE_NOTES)
            refused = await tx.commit(park(sender, delta(), sends=(child_of(sender, LARGE),)))
        assert isinstance(refused, Refused)
        assert await store.listing.sessions(parent=sender.session_id) == []
        assert await ask(postgres_url, "SELECT count(*) FROM blobs") == [(0,)]
        assert await ask(postgres_url, "SELECT to_regclass('contract_notes')") == [(None,)]


@pytest.mark.parametrize("when", ["written", "not written"])
async def test_a_tools_transaction_whose_answer_is_lost_has_sent_once_or_not_at_all(
    postgres_url: str, when: str
) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        sender, other = await start(store, 2)
        async with store.log.transaction() as tx:
            wanted = commit(sender, delta(), sends=(message(clock, other.session_id),))
            wire.loses_the_answer_to = b"COMMIT" if when == "written" else b"write("
            told = await tx.commit(wanted)
        assert isinstance(told, Committed) if when == "written" else told == Refused("undone")
        assert wire.lost.is_set()
        assert await arrivals(store, other.session_id) == (when == "written")
