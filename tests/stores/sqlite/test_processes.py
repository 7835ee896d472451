"""Many processes on one SQLite file: first launch, concurrent load, and waking one another."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from outlast.clock import Clock
from outlast.stores.lock_file import machine
from outlast.stores.sqlite import SqliteStore
from outlast.stores.sqlite import notify as wakeup
from outlast.stores.sqlite.liveness import workers_directory
from outlast.stores.sqlite.notify import ANYTHING, LONGEST, from_datagram, to_datagram
from outlast.stores.sqlite.writer import LARGE
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import admit, message, new_session, read_all

TIMEOUT = 60.0

# Each says that it is ready, waits for the signal to begin, and tells how it went.
PROLOGUE = """
import asyncio, sys
from outlast.clock import Clock
from outlast.stores.sqlite import SqliteStore
from outlast.testing.contract.builder import *

path, name, clock = sys.argv[1], sys.argv[2], Clock()
print("ready", flush=True)
sys.stdin.readline()
"""

LAUNCH = """
async def main():
    store = SqliteStore(path)
    await store.migrate()
    receipt = await admit(store, new_session(clock))
    assert await store.listing.session(receipt.session_id)
    await store.close()

asyncio.run(main())
"""

# Who makes a file, who switches it to a log and who reads it first meet in an instant that few
# launches hit. So there are many, all begun at the same tick of the clock.
LAUNCHES = """
import time

TICK = 0.03

async def main():
    for number in range(int(sys.argv[3])):
        time.sleep(TICK - time.time() % TICK)
        store = SqliteStore(f"{path}.{number}")
        await store.migrate()
        await store.close()

asyncio.run(main())
"""

LOAD = """
SESSIONS = sys.argv[3].split(",")

async def main():
    store = SqliteStore(path)
    await store.migrate()
    await enlist(store, clock, name)

    async def talk(session):
        for number in range(5):
            await admit(store, message(clock, session, f"{name} says {number}"))

    async def work():
        # Each lane that this worker gets has some commits added, and is given back.
        for _ in range(10):
            for claim in await store.work.claim(name, 3):
                for number in range(3):
                    at = clock.now()
                    one = commit(claim, delta(), delta(), worker=name, at=at, number=claim.number)
                    done = await write(store, one)
                    claim = replace(claim, number=claim.number + 1)
                    seen = max([claim.last_arrival, *(e.offset for e in done.arrivals)])
                    claim = replace(claim, last_arrival=seen)
                while True:
                    back = park(claim, worker=name, ready_at=clock.now())
                    (result,) = await store.log.commit([back])
                    if isinstance(result, Committed):
                        break
                    seen = result.arrivals[-1].offset
                    claim = replace(claim, last_arrival=seen)

    await asyncio.gather(work(), *(talk(session) for session in SESSIONS))
    await store.close()

asyncio.run(main())
"""

SEND = """
async def main():
    store = SqliteStore(path)
    await store.migrate()
    await admit(store, message(clock, name))
    await store.close()

asyncio.run(main())
"""


@contextmanager
def process(script: str, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + script, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def wait_until_ready(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"


def run_together(count: int, script: str, path: Path, *args: str) -> None:
    """Run as many processes, and let them all begin at once."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(process(script, str(path), f"w{n}", *args)) for n in range(count)
        ]
        for child in children:
            wait_until_ready(child)
        for child in children:
            assert child.stdin is not None
            child.stdin.write(b"go\n")
            child.stdin.flush()
        for child in children:
            _, errors = child.communicate(timeout=TIMEOUT)
            assert child.returncode == 0, errors.decode()


@pytest_asyncio.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.migrate()
    yield store
    await store.close()


