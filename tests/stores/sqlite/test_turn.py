"""The turn to write to the SQLite file passes between event loops and the store's thread.

Nothing is lost between them, and no event loop waits for what may take long.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import StoreUnavailable
from outlast.stores.sqlite import SqliteStore
from outlast.stores.sqlite.database import (
    Database,
)
from outlast.stores.sqlite.notify import LoopListeners
from outlast.stores.sqlite.path import FileWatch
from outlast.stores.sqlite.transaction import SqliteTransaction
from outlast.stores.sqlite.writer import WriteJob, Writer, do_works
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    commit,
    delta,
    end_of,
    new_session,
    start_and_claim,
    write,
)

TIMEOUT = 60.0


class Once:
    """Has a method of the database fail the next time, on whichever thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.error: BaseException | None = None
        original: Callable[..., Any] = getattr(Database, name)

        def fail(db: Database, *args: Any) -> Any:
            error, self.error = self.error, None
            if error:
                raise error
            return original(db, *args)

        monkeypatch.setattr(Database, name, fail)


class Threads:
    """Notes which threads call a method of the database: `begin` may have to wait, for long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *of: str) -> None:
        self.seen: set[str] = set()
        original: Callable[..., Any] = getattr(Database, name)

        def noting(db: Database, *args: Any) -> Any:
            if args[: len(of)] == of:
                self.seen.add(threading.current_thread().name)
            return original(db, *args)

        monkeypatch.setattr(Database, name, noting)


def out_of_order() -> sqlite3.Error:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


def may_be_written(path: Path) -> bool:
    """Say whether nobody is in the middle of writing."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
    return True


async def test_a_listener_that_fails_is_no_failure_of_what_was_written(
    store: SqliteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: reported.append(about))
    here, writers = threading.current_thread().name, Threads(monkeypatch, "commit")

    def heard(session_id: str, arrived: bool) -> None:
        raise ZeroDivisionError

    store.work.listen(heard)
    async with asyncio.timeout(TIMEOUT):
        while here not in writers.seen:
            await admit(store, new_session(clock))
            await asyncio.sleep(0)
    assert {type(about["exception"]) for about in reported} == {ZeroDivisionError}


async def test_a_group_that_fails_is_sorted_out_by_the_thread(
    store: SqliteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await start_and_claim(store, clock)
    two = await start_and_claim(store, clock, held=[one])
    await asyncio.sleep(0)
    threads = Threads(monkeypatch, "begin")
    with pytest.raises(OverflowError):
        await store.log.commit([commit(one, delta()), commit(two, delta(), at=2**70)])
    assert threads.seen == {"outlast writer"}
    assert await end_of(store, one.session_id) == 3


async def test_after_an_error_of_the_disk_the_thread_opens_the_file_anew_and_writes(
    store: SqliteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await start_and_claim(store, clock)
    await asyncio.sleep(0)
    threads, disk = Threads(monkeypatch, "close"), Once(monkeypatch, "commit")
    disk.error = out_of_order()
    await write(store, commit(claim, delta()))
    assert threads.seen == {"outlast writer"}
    assert await end_of(store, claim.session_id) == 3


async def test_no_event_loop_waits_for_the_file_or_for_room_in_its_log(
    store: SqliteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await start_and_claim(store, clock)
    waiting, filling = Threads(monkeypatch, "begin"), Threads(monkeypatch, "run", "fill")
    for number in range(200):
        await write(store, commit(claim, delta(), number=number))
        await asyncio.sleep(0)
    assert threading.current_thread().name not in waiting.seen
    await store.close()
    assert filling.seen == {"outlast writer"}


async def test_a_signal_in_the_middle_of_writing_leaves_nothing_open(
    store: SqliteStore, path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await start_and_claim(store, clock)
    await write(store, commit(claim, delta()))  # alone: the next is written where it is asked for
    disk = Once(monkeypatch, "commit")
    disk.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        await store.log.commit([commit(claim, delta(), number=1)])
    assert may_be_written(path)
    assert (await write(store, commit(claim, delta(), number=1))).first_offset == 4


def test_a_signal_at_the_end_of_a_round_loses_nothing(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Once(monkeypatch, "commit")

    async def write_together() -> list[Any]:
        sent = [admit(store, new_session(clock)) for _ in range(3)]
        return await asyncio.gather(*sent)

    with asyncio.Runner() as runner:
        store = SqliteStore(path, clock)
        runner.run(store.migrate())
        runner.run(write_together())
        loop = runner.get_loop()
        writing = loop.create_task(write_together())
        disk.error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(writing)
        assert len(loop.run_until_complete(writing)) == 3
        runner.run(store.close())


async def test_a_transaction_asked_for_while_a_loop_writes_gets_its_turn(
    path: Path, clock: ManualClock
) -> None:
    writer = Writer(path, clock, LoopListeners(), FileWatch(path))
    await writer.start()
    loop = asyncio.get_running_loop()

    async def transact() -> None:
        """As another event loop does, in the middle of a write of ours."""
        transaction = SqliteTransaction(limit=TIMEOUT)
        waiting = [transaction]

        def fail(db: Database, items: Sequence[Any]) -> list[Any]:
            writer.hand_over(waiting.pop())
            raise ZeroDivisionError

        writer.write_here([WriteJob(None, do=fail, items=[None])], loop)
        if waiting:  # the thread was still at it
            writer.hand_over(waiting.pop())
        await transaction.opened
        await transaction.leave()

    async with asyncio.timeout(TIMEOUT):
        for _ in range(10):
            await transact()
        await writer.stop()


async def test_what_comes_after_the_end_is_refused(path: Path, clock: ManualClock) -> None:
    writer = Writer(path, clock, LoopListeners(), FileWatch(path))
    await writer.start()
    await writer.stop()
    transaction = SqliteTransaction(limit=TIMEOUT)
    writer.hand_over(transaction)
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(StoreUnavailable):
            await writer.submit(do_works, [])
        with pytest.raises(StoreUnavailable):
            await transaction.opened
        await transaction.leave()


async def test_what_waits_on_another_event_loop_when_the_store_is_closed_is_told(
    path: Path, clock: ManualClock
) -> None:
    store = SqliteStore(path, clock)
    await store.migrate()
    is_waiting, is_closed = threading.Event(), threading.Event()

    async def write_elsewhere() -> list[Any]:
        pair = [admit(store, new_session(clock)) for _ in range(2)]
        await asyncio.gather(*pair)
        late = [asyncio.create_task(admit(store, new_session(clock))) for _ in range(2)]

        def hold_the_round() -> None:
            is_waiting.set()
            is_closed.wait(TIMEOUT)

        asyncio.get_running_loop().call_soon(hold_the_round)
        async with asyncio.timeout(TIMEOUT):
            return await asyncio.gather(*late, return_exceptions=True)

    elsewhere = asyncio.create_task(asyncio.to_thread(asyncio.run, write_elsewhere()))
    await asyncio.to_thread(is_waiting.wait, TIMEOUT)
    await store.close()
    is_closed.set()
    assert [type(error) for error in await elsewhere] == [StoreUnavailable] * 2
