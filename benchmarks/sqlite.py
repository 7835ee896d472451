"""SQLite: a database is a file with what lies beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.anatomy import SQLITE
from benchmarks.place import Row
from outlast.stores.sqlite.database import Database

ADD = "INSERT INTO log (session, data) VALUES (?, ?)"


class SqliteFloor:
    """One row and one transaction for each thing that happened, or for a group of them."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add(self, row: Row) -> None:
        self.add_group([row])

    def add_group(self, rows: Sequence[Row]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(ADD, rows)
        self._db.execute("COMMIT")


class SqliteDatabase:
    """A file that Outlast or the floor makes when it opens it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite:///{path}"

    @property
    def size(self) -> int:
        """The database with its log and index of it."""
        return sum(file.stat().st_size for file in self._files())

    def vitals(self) -> dict[str, float]:
        """The write-ahead log alone: it grows for as long as nobody can empty it."""
        log = self._path.with_name(f"{self._path.name}-wal")
        return {"WAL (KiB)": log.stat().st_size / 1024 if log.exists() else 0.0}

    @contextmanager
    def floor(self) -> Iterator[SqliteFloor]:
        """Open it with what makes it as durable as Outlast's, and SQLite's defaults otherwise."""
        with closing(
            sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        ) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, session INTEGER, data BLOB)")
            yield SqliteFloor(db)

    def remove(self) -> None:
        for file in self._files():
            file.unlink()

    def _files(self) -> list[Path]:
        return [file for file in self._path.parent.glob(f"{self._path.name}*") if file.is_file()]


class SqlitePlace:
    """A directory."""

    store = "sqlite"
    title = ""
    version = sqlite3.sqlite_version
    transaction = (Database, "commit")
    anatomy = SQLITE

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[str, SqliteDatabase] = {}

    def database(self, name: str) -> SqliteDatabase:
        database = self._made[name] = SqliteDatabase(self._directory / f"{name}.db")
        database.remove()
        return database

    def clear(self) -> None:
        for database in self._made.values():
            database.remove()
        self._made.clear()

    def wait_until_deaths_count(self) -> None:
        """They do at once."""
