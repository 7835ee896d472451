"""A database's file that is deleted, moved or replaced under a process: nothing is accepted."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio

from outlast.errors import StoreUnavailable
from outlast.store import Claim
from outlast.stores.sqlite import SqliteStore
from outlast.stores.sqlite.path import FileReplaced
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    claim_one,
    commit,
    delta,
    end_of,
    enlist,
    message,
    new_session,
    write,
)

clock = ManualClock()


@pytest_asyncio.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock)
    await store.migrate()
    yield store
    await store.close()


async def started(store: SqliteStore) -> Claim:
    await enlist(store, clock)
    await admit(store, new_session(clock))
    claim = await claim_one(store)
    await write(store, commit(claim, delta()))
    return claim


def beside(path: Path, name: str) -> Path:
    return path.with_name(path.name + name)


def back_up(path: Path, copy: Path) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def delete_all(path: Path) -> None:
    for name in ("", "-wal", "-shm"):
        beside(path, name).unlink()


def delete_the_log(path: Path) -> None:
    beside(path, "-wal").unlink()


def move_away(path: Path) -> None:
    path.rename(beside(path, ".old"))


def restore_over(path: Path) -> None:
    back_up(path, beside(path, ".backup"))
    beside(path, ".backup").rename(path)


DAMAGES: list[Callable[[Path], None]] = [delete_all, delete_the_log, move_away, restore_over]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
async def test_nothing_gets_a_receipt_any_more(
    store: SqliteStore, path: Path, damage: Callable[[Path], None]
) -> None:
    claim = await started(store)
    damage(path)
    with pytest.raises(FileReplaced, match="restart this process"):
        await admit(store, message(clock, claim.session_id))
    with pytest.raises(FileReplaced):
        await admit(store, new_session(clock))
    with pytest.raises(FileReplaced):
        await write(store, commit(claim, delta(), number=1))
    with pytest.raises(FileReplaced):
        async with store.log.transaction() as tx:
            await tx.commit(commit(claim, delta(), number=1))


async def test_readers_and_leases_are_told_too(store: SqliteStore, path: Path) -> None:
    lease = await enlist(store, clock, "w2")
    session = (await admit(store, new_session(clock))).session_id
    assert await end_of(store, session) == 2
    restore_over(path)
    with pytest.raises(FileReplaced):
        await store.log.read(session, 0)
    with pytest.raises(StoreUnavailable):
        lease.renew()


async def test_a_file_that_is_put_back_is_worked_on_again(store: SqliteStore, path: Path) -> None:
    claim = await started(store)
    move_away(path)
    with pytest.raises(FileReplaced):
        await write(store, commit(claim, delta(), number=1))
    beside(path, ".old").rename(path)
    written = await write(store, commit(claim, delta(), number=1))
    assert (await store.log.read(claim.session_id, 0)).end == written.first_offset


async def test_the_file_that_took_its_place_is_left_alone(store: SqliteStore, path: Path) -> None:
    claim = await started(store)
    restore_over(path)
    before = contents(path)
    for _ in range(3):
        with pytest.raises(FileReplaced):
            await admit(store, message(clock, claim.session_id))
    assert contents(path) == before


def length(path: Path) -> int:
    return path.stat().st_size


async def grow(store: SqliteStore, path: Path) -> None:
    """Have a longer file, with all of the log in it; the next commit begins the log again."""
    while length(path) < 200_000:
        await admit(store, new_session(clock, text="x" * 5_000))
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(RESTART)")
    await admit(store, new_session(clock))


async def test_a_backup_that_is_copied_over_the_file_is_noticed(
    store: SqliteStore, path: Path
) -> None:
    claim = await started(store)
    back_up(path, beside(path, ".backup"))
    await grow(store, path)
    shutil.copyfile(beside(path, ".backup"), path)
    for _ in range(2):
        with pytest.raises(FileReplaced, match="restart this process"):
            await admit(store, new_session(clock))
        with pytest.raises(FileReplaced):
            await write(store, commit(claim, delta(), number=1))


async def test_a_file_that_a_vacuum_has_made_shorter_is_worked_on(
    store: SqliteStore, path: Path
) -> None:
    await grow(store, path)
    before = length(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE notes AS SELECT zeroblob(900000) AS note")
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
        await admit(store, new_session(clock))
        connection.execute("DROP TABLE notes")
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
    assert length(path) < before + 900_000
    receipt = await admit(store, new_session(clock))
    assert await end_of(store, receipt.session_id) == 2


def contents(path: Path) -> bytes:
    return path.read_bytes()
