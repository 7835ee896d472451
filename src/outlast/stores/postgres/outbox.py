"""The topic `outbox` in PostgreSQL. See `outlast.store.outbox` for the promises.

Each method is a transaction of its own. A commit that has something to tell locks the same rows;
a transaction that held several of them while it waited for one could deadlock with it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from outlast.store import DeadLetter, OutboxCursor
from outlast.stores.postgres.access import PostgresAccess
from outlast.stores.postgres.pipeline import Row

CURSOR = (
    "session_id tenant agent name url secret events position told held due_at tries error".split()
)
LETTER = "session_id tenant cursor_name offset type error at".split()

_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


class PostgresOutbox:
    """See `outlast.store.OutboxStore`."""

    def __init__(self, access: PostgresAccess) -> None:
        self._access = access

    async def take(self, limit: int, hold: int) -> Sequence[OutboxCursor]:
        statement = self._access.queries["take_outbox_cursors"].bind(
            {"limit": max(0, limit), "hold": hold}
        )
        return [describe(row) for row in await self._access.parts().ungrouped.ask(statement)]

    async def settle(
        self,
        cursor: OutboxCursor,
        *,
        position: int,
        again_at: int | None,
        tries: int = 0,
        error: str = "",
        dead: Sequence[DeadLetter] = (),
    ) -> bool:
        params: dict[str, Any] = {
            "session_id": cursor.session_id,
            "name": cursor.name,
            "held": cursor.held,
            "told": cursor.told,
            "dead": msgspec.json.encode(dead).decode(),
            "position": position,
            "again_at": again_at,
            "tries": tries,
            "error": error,
        }
        statement = self._access.queries["settle_outbox_cursor"].bind(params)
        return bool(await self._access.parts().ungrouped.ask(statement))

    async def cursors(
        self,
        session_id: str | None = None,
        *,
        tenant: str | None = None,
        failing_only: bool = False,
        limit: int = 100,
    ) -> Sequence[OutboxCursor]:
        filters = {
            "session_id": session_id,
            "tenant": tenant,
            "failing_only": failing_only,
            "limit": limit,
        }
        return [describe(row) for row in await self._access.ask("outbox_cursors", filters)]

    async def next_due_at(self) -> int | None:
        [(due_at,)] = await self._access.ask("next_due_at", {})
        return due_at if due_at is None else int(due_at)

    async def dead_letters(
        self, *, tenant: str | None = None, session_id: str | None = None, limit: int = 100
    ) -> Sequence[DeadLetter]:
        filters = {"tenant": tenant, "session_id": session_id, "limit": limit}
        rows = await self._access.ask("dead_letters", filters)
        return [DeadLetter(**dict(zip(LETTER, row, strict=True))) for row in rows]


def describe(row: Row) -> OutboxCursor:
    fields = dict(zip(CURSOR, row, strict=True))
    return OutboxCursor(**{**fields, "events": _decode_names(fields["events"])})
