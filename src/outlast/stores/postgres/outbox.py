"""Outbox cursors: cursors over sessions' logs, given out to who tells of events and taken back.

Each step is a transaction of its own: a commit that has something to tell writes to the same
rows, and who held several of them while it waited for one could be waited for in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from outlast.store import DeadLetter, OutboxCursor
from outlast.stores.postgres.aside import SideConnection
from outlast.stores.postgres.pipeline import Row
from outlast.stores.postgres.reader import Readers
from outlast.stores.postgres.statement import Params, Query

CURSOR = (
    "session_id tenant agent name url secret events position told held due_at tries error".split()
)
LETTER = "session_id tenant cursor_name offset type error at".split()

_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


class OutboxCursorTable:
    """What is told outside, and how far that is."""

    def __init__(
        self, aside: SideConnection, readers: Readers, queries: Mapping[str, Query]
    ) -> None:
        self._aside = aside
        self._readers = readers
        self._queries = queries

    async def take(self, limit: int, hold: int) -> list[OutboxCursor]:
        params = {"limit": max(0, limit), "hold": hold}
        rows = await self._aside.do(self._queries["take_outbox_cursors"].bind(params))
        return [describe(row) for row in rows]

    async def settle(
        self, cursor: OutboxCursor, changes: Params, dead: Sequence[DeadLetter]
    ) -> bool:
        params: dict[str, Any] = {
            "session_id": cursor.session_id,
            "name": cursor.name,
            "held": cursor.held,
            "told": cursor.told,
            "dead": msgspec.json.encode(dead).decode(),
            **changes,
        }
        return bool(await self._aside.do(self._queries["settle_outbox_cursor"].bind(params)))

    async def listing(self, filters: Params) -> list[OutboxCursor]:
        rows = await self._readers.ask(self._queries["outbox_cursors"].bind(filters))
        return [describe(row) for row in rows]

    async def next_due_at(self) -> int | None:
        [(due_at,)] = await self._readers.ask(self._queries["next_due_at"].bind({}))
        return due_at if due_at is None else int(due_at)

    async def dead_letters(self, filters: Params) -> list[DeadLetter]:
        rows = await self._readers.ask(self._queries["dead_letters"].bind(filters))
        return [DeadLetter(**dict(zip(LETTER, row, strict=True))) for row in rows]


def describe(row: Row) -> OutboxCursor:
    fields = dict(zip(CURSOR, row, strict=True))
    return OutboxCursor(**{**fields, "events": _decode_names(fields["events"])})
