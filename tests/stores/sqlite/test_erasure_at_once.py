"""Erasing a session beside others who write to the SQLite file, and killed in the middle."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from remains import SECRET, STAYS, count, live, locked, on_disk, opened, tables_with_rows

from outlast.errors import SessionErased
from outlast.store import AdmissionReceipt, Claim, Committed, Refused
from outlast.stores.sqlite import SqliteStore
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    admit_in_vain,
    commit,
    delta,
    new_session,
    read_all,
    start_and_claim,
)

TIMEOUT = 60.0


@pytest.mark.parametrize("is_first", [True, False])
async def test_an_owner_commits_before_the_erasure_in_its_group_or_not_at_all(
    store: SqliteStore, path: Path, clock: ManualClock, is_first: bool
) -> None:
    claims: list[Claim] = []
    for _ in range(5):
        claims.append(await start_and_claim(store, clock, held=claims))
    gone, *others = claims
    groups = store.counts()["groups"]
    with locked(path) as other:
        wanted = [store.log.commit([commit(c, delta(), tells=True)]) for c in claims]
        ways = [*wanted, store.log.erase(gone.session_id)]
        tasks = [asyncio.ensure_future(way) for way in (ways if is_first else reversed(ways))]
        await asyncio.sleep(0)
        other.execute("ROLLBACK")
        results = await asyncio.gather(*tasks)

    *commits, erased = results if is_first else reversed(results)

    assert erased
    assert store.counts()["groups"] - groups == 1
    [[first], *rest] = commits
    assert isinstance(first, Committed if is_first else Refused)
    assert all(isinstance(result, Committed) for [result] in rest)
    assert await store.listing.session(gone.session_id) is None
    assert count(path, "outlast_lanes") == len(others)
    assert count(path, "outlast_log") == 2 * len(others)


async def test_a_retried_start_never_brings_an_erased_session_back(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    async with opened(path, clock) as elsewhere:
        for number in range(10):
            start = new_session(clock, dispatch_id=f"order-{number}")
            session_id = (await admit(store, start)).session_id

            erased, [retried] = await asyncio.gather(
                store.log.erase(session_id), elsewhere.log.admit([start])
            )

            assert erased
            assert isinstance(retried, AdmissionReceipt | SessionErased)
            assert isinstance(await admit_in_vain(elsewhere, start), SessionErased)
    assert await store.listing.sessions() == []
    assert count(path, "outlast_log") == count(path, "outlast_lanes") == 0


PROLOGUE = """
import asyncio, sys, time
from outlast.clock import Clock
from outlast.stores.sqlite import SqliteStore, erasure
from outlast.stores.sqlite.database import Database

path, sessions = sys.argv[1], sys.argv[2].split(",")

async def main():
    store = SqliteStore(path)
    await store.migrate()
    print("ready", flush=True)
    sys.stdin.readline()
    for session in sessions:
        if await store.log.erase(session):
            print(session, flush=True)
    await store.close()
"""

# Pages that are changed go to the disk before the transaction ends, as those of a large one do.
HANG = """
erasure.PIECE = 1000
name, times = sys.argv[3], int(sys.argv[4])
run = Database.run

def hang(self, statement, params={}):
    global times
    times -= statement == name
    if not times:
        print("hangs", flush=True)
        time.sleep(60)
    if statement == "strip_deliveries":
        self.raw.execute("PRAGMA cache_size = 1")
    return run(self, statement, params)

Database.run = hang
"""


@contextmanager
def process(script: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", script + "\nasyncio.run(main())", *args],
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


async def test_of_two_processes_that_erase_a_session_one_does(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    sessions = [(await admit(store, new_session(clock))).session_id for _ in range(20)]
    args = (PROLOGUE, str(path), ",".join(sessions))
    with process(*args) as one, process(*args) as two:
        for child in (one, two):
            go(child)
        told = [child.communicate(timeout=TIMEOUT)[0].split() for child in (one, two)]
        assert (one.returncode, two.returncode) == (0, 0)

    assert sorted([*told[0], *told[1]]) == sorted(sessions)
    assert await store.listing.sessions() == []


@pytest.mark.parametrize(
    ("statement", "times", "is_gone"),
    [("erase_session", 1, False), ("add_erasure", 1, False), ("erase_log", 2, True)],
)
async def test_a_session_whose_eraser_was_killed_is_there_whole_or_not_at_all(
    path: Path, clock: ManualClock, statement: str, times: int, is_gone: bool
) -> None:
    async with opened(path, clock) as store:
        claim = await live(store, clock)
        before = await read_all(store, claim.session_id)
    with process(PROLOGUE + HANG, str(path), claim.session_id, statement, str(times)) as child:
        go(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "hangs\n"
        child.kill()
        child.wait()

    async with opened(path, clock) as store:
        assert (await store.listing.session(claim.session_id) is None) == is_gone
        if not is_gone:
            assert await read_all(store, claim.session_id) == before
            assert await store.log.erase(claim.session_id)
    assert tables_with_rows(path) <= STAYS
    assert SECRET.encode() not in on_disk(path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
