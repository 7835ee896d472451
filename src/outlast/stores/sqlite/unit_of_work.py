"""What a thread works with: its connection, its packer, and the clock.

Also what was written in the current transaction: how many bytes, and to which sessions; and how
many bytes of large values were read so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from outlast.clock import Clock
from outlast.core.codec import Packer, version_of
from outlast.core.name import MAIN
from outlast.core.record import Entry
from outlast.errors import StoreCorrupt
from outlast.stores.sqlite.database import Database, Row

OFFSETS = 0xFFFF_FFFF


class UnitOfWork:
    """One thread's tools."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self.db = db
        self.clock = clock
        self.packer = Packer()
        self.hints: dict[str, bool] = {}
        self.written = 0
        self.expanded = 0

    def tell(self, session_id: str, *, arrived: bool) -> None:
        """Remember to say that something was written to a session."""
        self.hints[session_id] = arrived or self.hints.get(session_id, False)

    def load_blob(self, tenant: str, name: str) -> bytes:
        row = self.db.one("blob", {"tenant": tenant, "hash": bytes.fromhex(name)})
        if row is None:
            raise StoreCorrupt(f"the blob {name} is missing; restore the database from a backup")
        value = self.packer.expand(row[0])
        self.expanded += len(value)
        return value

    def entries(self, tenant: str, row: Row, after: int = 0) -> Iterator[Entry]:
        """Yield the records of a row of the log in their places, those after an offset."""
        key, _, lane, at, data = row
        version = version_of(data)
        records = self.packer.unpack(data, partial(self.load_blob, tenant))
        name = lane_of(lane)
        for offset, record in enumerate(records, key & OFFSETS):
            if offset > after:
                yield Entry(offset, at, name, record, version)


def key_of(sid: int, offset: int) -> int:
    """Return the key of a session's row that begins at an offset."""
    return sid << 32 | offset


def column_of(lane: str) -> str | None:
    """Return a lane's name as rows hold it: nothing for the one that all sessions have."""
    return None if lane == MAIN else lane


def lane_of(column: str | None) -> str:
    return MAIN if column is None else column


def to_json(value: Any) -> str:
    """Return what a statement takes apart with `json_each`."""
    return msgspec.json.encode(value).decode()
