"""What a transactional tool may do on SQLite, and what Outlast keeps to itself."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from outlast.errors import InvalidInput, NotInTransaction, StoreUnavailable
from outlast.store import Committed, Refused
from outlast.stores.sqlite import SqliteStore
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    LEASE,
    admit,
    claim_one,
    commit,
    delta,
    end_of,
    enlist,
    new_session,
    start_and_claim,
)

TIMEOUT = 60.0
SLOW = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


@pytest_asyncio.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "outlast.db", clock)
    await store.migrate()
    claim = await start_and_claim(store, clock)
    async with store.log.transaction() as tx:
        await tx.execute("CREATE TABLE notes (text TEXT UNIQUE)")
        await tx.commit(commit(claim, delta()))
    yield store
    await store.close()


async def notes(store: SqliteStore) -> list[str]:
    async with store.log.transaction() as tx:
        return [text for (text,) in await tx.fetch("SELECT text FROM notes ORDER BY text")]


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT a",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "PRAGMA synchronous = OFF",
        "PRAGMA writable_schema = ON",
        "ANALYZE",
        "CREATE TEMP TABLE hidden (x)",
        "DELETE FROM outlast_log",
        "UPDATE Outlast_Lanes SET fence = 0",
        "INSERT INTO outlast_workers (worker) VALUES ('me')",
        "DROP TABLE outlast_log",
        "ALTER TABLE outlast_log ADD COLUMN mine",
        "CREATE INDEX mine ON outlast_log (at)",
        "CREATE TABLE outlast_mine (x)",
        "CREATE TRIGGER mine AFTER INSERT ON outlast_log BEGIN SELECT 1; END",
        "CREATE VIEW outlast_view AS SELECT 1",
    ],
)
async def test_what_is_outlasts_own_affair_is_refused(store: SqliteStore, statement: str) -> None:
    async with store.log.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES ('kept')")
        with pytest.raises(InvalidInput, match="tables of your own"):
            await tx.execute(statement)
        assert await tx.fetch("SELECT text FROM notes") == [("kept",)]
    assert await notes(store) == []


async def test_a_trigger_of_the_tools_own_cannot_reach_outlasts_tables(
    store: SqliteStore,
) -> None:
    async with store.log.transaction() as tx:
        await tx.execute(
            "CREATE TRIGGER sly AFTER INSERT ON notes BEGIN DELETE FROM outlast_log; END"
        )
        with pytest.raises(InvalidInput):
            await tx.execute("INSERT INTO notes VALUES ('x')")


async def test_a_tool_may_read_outlasts_tables(store: SqliteStore) -> None:
    async with store.log.transaction() as tx:
        assert await tx.fetch_one("SELECT count(*) FROM outlast_sessions") == (1,)


async def test_a_statements_own_error_is_the_tools_to_handle(
    store: SqliteStore, clock: ManualClock
) -> None:
    claim = await claim_one(store)
    async with store.log.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES (?)", ["a"])
        with pytest.raises(sqlite3.IntegrityError):
            await tx.execute("INSERT INTO notes VALUES (?)", ["a"])
        assert isinstance(await tx.commit(commit(claim, delta())), Committed)
    assert await notes(store) == ["a"]


async def test_a_statement_that_rolls_back_ends_the_transaction(store: SqliteStore) -> None:
    async with store.log.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES ('a')")
        with pytest.raises(sqlite3.IntegrityError):
            await tx.execute("INSERT OR ROLLBACK INTO notes VALUES ('a')")
        with pytest.raises(NotInTransaction, match="rolled this transaction back"):
            await tx.execute("INSERT INTO notes VALUES ('b')")
    assert await notes(store) == []


async def test_a_statement_that_takes_too_long_is_stopped(store: SqliteStore) -> None:
    async with asyncio.timeout(TIMEOUT), store.log.transaction(limit=2) as tx:
        await tx.execute("INSERT INTO notes VALUES ('a')")
        with pytest.raises(NotInTransaction, match="open for more than"):
            await tx.fetch(SLOW)
        with pytest.raises(NotInTransaction, match="open for more than"):
            await tx.execute("INSERT INTO notes VALUES ('b')")
    assert await notes(store) == []


async def test_a_tool_that_forgets_its_transaction_holds_nobody_up_for_long(
    store: SqliteStore, clock: ManualClock
) -> None:
    claim = await claim_one(store)
    async with asyncio.timeout(TIMEOUT), store.log.transaction(limit=2) as tx:
        await tx.execute("INSERT INTO notes VALUES ('a')")
        await admit(store, new_session(clock))
        with pytest.raises(NotInTransaction):
            await tx.commit(commit(claim, delta()))
    assert await notes(store) == []


async def test_a_transaction_that_was_committed_takes_nothing_more(store: SqliteStore) -> None:
    claim = await claim_one(store)
    async with store.log.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES ('a')")
        assert isinstance(await tx.commit(commit(claim, delta())), Committed)
        with pytest.raises(NotInTransaction, match="was committed"):
            await tx.execute("INSERT INTO notes VALUES ('b')")
    assert await notes(store) == ["a"]


async def test_a_worker_that_was_overtaken_leaves_no_effect(
    store: SqliteStore, clock: ManualClock
) -> None:
    old = await claim_one(store)
    clock.advance(LEASE + 1)
    await enlist(store, clock, "w2")
    end = await end_of(store, old.session_id)
    await claim_one(store, "w2")
    async with store.log.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES ('twice')")
        assert await tx.commit(commit(old, delta())) == Refused("lease_lost")
    assert await notes(store) == []
    assert await end_of(store, old.session_id) == end


async def test_a_tool_that_is_cancelled_leaves_no_effect(store: SqliteStore) -> None:
    opened = asyncio.Event()

    async def tool() -> None:
        async with store.log.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES ('a')")
            opened.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(tool())
    await opened.wait()
    task.cancel()
    await asyncio.wait([task])
    assert await notes(store) == []


async def test_a_tool_that_is_cancelled_while_it_waits_for_its_turn_holds_nobody_up(
    store: SqliteStore, clock: ManualClock
) -> None:
    async with store.log.transaction():
        waiting = asyncio.create_task(notes(store))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
    async with asyncio.timeout(TIMEOUT):
        await asyncio.wait([waiting])
        await admit(store, new_session(clock))


async def test_a_transaction_that_was_left_takes_nothing_more(store: SqliteStore) -> None:
    async with store.log.transaction() as tx:
        pass
    with pytest.raises(NotInTransaction):
        await tx.execute("INSERT INTO notes VALUES ('a')")


async def test_transactions_wait_for_one_another(store: SqliteStore) -> None:
    async def add(text: str) -> None:
        async with store.log.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES (?)", [text])
            assert await tx.fetch("SELECT text FROM notes") == [(text,)]

    await asyncio.gather(*(add(text) for text in "abcde"))
    assert await notes(store) == []


async def test_the_drivers_connection_is_not_to_be_had(store: SqliteStore) -> None:
    async with store.log.transaction() as tx:
        with pytest.raises(InvalidInput, match="execute and fetch"):
            _ = tx.raw


async def test_listeners_hear_of_a_transactions_commit(store: SqliteStore) -> None:
    claim = await claim_one(store)
    heard = asyncio.Event()
    stop = store.work.listen(
        lambda session, _: heard.set() if session == claim.session_id else None
    )
    async with store.log.transaction() as tx:
        await tx.commit(commit(claim, delta()))
    async with asyncio.timeout(TIMEOUT):
        await heard.wait()
    stop()


async def test_a_transaction_that_nobody_could_end_in_time_is_not_opened(
    store: SqliteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Timer, "start", refuse)
        async with asyncio.timeout(TIMEOUT):
            with pytest.raises(StoreUnavailable, match="more threads"):
                async with store.log.transaction():
                    pass
    async with asyncio.timeout(TIMEOUT):
        await admit(store, new_session(clock))
        assert await notes(store) == []