def test_sixteen_processes_may_launch_for_the_first_time_at_once(path: Path) -> None:
    run_together(16, LAUNCH, path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM outlast_sessions").fetchone() == (16,)
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_launches_at_the_same_instant_are_in_nobodys_way(path: Path) -> None:
    run_together(8, LAUNCHES, path, "60")
    for number in range(60):
        with closing(sqlite3.connect(f"{path}.{number}")) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_eight_processes_under_load_leave_no_gap_in_any_log(
    store: SqliteStore, path: Path
) -> None:
    clock = Clock()
    sessions = [(await admit(store, new_session(clock))).session_id for _ in range(6)]
    await asyncio.to_thread(run_together, 8, LOAD, path, ",".join(sessions))
    commits = 0
    for session in sessions:
        entries = await read_all(store, session)
        assert [entry.offset for entry in entries] == list(range(1, len(entries) + 1))
        dates = [entry.at for entry in entries]
        assert dates == sorted(dates)
        deliveries = await store.listing.deliveries(session)
        assert len(deliveries) == len({delivery.offset for delivery in deliveries}) == 41
        written = len(entries) - 1 - len(deliveries)
        assert written % 6 == 0
        commits += written // 6
    assert commits > 0
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_a_write_in_another_process_is_heard(store: SqliteStore, path: Path) -> None:
    session = (await admit(store, new_session(Clock()))).session_id
    heard = asyncio.Event()
    stop = store.work.listen(
        lambda one, arrived: heard.set() if (one, arrived) == (session, True) else None
    )
    await admit(store, new_session(Clock()))  # by now the listener is registered
    await asyncio.to_thread(run_one, SEND, path, session)
    async with asyncio.timeout(TIMEOUT):
        await heard.wait()
    stop()


def run_one(script: str, path: Path, name: str) -> None:
    with process(script, str(path), name) as child:
        _, errors = child.communicate(b"go\n", timeout=TIMEOUT)
        assert child.returncode == 0, errors.decode()


async def test_a_listener_that_is_gone_is_forgotten(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        add = "INSERT INTO outlast_listeners (address, place) VALUES (?, ?)"
        database.execute(add, ("nobody", machine()))
        database.execute(add, ("elsewhere", "another machine"))
        session = (await admit(store, new_session(Clock()))).session_id
        await admit(store, message(Clock(), session))
        left = database.execute("SELECT address FROM outlast_listeners").fetchall()
    assert left == [("elsewhere",)]


async def test_a_listener_that_is_too_slow_holds_nobody_up(store: SqliteStore, path: Path) -> None:
    deaf, address = wakeup.bind(workers_directory(path), Clock())
    with closing(sqlite3.connect(path, isolation_level=None)) as database, deaf:
        add = "INSERT INTO outlast_listeners (address, place) VALUES (?, ?)"
        database.execute(add, (address, machine()))
        session = (await admit(store, new_session(Clock()))).session_id
        async with asyncio.timeout(TIMEOUT):
            for _ in range(600):  # more than any system keeps for one socket
                await admit(store, message(Clock(), session))
        assert database.execute("SELECT count(*) FROM outlast_listeners").fetchone() == (1,)


async def test_a_store_has_one_address_for_as_long_as_it_is_open(path: Path) -> None:
    store = SqliteStore(path)
    await store.migrate()
    with closing(sqlite3.connect(path)) as database:
        known: set[tuple[str]] = set()
        for _ in range(3):
            stop = store.work.listen(lambda *_: None)
            await admit(store, new_session(Clock(), "x" * LARGE))  # after it was registered
            stop()
            known.update(database.execute("SELECT address FROM outlast_listeners"))
        assert len(known) == 1
        [(address,)] = known
        assert (workers_directory(path) / address).is_socket()
        await store.close()
        assert database.execute("SELECT * FROM outlast_listeners").fetchall() == []
        assert not (workers_directory(path) / address).exists()


async def test_what_is_written_right_after_somebody_began_to_listen_is_heard(path: Path) -> None:
    """The writer has just looked for listeners, and by its clock never does again."""
    writer, reader = SqliteStore(path, ManualClock()), SqliteStore(path)
    await writer.migrate()
    await reader.migrate()
    try:
        writer.work.listen(lambda *_: None)
        session = (await admit(writer, new_session(ManualClock()))).session_id
        heard = asyncio.Event()
        reader.work.listen(lambda one, _: heard.set() if one == session else None, session)
        await admit(reader, new_session(Clock()))  # by now the listener is registered
        clock = ManualClock(seed=1)
        async with asyncio.timeout(TIMEOUT):
            while not heard.is_set():
                await admit(writer, message(clock, session))
    finally:
        await writer.close()
        await reader.close()


def test_hints_survive_the_journey() -> None:
    hints = {"ses_1": True, "ses_2": False, "": True}
    assert from_datagram(to_datagram(hints)) == hints


def test_more_hints_than_fit_become_one_of_nothing_in_particular() -> None:
    many = {f"ses_{number:026}": False for number in range(1000)}
    assert len(to_datagram(many)) <= LONGEST
    assert from_datagram(to_datagram(many)) == ANYTHING


@pytest.mark.parametrize("noise", [b"", b"\xff\xfe", b"GET / HTTP/1.1\r\n\r\n", b"\n\n"])
def test_a_datagram_from_a_stranger_is_a_hint_of_nothing_in_particular(noise: bytes) -> None:
    assert from_datagram(noise) == ANYTHING
