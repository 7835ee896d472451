"""Copies of a SQLite store, and the ways to damage them: as a bug or a failing disk would."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.core import codec
from outlast.core import record as r
from outlast.core.record import AnyRecord

NOTHING = r.SessionResumed(since=1)
"""Stands where a record was, so that all others keep their offsets."""


@dataclass
class Row:
    """One commit of a log."""

    first: int
    lane: str | None
    at: int
    marks: int
    records: list[AnyRecord]


Edit = Callable[[list[Row]], None]


class Copy:
    """A copy of a store whose rows can be changed."""

    def __init__(self, original: Path, copy: Path, session_id: str) -> None:
        shutil.copy(original, copy)
        self.path = copy
        self.session_id = session_id

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path)) as db, db:
            yield db

    def sql(self, statement: str, **params: Any) -> int:
        """Change rows; `:sid` is the session's. Return how many."""
        with self.database() as db:
            changed = db.execute(statement, {"sid": self._sid(db), **params}).rowcount
        assert changed, "nothing was damaged"
        return changed

    def _sid(self, db: sqlite3.Connection) -> int:
        query = "SELECT sid FROM outlast_sessions WHERE id = ?"
        return int(db.execute(query, (self.session_id,)).fetchone()[0])

    def edit(self, change: Edit, *, renumber: bool = False) -> None:
        """Rewrite the session's log."""
        packer = codec.Packer()
        with self.database() as db:
            base = self._sid(db) << 32
            span = (base, base | 0xFFFF_FFFF)
            query = "SELECT key, lane, at, marks, data FROM outlast_log WHERE key BETWEEN ? AND ?"
            rows = [
                Row(key & 0xFFFF_FFFF, lane, at, marks, packer.unpack(data, self._blob(db, packer)))
                for key, lane, at, marks, data in db.execute(query + " ORDER BY key", span)
            ]
            before = [list(row.records) for row in rows]
            change(rows)
            assert [row.records for row in rows] != before, "nothing was damaged"
            db.execute("DELETE FROM outlast_log WHERE key BETWEEN ? AND ?", span)
            following = 1
            for row in rows:
                first = following if renumber else row.first
                following = first + len(row.records)
                values = (base | first, len(row.records), row.lane, row.at, row.marks)
                packed = packer.pack(codec.encode(row.records))
                db.execute(
                    "INSERT INTO outlast_log (key, count, lane, at, marks, data)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (*values, packed.data),
                )

    @staticmethod
    def _blob(db: sqlite3.Connection, packer: codec.Packer) -> codec.LoadBlob:
        query = "SELECT data FROM outlast_blobs WHERE hash = ?"
        return lambda name: packer.expand(db.execute(query, (bytes.fromhex(name),)).fetchone()[0])


def places(
    rows: list[Row], kind: type, where: Callable[[Any], bool] = lambda _: True
) -> list[tuple[Row, int]]:
    """Return where the records of a kind are."""
    found = [
        (row, number)
        for row in rows
        for number, record in enumerate(row.records)
        if isinstance(record, kind) and where(record)
    ]
    assert found, f"the log has no {kind.__name__} to damage"
    return found


def drop(kind: type, where: Callable[[Any], bool] = lambda _: True) -> Edit:
    """Put nothing in the place of the first record of a kind."""

    def edit(rows: list[Row]) -> None:
        row, number = places(rows, kind, where)[0]
        row.records[number] = NOTHING

    return edit


def change(kind: type, where: Callable[[Any], bool] = lambda _: True, **values: Any) -> Edit:
    """Change the first record of a kind."""

    def edit(rows: list[Row]) -> None:
        row, number = places(rows, kind, where)[0]
        record = row.records[number]
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        row.records[number] = type(record)(**{**fields, **values})

    return edit


def swap(kind: type, other: Callable[[Any], AnyRecord]) -> Edit:
    """Put another record in the place of the first of a kind."""

    def edit(rows: list[Row]) -> None:
        row, number = places(rows, kind)[0]
        row.records[number] = other(row.records[number])

    return edit


def repeat(kind: type, where: Callable[[Any], bool] = lambda _: True) -> Edit:
    """Write the first record of a kind twice."""

    def edit(rows: list[Row]) -> None:
        row, number = places(rows, kind, where)[0]
        row.records.insert(number, row.records[number])

    return edit
