"""Signs of life on SQLite: seen across processes, lost with the process, never inherited."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from outlast.errors import StoreUnavailable
from outlast.store import Refused
from outlast.stores.lock_file import LockFile, is_free
from outlast.stores.sqlite import SqliteStore
from outlast.stores.sqlite.liveness import MISSING_FOR, LivenessObserver, lock_path
from outlast.stores.sqlite.worker_lease import SqliteLease
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    LEASE,
    claim_one,
    commit,
    delta,
    enlist,
    start_and_claim,
    write_in_vain,
)

TIMEOUT = 60.0
WORKER = """
import asyncio, os, subprocess, sys
from outlast.stores.lock_file import LockFile, is_free
from outlast.stores.sqlite import SqliteStore
from outlast.stores.sqlite.worker_lease import SqliteLease
from outlast.clock import Clock
from outlast.testing.contract.builder import enlist

async def main():
    store = SqliteStore(sys.argv[1])
    await store.migrate()
    lease = await enlist(store, Clock(), "other", lease=3_600_000)
    {then}
    print("ready", flush=True)
    sys.stdin.readline()
    {at_last}

asyncio.run(main())
"""
FORK = """
    heard, said = os.pipe()
    if os.fork() == 0:
        os.write(said, b"born")
        os.read(0, 1)
        os._exit(0)
    os.read(heard, 4)
"""
START = """
    subprocess.Popen(["sleep", "60"])
"""


@contextmanager
def other_worker(
    path: Path, then: str = "", at_last: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Run another process that works on the same file."""
    script = WORKER.format(then=then.strip(), at_last=at_last)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


