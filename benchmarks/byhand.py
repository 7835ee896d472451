"""The same work without Holdfast: the floor that its costs are held against.

As somebody would write it who needs no recovery, no ownership and no readers: one table,
one row and one durable commit for each thing that happened.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

ADD = "INSERT INTO log (session, data) VALUES (?, ?)"
Row = tuple[int, bytes]


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database of the same kind as Holdfast's, with SQLite's own defaults for the rest."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, session INTEGER, data BLOB)")
        yield db


def write(db: sqlite3.Connection, rows: list[Row]) -> None:
    """Make one durable commit."""
    db.execute("BEGIN IMMEDIATE")
    db.executemany(ADD, rows)
    db.execute("COMMIT")


def make_steps(db: sqlite3.Connection, texts: list[str]) -> None:
    """Commit what the model said and what the tool returned, step by step."""
    for text in texts:
        write(db, [(1, text.encode())])
        write(db, [(1, text.encode())])


class GroupCommit:
    """Commits of many tasks, made by one thread: a group is what came during the last one."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._waiting: list[tuple[Row, asyncio.Future[None]]] = []
        self._busy = False

    async def add(self, row: Row) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, done))
        if not self._busy:
            self._busy = True
            self._task = asyncio.create_task(self._write_groups())
        await done

    async def _write_groups(self) -> None:
        while group := self._waiting:
            self._waiting = []
            await asyncio.to_thread(write, self._db, [row for row, _ in group])
            for _, done in group:
                done.set_result(None)
        self._busy = False
