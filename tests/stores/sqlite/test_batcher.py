"""Who writes to the SQLite file: whoever asks while that is quick, or the store's own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from outlast.store import Claim, Committed, FoldSnapshot
from outlast.stores.sqlite import SqliteStore
from outlast.stores.sqlite.database import Database
from outlast.stores.sqlite.writer import CAUTION, LARGE, LARGEST_GROUP, QUICK, SMOOTHING
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import commit, delta, end_of, start_and_claim, write

OURS = "MainThread"
TIMEOUT = 60.0
WRITERS = "outlast writer"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Disk:
    return Disk(monkeypatch, clock)


class Disk:
    """Notes which thread waits for the disk, and can be slow; the clock knows no other time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
        self.waited: list[str] = []
        self.takes = 0
        make_durable: Callable[[Database], None] = Database.commit

        def commit(db: Database) -> None:
            self.waited.append(threading.current_thread().name)
            clock.advance(self.takes)
            make_durable(db)

        monkeypatch.setattr(Database, "commit", commit)


class Owner:
    """The owner of some lanes, who adds to all of them at once."""

    def __init__(self, store: SqliteStore, claims: list[Claim]) -> None:
        self._store = store
        self._claims = claims
        self._number = 0

    @classmethod
    async def of(cls, store: SqliteStore, clock: ManualClock, lanes: int) -> Owner:
        claims: list[Claim] = []
        for _ in range(lanes):
            claims.append(await start_and_claim(store, clock, held=claims))
        await asyncio.sleep(0)
        return cls(store, claims)

    async def write(self, text: str = "word") -> None:
        number, self._number = self._number, self._number + 1
        wanted = [commit(claim, delta(text), number=number) for claim in self._claims]
        results = await asyncio.gather(*(self._store.log.commit([one]) for one in wanted))
        assert all(isinstance(result, Committed) for [result] in results)
        await asyncio.sleep(0)


async def test_who_asks_alone_writes_it_himself(
    store: SqliteStore, clock: ManualClock, disk: Disk
) -> None:
    owner = await Owner.of(store, clock, 1)
    disk.waited.clear()
    for _ in range(3):
        await owner.write()
    assert disk.waited == [OURS] * 3


async def test_what_comes_together_again_is_written_together(
    store: SqliteStore, clock: ManualClock, disk: Disk
) -> None:
    owner = await Owner.of(store, clock, 5)
    disk.waited.clear()
    for _ in range(4):
        await owner.write()
    assert disk.waited == [OURS] * 4


async def test_a_lone_session_does_not_wait_for_its_event_loop(
    store: SqliteStore, clock: ManualClock
) -> None:
    claim = await start_and_claim(store, clock)
    written = [
        await rounds_of(store.log.commit([commit(claim, delta(), number=n)])) for n in range(3)
    ]
    assert [rounds > 0 for rounds in written] == [True, False, False]


async def test_a_session_that_has_company_waits_for_it(
    store: SqliteStore, clock: ManualClock
) -> None:
    first = await start_and_claim(store, clock)
    second = await start_and_claim(store, clock, held=[first])
    for number in range(3):
        for claim in (first, second):
            assert await rounds_of(store.log.commit([commit(claim, delta(), number=number)]))


async def rounds_of(asked: Awaitable[object]) -> int:
    """Return how many rounds of the event loop went by before an answer was there."""
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0)
            rounds += 1

    counting = asyncio.create_task(count())
    await asked
    counting.cancel()
    return rounds


async def test_of_very_many_the_first_do_not_wait_for_the_last(
    store: SqliteStore, clock: ManualClock, disk: Disk
) -> None:
    owner = await Owner.of(store, clock, LARGEST_GROUP + 1)
    await owner.write()
    disk.waited.clear()
    await owner.write()
    assert disk.waited == [OURS] * 2


async def test_what_is_large_is_left_to_the_thread_with_all_that_came_with_it(
    store: SqliteStore, clock: ManualClock, disk: Disk
) -> None:
    owner = await Owner.of(store, clock, 2)
    await owner.write()
    disk.waited.clear()
    await owner.write("x" * LARGE)
    assert set(disk.waited) == {WRITERS}


async def test_a_large_snapshot_is_left_to_the_thread(
    store: SqliteStore, clock: ManualClock, disk: Disk
) -> None:
    claim = await start_and_claim(store, clock)
    await asyncio.sleep(0)
    disk.waited.clear()
    await write(store, commit(claim, delta(), snapshot=FoldSnapshot(2, 1, b"x" * (LARGE + 1))))
    assert disk.waited == [WRITERS]


async def test_a_slow_disk_is_left_to_the_thread_and_tried_again_later(
    store: SqliteStore, clock: ManualClock, disk: Disk
) -> None:
    owner = await Owner.of(store, clock, 1)
    disk.takes = int(SMOOTHING * QUICK * 1000) + 1
    disk.waited.clear()
    for _ in range(3):
        await owner.write()
    assert disk.waited == [OURS, WRITERS, WRITERS]
    clock.advance(CAUTION * disk.takes)
    disk.takes = 0
    async with asyncio.timeout(TIMEOUT):
        while OURS not in disk.waited[3:]:  # the thread may be about to lay down its pen
            await owner.write()


async def test_one_long_wait_among_many_short_ones_changes_nothing(
    store: SqliteStore, clock: ManualClock, disk: Disk
) -> None:
    owner = await Owner.of(store, clock, 1)
    disk.waited.clear()
    disk.takes = int(SMOOTHING * QUICK * 1000) - 1
    await owner.write()
    disk.takes = 0
    await owner.write()
    assert disk.waited == [OURS] * 2


async def test_while_a_tool_has_its_transaction_everybody_waits_for_the_thread(
    store: SqliteStore, clock: ManualClock, disk: Disk
) -> None:
    owner = await Owner.of(store, clock, 1)
    disk.waited.clear()
    async with store.log.transaction() as transaction:
        await transaction.execute("CREATE TABLE mine (n INTEGER)")
        writing = asyncio.create_task(owner.write())
        await asyncio.sleep(0)
        await transaction.execute("INSERT INTO mine VALUES (1)")
        assert not writing.done()
    await writing
    assert disk.waited == [WRITERS]


async def test_what_fails_alone_is_told_to_who_wrote_it_and_the_next_is_written(
    store: SqliteStore, clock: ManualClock
) -> None:
    claim = await start_and_claim(store, clock)
    await asyncio.sleep(0)
    with pytest.raises(OverflowError):
        await store.log.commit([commit(claim, delta(), at=2**70)])
    await asyncio.sleep(0)
    assert (await write(store, commit(claim, delta()))).first_offset == 3


async def test_two_event_loops_write_through_one_store(
    store: SqliteStore, clock: ManualClock
) -> None:
    here = await start_and_claim(store, clock)
    elsewhere = await start_and_claim(store, clock, held=[here])

    async def write_often(claim: Claim) -> None:
        owner = Owner(store, [claim])
        for _ in range(100):
            await owner.write()

    other = asyncio.to_thread(asyncio.run, write_often(elsewhere))
    await asyncio.gather(other, write_often(here))
    assert [await end_of(store, c.session_id) for c in (here, elsewhere)] == [102, 102]