def run(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(statement)


def lock_of(path: Path, worker: str) -> Path:
    return lock_path(path.with_name("outlast.db-workers"), worker)


async def look_twice(store: SqliteStore, clock: ManualClock) -> list[str]:
    first = await store.work.find_dead()
    clock.advance(int(MISSING_FOR * 1000))
    return [*first, *await store.work.find_dead()]


async def listed(store: SqliteStore) -> list[str]:
    return [info.worker for info in await store.work.workers()]


async def test_a_worker_in_another_process_is_seen_alive(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    with other_worker(path):
        assert await listed(store) == ["other"]
        assert await look_twice(store, clock) == []


@pytest.mark.parametrize("child", ["", FORK, START], ids=["alone", "forked", "started"])
async def test_a_killed_worker_is_found_dead_though_a_child_of_it_lives(
    store: SqliteStore, path: Path, clock: ManualClock, child: str
) -> None:
    with other_worker(path, then=child) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(TIMEOUT)
        assert await listed(store) == []
        assert await look_twice(store, clock) == ["other"]
    assert not lock_of(path, "other").exists()


async def test_a_worker_is_dead_only_when_missing_twice_and_not_at_once(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    with other_worker(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(TIMEOUT)
    assert await store.work.find_dead() == {}
    clock.advance(int(MISSING_FOR * 1000) - 1)
    assert await store.work.find_dead() == {}
    clock.advance(1)
    assert await store.work.find_dead() == {"other": "lock_file"}


async def test_a_worker_whose_file_is_gone_is_left_to_its_lease(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    with other_worker(path) as process:
        lock_of(path, "other").unlink()
        process.send_signal(signal.SIGKILL)
        process.wait(TIMEOUT)
    assert await listed(store) == ["other"]
    assert await look_twice(store, clock) == []


async def test_a_worker_on_another_machine_is_left_to_its_lease(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    with other_worker(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(TIMEOUT)
    run(path, "UPDATE outlast_workers SET machine = 'elsewhere'")
    assert await listed(store) == ["other"]
    assert await look_twice(store, clock) == []


async def test_a_worker_not_heard_of_for_a_day_is_forgotten(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    await enlist(store, clock, "w9", lease=1_000)
    run(path, "UPDATE outlast_workers SET machine = 'elsewhere'")
    assert await store.work.find_dead() == {}
    clock.advance(25 * 3_600_000)
    assert await store.work.find_dead() == {"w9": "lease_expired"}


async def test_what_a_dead_worker_still_sends_is_refused(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    other = SqliteStore(path, clock)
    await other.migrate()
    lease = await enlist(other, clock, "w1")
    claim = await start_and_claim(other, clock)
    assert isinstance(lease, SqliteLease)
    lease._sign.drop()  # it lives, and looks dead
    assert await look_twice(store, clock) == ["w1"]
    assert await write_in_vain(other, commit(claim, delta())) == Refused("lease_lost")
    assert not lease.renew().alive
    await other.close()


async def test_a_lease_is_renewed_while_the_event_loop_is_blocked(
    store: SqliteStore, clock: ManualClock
) -> None:
    lease = await enlist(store, clock)
    clock.advance(LEASE - 1)
    renewed: list[bool] = []
    thread = threading.Thread(target=lambda: renewed.append(lease.renew().alive))
    thread.start()
    thread.join(TIMEOUT)  # nothing of the loop runs meanwhile
    assert renewed == [True]


async def test_a_lease_is_renewed_while_a_tools_transaction_is_open_elsewhere(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    lease = await enlist(store, clock)
    other = SqliteStore(path, clock)
    await other.migrate()
    async with other.log.transaction(limit=0.1):
        assert (await asyncio.to_thread(lease.renew)).alive
    await other.close()


async def test_a_name_in_use_is_refused(store: SqliteStore, path: Path, clock: ManualClock) -> None:
    with other_worker(path), pytest.raises(StoreUnavailable, match="a living worker has this name"):
        await enlist(store, clock, "other")


async def test_a_worker_that_lost_its_lease_may_enlist_again(
    store: SqliteStore, clock: ManualClock
) -> None:
    await enlist(store, clock)
    await enlist(store, clock)
    assert await look_twice(store, clock) == []
    assert [info.worker for info in await store.work.workers()] == ["w1"]


async def test_a_closed_store_shows_its_workers_as_dead(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    other = SqliteStore(path, clock)
    await other.migrate()
    await enlist(other, clock, "w9")
    await other.close()
    assert await look_twice(store, clock) == ["w9"]


async def test_a_worker_that_stopped_leaves_no_file(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    lease = await enlist(store, clock)
    assert lock_of(path, "w1").exists()
    lease.release()
    lease.release()
    assert not lock_of(path, "w1").exists()


async def test_a_workers_name_may_hold_any_character(
    store: SqliteStore, clock: ManualClock
) -> None:
    await enlist(store, clock, "../../etc/passwd\n")
    assert await look_twice(store, clock) == []


def test_a_sign_of_life_that_comes_back_is_believed(tmp_path: Path) -> None:
    clock = ManualClock()
    observer = LivenessObserver(tmp_path, clock)
    lock = LockFile(lock_path(tmp_path, "w1"))
    lock.take()
    lock.drop()
    assert observer.find_dead(["w1"]) == []
    lock.take()
    clock.advance(1_000)
    assert observer.find_dead(["w1"]) == []
    lock.drop()
    assert observer.find_dead(["w1"]) == []
    clock.advance(1_000)
    assert observer.find_dead(["w1"]) == ["w1"]


def test_looking_at_a_lock_does_not_take_it(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "w1.lock")
    lock.take()
    lock.drop()
    assert is_free(lock.path)
    lock.take()
    assert not is_free(lock.path)
    lock.drop()


USE_AFTER_FORK = """
import asyncio, os, sys
from outlast.errors import UsedAfterFork
from outlast.clock import Clock
from outlast.stores.lock_file import LockFile, is_free
from outlast.stores.sqlite import SqliteStore
from outlast.stores.sqlite.worker_lease import SqliteLease
from outlast.testing.contract.builder import enlist

async def opened():
    store = SqliteStore(sys.argv[1])
    await store.migrate()
    return store, await enlist(store, Clock())

store, lease = asyncio.run(opened())
if os.fork():
    _, status = os.wait()
    assert status == 0
    assert asyncio.run(store.listing.session("ses_1")) is None
    assert lease.renew().alive
    asyncio.run(store.close())
else:
    refused = 0
    for use in (
        lambda: asyncio.run(store.migrate()),
        lambda: asyncio.run(store.listing.session("ses_1")),
        lambda: asyncio.run(store.log.admit([])),
        lambda: asyncio.run(store.log.commit([])),
        lambda: asyncio.run(store.work.claim("w1", 1)),
        lambda: asyncio.run(store.work.find_dead()),
        lambda: asyncio.run(store.close()),
        lambda: store.work.listen(print),
        lease.renew,
        lease.release,
    ):
        try:
            use()
        except UsedAfterFork:
            refused += 1
    os._exit(0 if refused == 10 else 1)
"""


def test_a_store_refuses_to_be_used_after_a_fork(path: Path) -> None:
    subprocess.run([sys.executable, "-c", USE_AFTER_FORK, str(path)], check=True, timeout=TIMEOUT)


async def test_lanes_of_a_killed_process_are_claimed_by_another(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    await enlist(store, clock, "w1")
    claim = await start_and_claim(store, clock)
    with other_worker(path) as process:
        run(path, "UPDATE outlast_lanes SET worker = 'other'")
        assert await store.work.claim("w1", 10) == []
        process.send_signal(signal.SIGKILL)
        process.wait(TIMEOUT)
    assert await look_twice(store, clock) == ["other"]
    assert (await claim_one(store)).session_id == claim.session_id
