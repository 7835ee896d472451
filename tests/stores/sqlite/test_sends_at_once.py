"""What commits send on SQLite, by two processes to each other, and killed in the middle."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from remains import opened

from outlast.clock import Clock
from outlast.core import record as r
from outlast.store import Commit, Committed
from outlast.stores.sqlite import SqliteStore
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    commit,
    delta,
    end_of,
    enlist,
    message,
    new_session,
    read_all,
    start_and_claim,
)

TIMEOUT = 60.0
TIMES = 20

PROLOGUE = """
import asyncio, sys, time
import msgspec
from outlast.store import Commit, Committed
from outlast.stores.sqlite import SqliteStore
from outlast.stores.sqlite.database import Database
from outlast.testing.contract.builder import *

path, clock = sys.argv[1], Clock()
print("ready", flush=True)
sys.stdin.readline()
"""

# Each of its lanes sends to the other's lanes, and parks when it has seen all that came by then.
EXCHANGE = """
name, others, times = sys.argv[2], sys.argv[3].split(","), int(sys.argv[4])

async def talk(store, claim, place):
    seen = claim.last_arrival
    for number in range(times):
        letter = message(clock, others[(place + number) % len(others)], f"{name} says {number}")
        wanted = commit(claim, delta(), worker=name, number=number, seen=seen, sends=(letter,))
        done = await write(store, wanted)
        seen = max([seen, *(entry.offset for entry in done.arrivals)])
    while True:
        last = park(claim, delta(str(seen)), worker=name, number=times, seen=seen)
        (result,) = await store.log.commit([last])
        if isinstance(result, Committed):
            return
        seen = result.arrivals[-1].offset

async def main():
    store = SqliteStore(path)
    await store.migrate()
    await enlist(store, clock, name)
    claims = await store.work.claim(name, 10, agents=[name])
    assert len(claims) == len(others)
    await asyncio.gather(*(talk(store, claim, place) for place, claim in enumerate(claims)))
    await store.close()
"""

# Pages that are changed go to the disk before the transaction ends, as those of a large one do.
HANG = """
wanted = msgspec.msgpack.decode(bytes.fromhex(sys.argv[2]), type=Commit)
where = sys.argv[3]
run, end = Database.run, Database.commit

def hang():
    print("hangs", flush=True)
    time.sleep(60)

def hanging_run(self, statement, params={}):
    if statement == where:
        self.raw.execute("PRAGMA cache_size = 1")
        result = run(self, statement, params)
        hang()
    return run(self, statement, params)

def hanging_commit(self):
    end(self)
    if where == "commit":
        hang()

async def main():
    store = SqliteStore(path)
    await store.migrate()
    Database.run, Database.commit = hanging_run, hanging_commit
    await store.log.commit([wanted])
"""


@contextmanager
def process(script: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", f"{PROLOGUE}{script}\nasyncio.run(main())", *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


def go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def check(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_nothing_is_lost_of_what_two_processes_send_to_each_other(path: Path) -> None:
    clock = Clock()
    async with opened(path, clock) as store:
        ours, theirs = [
            [(await admit(store, new_session(clock, agent=name))).session_id for _ in range(4)]
            for name in ("one", "two")
        ]
        args = (str(TIMES),)
        with (
            process(EXCHANGE, str(path), "one", ",".join(theirs), *args) as one,
            process(EXCHANGE, str(path), "two", ",".join(ours), *args) as two,
        ):
            for child in (one, two):
                go(child)
            for child in (one, two):
                child.communicate(timeout=TIMEOUT)
            assert (one.returncode, two.returncode) == (0, 0)

        await enlist(store, clock, "w3")
        ready = {claim.session_id for claim in await store.work.claim("w3", 100)}
        for session_id in (*ours, *theirs):
            arrived, parked_at = await look(store, session_id)
            assert (session_id in ready) == (arrived > parked_at)
    check(path)


async def look(store: SqliteStore, session_id: str) -> tuple[int, int]:
    """Return where the last arrival is, and up to which its owner had seen them when it parked."""
    entries = await read_all(store, session_id)
    assert [entry.offset for entry in entries] == list(range(1, len(entries) + 1))
    arrivals = [e.offset for e in entries if isinstance(e.record, r.DeliveryQueued)]
    said = [e.record.text for e in entries if isinstance(e.record, r.MessageDelta)]
    assert len(arrivals) == len(said) == 1 + TIMES
    assert len(await store.listing.deliveries(session_id)) == 1 + TIMES
    return arrivals[-1], int(said[-1])


@pytest.mark.parametrize(
    ("where", "has_landed"), [("append", False), ("add_delivery", False), ("commit", True)]
)
async def test_what_a_killed_process_was_sending_arrives_with_its_commit_or_not_at_all(
    path: Path, where: str, has_landed: bool
) -> None:
    clock = ManualClock()
    async with opened(path, clock) as store:
        other = await admit(store, new_session(clock))
        sender = await start_and_claim(store, clock)
        child = new_session(clock, parent=sender.session_id)
        wanted = commit(sender, delta(), sends=(child, message(clock, other.session_id)))
        kill_in_the_middle(path, wanted, where)

        assert await end_of(store, sender.session_id) == 2 + has_landed
        assert len(await store.listing.deliveries(other.session_id)) == 1 + has_landed
        assert len(await store.listing.sessions(parent=sender.session_id)) == has_landed

        (again,) = await store.log.commit([wanted])  # whoever heard nothing asks again

        assert isinstance(again, Committed)
        assert again.first_offset == 3
        assert len(await store.listing.deliveries(other.session_id)) == 2
        assert len(await store.listing.sessions(parent=sender.session_id)) == 1
    check(path)


def kill_in_the_middle(path: Path, wanted: Commit, where: str) -> None:
    with process(HANG, str(path), msgspec.msgpack.encode(wanted).hex(), where) as child:
        go(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "hangs\n"
        child.kill()
        child.wait()
