"""The SQLite store's one writer: groups, what fails alone, and what it waits for."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from known import known
from msgspec.structs import replace
from remains import locked

from outlast.errors import StoreError, StoreFull, StoreUnavailable
from outlast.store import Committed
from outlast.stores.sqlite import SqliteStore, checkpoint, migration, writer
from outlast.stores.sqlite import database as connection
from outlast.stores.sqlite.database import (
    Database,
    open_database,
)
from outlast.stores.sqlite.error import explain
from outlast.stores.sqlite.writer import LARGE, LARGEST_GROUP, Writer
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    commit,
    delta,
    end_of,
    message,
    new_session,
    read_all,
    start_and_claim,
    write,
)

TIMEOUT = 60.0


def size_of(path: Path) -> int:
    return path.stat().st_size


async def passes(times: int) -> None:
    """Let the event loop go round."""
    for _ in range(times):
        await asyncio.sleep(0)


class Counted:
    """Counts the calls of a method, which still does what it did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.calls = 0
        original: Callable[..., Any] = getattr(owner, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)


@pytest.mark.parametrize(("waiting", "groups"), [(50, 1), (2 * LARGEST_GROUP, 2)])
async def test_what_waits_for_the_disk_is_committed_together_as_far_as_it_fits(
    store: SqliteStore,
    path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    waiting: int,
    groups: int,
) -> None:
    commits = Counted(monkeypatch, Database, "commit")
    with locked(path) as other:
        sent = [asyncio.create_task(admit(store, new_session(clock))) for _ in range(waiting)]
        await asyncio.sleep(0)
        other.execute("ROLLBACK")
        await asyncio.gather(*sent)
    assert commits.calls == groups


