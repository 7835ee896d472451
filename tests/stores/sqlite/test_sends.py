"""What commits send on SQLite: within one group, between processes, and around an erasure.

What anybody can see of it is in the store contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from remains import locked

from outlast.core import record as r
from outlast.core.message import Text
from outlast.store import Admission, Claim, Committed, Refused
from outlast.stores.sqlite import SqliteStore, erasure
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    cancel,
    commit,
    delta,
    message,
    new_session,
    park,
    places,
    read_all,
    start_and_claim,
    write,
)

TIMEOUT = 60.0


async def start(store: SqliteStore, clock: ManualClock, count: int) -> list[Claim]:
    claims: list[Claim] = []
    for _ in range(count):
        claims.append(await start_and_claim(store, clock, held=claims))
    return claims


async def in_one_group(store: SqliteStore, path: Path, *ways: Awaitable[Any]) -> list[Any]:
    """Have things done that come while the file is somebody else's."""
    groups = store.counts()["groups"]
    with locked(path) as other:
        tasks = [asyncio.ensure_future(way) for way in ways]
        await asyncio.sleep(0)
        other.execute("ROLLBACK")
        results = await asyncio.gather(*tasks)
    assert store.counts()["groups"] - groups == 1
    return results


async def texts_of(store: SqliteStore, session_id: str) -> list[str]:
    """What was said to a session after its start; its log must be whole."""
    entries = await read_all(store, session_id)
    assert [entry.offset for entry in entries] == list(range(1, len(entries) + 1))
    said = [e.record for e in entries[2:] if isinstance(e.record, r.DeliveryQueued)]
    return [part.text for one in said for part in one.content if isinstance(part, Text)]


# Within one group


@pytest.mark.parametrize("size", [2, 6])
async def test_who_parks_in_the_group_that_sends_to_it_is_woken(
    store: SqliteStore, path: Path, clock: ManualClock, size: int
) -> None:
    heard: dict[str, bool] = {}
    store.work.listen(lambda session, arrived: heard.update({session: arrived}))
    claims = await start(store, clock, size)
    heard.clear()
    letters = [message(clock, claim.session_id) for claim in (*claims[1:], claims[0])]
    ways = [
        store.log.commit([park(claim, delta(), sends=(letter,))])
        for claim, letter in zip(claims, letters, strict=True)
    ]

    results = await in_one_group(store, path, *ways)

    assert [type(result) for [result] in results] == [Committed] * size
    again = await store.work.claim("w1", 10)
    assert [claim.last_arrival for claim in again] == [4] * size
    for claim in claims:
        assert await texts_of(store, claim.session_id) == ["hello"]
    assert heard == {claim.session_id: True for claim in claims}


