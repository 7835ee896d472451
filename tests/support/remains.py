"""A session that leaves something in every table, and what there is to be found of it in a file."""

from __future__ import annotations

import random
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core import record as r
from outlast.core.lane import FOLD
from outlast.core.limit import Bound
from outlast.core.record import NewOutboxCursor
from outlast.store import Claim, DeadLetter, EffectClaim, FoldSnapshot, PermitRequest
from outlast.stores.sqlite import SqliteStore
from outlast.testing.contract.builder import (
    commit,
    delta,
    effect,
    put,
    question,
    start_and_claim,
    write,
)

SECRET = "the-safe-opens-with-4711"
HOOK = NewOutboxCursor(
    name="webhook", url=f"https://shop.example/{SECRET}", events=("turn.completed",)
)
TAGS = {"safe": SECRET}
LARGE = random.Random(1).randbytes(40_000).hex() + SECRET
NOISE = random.Random(2).randbytes(3000)  # what cannot be compressed is stored as it is

STAYS = {"outlast_deliveries", "outlast_dispatches", "outlast_effects", "outlast_workers"}


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Be at the file as another program would be."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


@asynccontextmanager
async def opened(path: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock)
    await store.migrate()
    try:
        yield store
    finally:
        await store.close()


def tables_with_rows(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'outlast%'"
        names = [name for (name,) in database.execute(query)]
        return {name for name in names if database.execute(f"SELECT 1 FROM {name}").fetchone()}  # noqa: S608


def count(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as database:
        (found,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
    return int(found)


def on_disk(path: Path) -> bytes:
    """The file and the log beside it. Closing them in this process would drop SQLite's locks."""
    files = [str(file) for file in (path, path.with_name(path.name + "-wal")) if file.exists()]
    return subprocess.run(["/bin/cat", *files], check=True, capture_output=True).stdout


async def live(store: SqliteStore, clock: Clock) -> Claim:
    """Make a session that leaves something in every table, and say the secret wherever it can."""
    claim = await start_and_claim(
        store, clock, text=SECRET, token=SECRET, outbox=(HOOK,), tags=TAGS
    )
    session_id, call_id = claim.session_id, "t1.s1.c1"
    large = r.ToolCompleted(call_id=call_id, attempt=1, value=f'"{LARGE}"')
    wish = PermitRequest(
        session_id=session_id,
        lane="main",
        worker="w1",
        fence=claim.fence,
        call_id=call_id,
        bounds=(Bound(name="bank", concurrency=1),),
    )
    own = EffectClaim(f"session:{session_id}", "k", session_id, "t1.s1.c2", "done", SECRET)
    shared = effect(claim, state="done", value=SECRET)
    free = replace(shared, key="order-18", state="free", value=SECRET)
    asked = replace(question("req_1"), prompt=SECRET)
    await store.limit.acquire([wish])
    await write(
        store,
        commit(
            claim,
            delta(SECRET),
            put(f'"{SECRET}"'),
            large,
            asked,
            effects=(own, shared, free),
            snapshot=FoldSnapshot(3, FOLD, NOISE + SECRET.encode() + NOISE[::-1]),
            slices=FoldSnapshot(3, FOLD, SECRET.encode()),
            tells=True,
        ),
    )
    shorter = FoldSnapshot(4, FOLD, SECRET.encode())
    await write(store, commit(claim, delta(), snapshot=shorter, number=claim.number + 1))
    (cursor,) = await store.outbox.take(1, 1000)
    letter = DeadLetter(
        session_id=session_id,
        tenant=cursor.tenant,
        cursor_name=cursor.name,
        offset=3,
        type="turn.completed",
        error=SECRET,
        at=9,
    )
    await store.outbox.settle(cursor, position=3, again_at=None, error=SECRET, dead=[letter])
    return replace(claim, number=claim.number + 2)