async def test_a_group_wakes_its_event_loop_once(
    store: SqliteStore, path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    store.work.listen(lambda session, _: heard.append(session))
    # By the thread, after the listener was registered, of which nobody waits for the end.
    await admit(store, new_session(clock, "x" * LARGE))
    loop = asyncio.get_running_loop()
    wake_ups = Counted(monkeypatch, type(loop), "call_soon_threadsafe")
    with locked(path) as other:
        sent = [asyncio.create_task(admit(store, new_session(clock))) for _ in range(50)]
        await passes(3)  # until the loop has left it to the writer's thread
        other.execute("ROLLBACK")
        await asyncio.gather(*sent)
    assert wake_ups.calls == 1
    assert len(list(filter(None, heard))) == 51  # and one of nothing in particular


async def test_one_that_cannot_be_written_fails_alone(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    claim = await start_and_claim(store, clock)
    # SQLite holds no integers of more than 64 bits: this one fails in the middle of its writing.
    poison = commit(claim, delta(), at=2**70)
    with locked(path) as other:
        good = [asyncio.create_task(admit(store, new_session(clock))) for _ in range(3)]
        bad = asyncio.create_task(store.log.commit([poison]))
        good += [asyncio.create_task(admit(store, message(clock, claim.session_id)))]
        await asyncio.sleep(0)
        other.execute("ROLLBACK")
        receipts = await asyncio.gather(*good)
    with pytest.raises(OverflowError):
        await bad
    assert receipts[-1].offset == 3
    assert (await write(store, commit(claim, delta()))).first_offset == 4


async def test_of_commits_in_one_call_those_beside_a_failure_are_written(
    store: SqliteStore, clock: ManualClock
) -> None:
    one = await start_and_claim(store, clock)
    two = await start_and_claim(store, clock, held=[one])
    wanted = commit(one, delta())
    with pytest.raises(OverflowError):
        await store.log.commit([wanted, commit(two, delta(), at=2**70)])
    assert await end_of(store, one.session_id) == 3
    assert await end_of(store, two.session_id) == 2
    assert (await write(store, wanted)).first_offset == 3


async def test_a_caller_that_gave_up_waiting_harms_nobody(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    with locked(path) as other:
        impatient = asyncio.create_task(admit(store, new_session(clock)))
        patient = asyncio.create_task(admit(store, new_session(clock)))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.sleep(0)
        other.execute("ROLLBACK")
        await patient
    assert len(await store.listing.sessions()) == 2


async def test_a_writer_waits_for_another_program_however_long_it_takes(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    with locked(path) as other:
        sent = asyncio.create_task(admit(store, new_session(clock)))
        done, _ = await asyncio.wait([sent], timeout=0.2)
        assert not done
        other.execute("ROLLBACK")
    async with asyncio.timeout(TIMEOUT):
        await sent


def test_a_lock_that_is_never_given_up_is_reported(path: Path) -> None:
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE theirs (x)")
    database = open_database(path, ManualClock())
    with locked(path), closing(database), pytest.raises(StoreUnavailable, match=r"kept .* locked"):
        database.begin(timeout=0.05)


async def test_readers_go_on_while_another_program_writes(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    session = (await admit(store, new_session(clock))).session_id
    with locked(path):
        assert len(await read_all(store, session)) == 2


async def test_reading_leaves_no_transaction_open(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    claim = await start_and_claim(store, clock)
    for number in range(20):
        await write(store, commit(claim, delta(), number=number))
    assert len((await store.log.read(claim.session_id, 0, limit=1)).entries) == 2
    assert (await store.log.read_back(claim.session_id, 10, limit=1)).entries
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        # With a reader anywhere in the log, it could not be cut.
        busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert not busy


async def test_two_event_loops_may_use_one_store(store: SqliteStore, clock: ManualClock) -> None:
    def elsewhere() -> str:
        return asyncio.run(admit(store, new_session(clock))).session_id

    session = await asyncio.to_thread(elsewhere)
    assert await store.listing.session(session) is not None


async def test_closing_finishes_what_was_asked_for(path: Path, clock: ManualClock) -> None:
    store = SqliteStore(path, clock)
    await store.migrate()
    sent = [asyncio.create_task(admit(store, new_session(clock))) for _ in range(50)]
    await asyncio.sleep(0)
    await store.close()
    assert len(await asyncio.gather(*sent)) == 50


async def test_no_reader_outlives_a_closed_store(path: Path, clock: ManualClock) -> None:
    before = set(threading.enumerate())
    store = SqliteStore(path, clock)
    await store.migrate()
    await admit(store, new_session(clock))
    await store.close()
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("outlast reader")]


async def test_the_log_is_moved_into_the_file_when_it_is_large(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connection, checkpoint):
        monkeypatch.setattr(module, "LOG_SIZE", 256 * 1024)
    monkeypatch.setattr(checkpoint, "STEP", 64 * 1024)
    store = SqliteStore(path, clock)
    await store.migrate()
    claim = await start_and_claim(store, clock)
    before, log = size_of(path), path.with_name("outlast.db-wal")
    for number in range(2000):
        await write(store, commit(claim, delta(f"{number:x}" * 100), number=number))
        assert log.stat().st_size < 8 * 1024 * 1024  # it would be 10 MiB by the end
    assert size_of(path) > before
    await store.close()


async def test_room_for_the_log_is_made_in_steps_and_writes_nothing(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    claim = await start_and_claim(store, clock)
    log = path.with_name("outlast.db-wal")
    sizes = []
    for number in range(200):
        await write(store, commit(claim, delta(), number=number))
        sizes.append(log.stat().st_size)
    assert len(set(sizes[120:])) <= 4
    assert len(await read_all(store, claim.session_id)) == 202


def test_a_full_database_is_reported_as_full(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "full.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE theirs (x)")
        database.execute("PRAGMA max_page_count = 2")
        with pytest.raises(sqlite3.Error) as caught:
            database.execute("INSERT INTO theirs VALUES (zeroblob(100000))")
    assert isinstance(explain(caught.value, tmp_path), StoreFull)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_failed_write_is_told_apart_from_a_disk_that_became_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    path = tmp_path / "outlast.db"
    with (
        limited_file_size(4096 * 8),
        closing(sqlite3.connect(path)) as database,
        pytest.raises(sqlite3.Error) as caught,
        database,
    ):
        database.execute("CREATE TABLE theirs AS SELECT zeroblob(1000000)")
    assert caught.value.sqlite_errorcode == sqlite3.SQLITE_IOERR_WRITE
    flags = list(os.statvfs(tmp_path))
    flags[8] = os.ST_RDONLY if read_only else 0
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(flags))

    error = explain(caught.value, path)

    assert type(error) is (StoreUnavailable if read_only else StoreFull)
    assert ("read-only" in error.message) is read_only


@contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    """Have every write beyond a size fail, as those on a disk do that takes no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


NO_ROOM = """
import asyncio, os, resource, sys
from outlast.errors import StoreFull
from outlast.stores.sqlite import SqliteStore
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import *

async def main():
    clock, store = ManualClock(), SqliteStore(sys.argv[1])
    await store.migrate()
    claim = await start_and_claim(store, clock)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = os.stat(sys.argv[1] + "-wal").st_size + 50_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
    written = 0
    try:
        while True:
            await write(store, commit(claim, delta("x" * 400), number=written))
            written += 1
    except StoreFull:
        pass
    assert written > 0
    both = await asyncio.gather(
        store.log.commit([commit(claim, delta(), number=written)]),
        store.log.admit([message(clock, claim.session_id)]),
        return_exceptions=True,
    )
    assert [type(error) for error in both] == [StoreFull, StoreFull], both
    assert await end_of(store, claim.session_id) == 2 + written
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    await write(store, commit(claim, delta("again"), number=written))
    offsets = [entry.offset for entry in await read_all(store, claim.session_id)]
    assert offsets == list(range(1, 4 + written))
    await store.close()

asyncio.run(main())
"""


def test_a_full_disk_loses_nothing_and_is_forgiven(path: Path) -> None:
    subprocess.run([sys.executable, "-c", NO_ROOM, str(path)], check=True, timeout=TIMEOUT)


NO_ROOM_FOR_A_SESSION = """
import asyncio, os, resource, sys
from outlast import Agent, Outlast, OutlastError, WorkerSettings
from outlast.testing import ScriptedModel, say
from outlast.log.verify import verify

async def main():
    agent = Agent("a", ScriptedModel(lambda request: say("heard")))
    quick = WorkerSettings(poll=0.05, rest=0.05)
    async with Outlast([agent], store="sqlite:///" + sys.argv[1], worker=quick) as app:
        session = await app.start(agent, "hi")
        await session.wait()
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        room = os.stat(sys.argv[1] + "-wal").st_size + 100_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
        taken = []
        try:
            while True:
                taken.append(await session.send(os.urandom(2000).hex()))
        except OutlastError as error:
            assert error.code == "STORE_FULL", error
        assert taken
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        taken.append(await session.send("and now?"))
        for receipt in taken:
            assert (await receipt.result()).output == "heard"
        queued = [e async for e in session.events() if e.type == "delivery.queued"]
        assert len(queued) == 1 + len(taken)
        assert not await verify(app.store, session.id)

asyncio.run(main())
"""


def test_a_full_disk_is_told_to_who_sends_and_what_was_taken_is_answered_later(path: Path) -> None:
    script = [sys.executable, "-c", NO_ROOM_FOR_A_SESSION, str(path)]
    subprocess.run(script, check=True, timeout=TIMEOUT)


async def test_a_refusal_of_sqlite_that_nobody_foresaw_is_an_error_of_ours(
    store: SqliteStore, clock: ManualClock
) -> None:
    claim = await start_and_claim(store, clock)
    twice = commit(claim, delta())
    asked = replace(twice, index=replace(twice.index, over="surprised"))
    with pytest.raises(StoreError, match="CHECK"):
        await store.log.commit([asked])
    (result,) = await store.log.commit([twice])
    assert isinstance(result, Committed)


def test_an_old_sqlite_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(StoreError, match="newer Python"):
        migration.check_file(path, ManualClock())


def without_threads(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Have the system refuse threads of a name, as when there are too many; return which."""
    start, refused = threading.Thread.start, list[str]()

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return refused


async def test_commits_go_on_where_a_checkpoint_gets_no_thread(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connection, checkpoint):
        monkeypatch.setattr(module, "LOG_SIZE", 64 * 1024)
    refused = without_threads(monkeypatch, "outlast checkpoint")
    store = SqliteStore(path, clock)
    await store.migrate()
    claim = await start_and_claim(store, clock)
    large = "".join(f"{number:x}" for number in range(100_000))
    async with asyncio.timeout(TIMEOUT):
        for number in range(6):
            await write(store, commit(claim, delta(large), number=number))
        await store.close()
    assert refused


async def test_commits_go_on_where_the_log_beside_the_file_cannot_be_looked_at(
    store: SqliteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await start_and_claim(store, clock)

    stat = os.stat

    def refuse(path: Any, **how: Any) -> os.stat_result:
        if str(path).endswith("-wal"):
            raise PermissionError("the directory is closed")
        return stat(path, **how)

    monkeypatch.setattr(os, "stat", refuse)
    async with asyncio.timeout(TIMEOUT):
        for number in range(40):
            await write(store, commit(claim, delta(), number=number))


class Surprise:
    """A job of the writer's thread that leaves a transaction open and breaks."""

    def __init__(self) -> None:
        self.refused = asyncio.get_running_loop().create_future()

    def serve(self, _: Any, db: Database) -> None:
        db.begin()
        raise ZeroDivisionError

    def refuse(self, error: Exception) -> None:
        self.refused.get_loop().call_soon_threadsafe(self.refused.set_result, error)


async def test_the_writer_outlives_an_error_that_nobody_foresaw(
    store: SqliteStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    surprise = Surprise()
    async with asyncio.timeout(TIMEOUT):
        known(store._access.writer).hand_over(surprise)
        assert isinstance(await surprise.refused, ZeroDivisionError)
        await admit(store, new_session(clock))
    assert "the writer met an error" in caplog.messages


async def test_all_of_a_group_are_answered_if_the_writer_breaks(
    store: SqliteStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Writer, "announce", breaks)
    async with asyncio.timeout(TIMEOUT), store.log.transaction():
        asked = [asyncio.create_task(admit(store, new_session(clock))) for _ in range(3)]
        await passes(20)
    async with asyncio.timeout(TIMEOUT):
        results = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(result) for result in results] == [ZeroDivisionError] * 3


async def test_a_store_that_gets_no_socket_says_so(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(writer, "Notifier", refuse)
    async with asyncio.timeout(TIMEOUT):
        with pytest.raises(OSError, match="too many"):
            await SqliteStore(path, clock).migrate()