async def test_who_works_on_in_that_group_is_handed_it_with_its_next_commit(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    sender, other = await start(store, clock, 2)
    letter = message(clock, other.session_id, "stop")
    first = store.log.commit([commit(sender, delta(), sends=(letter,))])
    second = store.log.commit([commit(other, delta(), turn="t1")])
    await in_one_group(store, path, first, second)

    (refused,) = await store.log.commit([park(other, delta(), number=1)])
    done = await write(store, commit(other, delta(), number=1))

    assert isinstance(refused, Refused)
    assert [entry.offset for entry in refused.arrivals] == [4]
    assert done.arrivals == refused.arrivals


async def test_a_session_that_ends_in_the_group_takes_nothing_more(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    sender, ending = await start(store, clock, 2)
    ways = (
        store.log.commit([commit(sender, delta(), sends=(message(clock, ending.session_id),))]),
        store.log.commit([park(ending, r.SessionEnded(), status="ended")]),
    )

    results = await in_one_group(store, path, *ways)

    assert all(isinstance(result, Committed) for [result] in results)
    assert await texts_of(store, ending.session_id) == []


async def test_a_cancel_is_given_the_turn_that_the_group_has_opened(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    sender, other = await start(store, clock, 2)
    stop = cancel(clock, other.session_id)
    ways = (
        store.log.commit([commit(sender, delta(), sends=(stop,))]),
        store.log.commit([commit(other, delta(), turn="t3")]),
    )

    await in_one_group(store, path, *ways)

    last = (await read_all(store, other.session_id))[-1].record
    assert isinstance(last, r.CancelRequested)
    assert last.turn == "t3"


async def test_two_that_start_the_same_child_in_one_group_start_one(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    claims = await start(store, clock, 2)
    children = [new_session(clock, dispatch_id="order-17", scope="tenant") for _ in claims]
    wanted = [
        store.log.commit([commit(claim, delta(), sends=(child,))])
        for claim, child in zip(claims, children, strict=True)
    ]

    results = await in_one_group(store, path, *wanted)

    assert all(isinstance(result, Committed) for [result] in results)
    assert len(await store.listing.sessions()) == 3


def unfit(clock: ManualClock, other: Claim, known: Admission) -> Sequence[Admission]:
    """Letters that nobody can take, each for another reason."""
    cannot_be_stored = message(clock, other.session_id, "\ud800", fingerprint="f")
    return (
        cannot_be_stored,
        replace(message(clock, other.session_id), delivery_id=known.delivery_id),
        new_session(clock, session_id=other.session_id),
        new_session(clock, token="taken"),
        message(clock, other.session_id, tenant="somebody else's"),
        message(clock, other.session_id, most_queued=1),
    )


@pytest.mark.parametrize("place", range(6))
async def test_a_letter_that_nobody_can_take_undoes_nothing_of_its_group(
    store: SqliteStore, path: Path, clock: ManualClock, place: int
) -> None:
    sender, other = await start(store, clock, 2)
    known = new_session(clock, token="taken")
    await admit(store, known)
    letter = unfit(clock, other, known)[place]
    fit = message(clock, known.session_id, "fit")
    before = await store.listing.sessions()
    ways = (
        store.log.commit([commit(other, delta())]),
        store.log.commit([commit(sender, delta(), sends=(letter, fit))]),
    )

    results = await in_one_group(store, path, *ways)

    assert all(isinstance(result, Committed) for [result] in results)
    assert len(await store.listing.sessions()) == len(before)
    assert await texts_of(store, other.session_id) == []
    assert await texts_of(store, known.session_id) == ["fit"]


async def test_a_repeated_commit_does_not_send_what_was_dropped_the_first_time(
    store: SqliteStore, clock: ManualClock
) -> None:
    [sender] = await start(store, clock, 1)
    later = new_session(clock)
    wanted = commit(sender, delta(), sends=(message(clock, later.session_id),))
    first = await write(store, wanted)
    await admit(store, later)

    again = await write(store, wanted)

    assert again == first
    assert await texts_of(store, later.session_id) == []


# Around an erasure


@pytest.mark.parametrize("is_first", [True, False])
async def test_what_is_sent_beside_an_erasure_is_erased_or_dropped(
    store: SqliteStore, path: Path, clock: ManualClock, is_first: bool
) -> None:
    sender, gone = await start(store, clock, 2)
    letter = message(clock, gone.session_id)
    sending = store.log.commit([commit(sender, delta(), sends=(letter,))])
    erasing = store.log.erase(gone.session_id)
    ways: list[Awaitable[Any]] = [sending, erasing] if is_first else [erasing, sending]

    results = await in_one_group(store, path, *ways)

    [done], was_there = results if is_first else reversed(results)
    assert isinstance(done, Committed)
    assert was_there
    assert [info.session_id for info in await store.listing.sessions()] == [sender.session_id]
    assert await store.listing.delivery(letter.delivery_id) is None


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_child_that_is_started_beside_its_parents_erasure_is_an_orphan_or_never_was(
    store: SqliteStore, path: Path, clock: ManualClock, is_first: bool
) -> None:
    [parent] = await start(store, clock, 1)
    child = new_session(clock, parent=parent.session_id)
    starting = store.log.commit([commit(parent, delta(), sends=(child,))])
    erasing = store.log.erase(parent.session_id)

    await in_one_group(store, path, *((starting, erasing) if is_first else (erasing, starting)))

    there = [info.session_id for info in await store.listing.sessions()]
    assert there == await store.log.find_orphans() == ([child.session_id] if is_first else [])


async def test_a_session_of_which_only_pieces_are_left_takes_nothing_and_its_children_are_orphans(
    store: SqliteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "PIECE", 100)
    sender, large = await start(store, clock, 2)
    children = [new_session(clock, parent=large.session_id) for _ in range(3)]
    await write(store, commit(large, delta(), sends=tuple(children)))
    for number in range(1, 20):
        await write(store, commit(large, delta(), number=number))
    (begun,) = await store._access.write(lambda db: erasure.write_erasure(db, large.session_id))
    assert begun.has_more

    await write(store, commit(sender, delta(), sends=(message(clock, large.session_id),)))

    assert await store.log.find_orphans() == [child.session_id for child in children]
    assert await store.log.find_orphans(2) == [child.session_id for child in children[:2]]
    assert await store.listing.session(large.session_id) is None
    assert not await store.log.erase(large.session_id)  # takes the pieces away
    assert await store.listing.deliveries(large.session_id) == []


# In a tool's own transaction


async def test_a_tools_transaction_sends_with_its_commit(
    store: SqliteStore, clock: ManualClock
) -> None:
    tool, other = await start(store, clock, 2)
    child = new_session(clock, parent=tool.session_id)
    heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def hear(_: str, arrived: bool) -> None:
        if not heard.done():
            heard.set_result(arrived)

    store.work.listen(hear, other.session_id)
    async with store.log.transaction() as tx:
        await tx.execute("CREATE TABLE orders (id INTEGER)")
        await tx.execute("INSERT INTO orders VALUES (17)")
        letters = (message(clock, "ses_nobody"), child, message(clock, other.session_id))
        done = await tx.commit(commit(tool, delta(), sends=letters))

    assert isinstance(done, Committed)
    async with asyncio.timeout(TIMEOUT):
        assert await heard
    assert await texts_of(store, other.session_id) == ["hello"]
    [claim] = await store.work.claim("w1", 10, held=places([tool, other]))
    assert claim.session_id == child.session_id
    async with store.log.transaction() as tx:
        assert await tx.fetch("SELECT id FROM orders") == [(17,)]


async def test_a_tools_transaction_whose_commit_is_refused_sends_nothing(
    store: SqliteStore, clock: ManualClock
) -> None:
    tool, other = await start(store, clock, 2)
    letter = message(clock, other.session_id)
    async with store.log.transaction() as tx:
        await tx.execute("CREATE TABLE orders (id INTEGER)")
        refused = await tx.commit(commit(tool, delta(), fence=0, sends=(letter,)))

    assert isinstance(refused, Refused)
    assert await texts_of(store, other.session_id) == []


async def test_a_tools_commit_that_is_repeated_sends_once(
    store: SqliteStore, clock: ManualClock
) -> None:
    tool, other = await start(store, clock, 2)
    wanted = commit(tool, delta(), sends=(message(clock, other.session_id),))
    for _ in range(2):  # the first acknowledgement is lost
        async with store.log.transaction() as tx:
            assert isinstance(await tx.commit(wanted), Committed)

    assert await texts_of(store, other.session_id) == ["hello"]
