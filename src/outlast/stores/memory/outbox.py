"""Cursors over sessions' logs, from which events are told to somebody outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from outlast.core.record import NewOutboxCursor
from outlast.store import DeadLetter, OutboxCursor
from outlast.stores.memory.table import CursorRow, SessionRow, Tables


def add(tables: Tables, session: SessionRow, cursors: Sequence[NewOutboxCursor]) -> None:
    for new in cursors:
        tables.cursors[session.id, new.name] = CursorRow(
            OutboxCursor(
                session_id=session.id,
                tenant=session.tenant,
                agent=session.agent,
                name=new.name,
                url=new.url,
                secret=new.secret,
                events=new.events,
            )
        )


def tell(tables: Tables, session_id: str, at: int) -> None:
    """Note that there is something new; a cursor that is due already stays due as it was."""
    for row in of_session(tables, session_id):
        due_at = at if row.info.due_at is None else row.info.due_at
        row.info = replace(row.info, told=row.info.told + 1, due_at=due_at)


def of_session(tables: Tables, session_id: str) -> Iterator[CursorRow]:
    return (row for row in tables.cursors.values() if row.info.session_id == session_id)


def take(tables: Tables, limit: int, hold: int, now: int) -> list[OutboxCursor]:
    rows = [row for row in tables.cursors.values() if is_due(row, now)]
    rows.sort(key=lambda row: row.info.due_at or 0)
    for row in rows[:limit]:
        row.info = replace(row.info, held=row.info.held + 1)
        row.held_until = now + hold
    return [row.info for row in rows[:limit]]


def is_due(row: CursorRow, now: int) -> bool:
    return row.info.due_at is not None and row.info.due_at <= now and row.held_until <= now


def settle(
    tables: Tables,
    cursor: OutboxCursor,
    position: int,
    again_at: int | None,
    tries: int,
    error: str,
    dead: Sequence[DeadLetter],
    now: int,
) -> bool:
    row = tables.cursors.get((cursor.session_id, cursor.name))
    if row is None or row.info.held != cursor.held:
        return False
    if again_at is None and row.info.told != cursor.told:
        again_at = now
    row.info = replace(row.info, position=position, due_at=again_at, tries=tries, error=error)
    row.held_until = 0
    tables.dead_letters += dead
    return True


def listing(tables: Tables) -> Iterator[OutboxCursor]:
    """Yield all outbox cursors, those of the newest session first."""
    rows = sorted(tables.cursors.values(), key=lambda row: row.info.name)
    rows.sort(key=lambda row: row.info.session_id, reverse=True)
    return (row.info for row in rows)


def next_due_at(tables: Tables) -> int | None:
    due = (row.info.due_at for row in tables.cursors.values() if row.info.due_at is not None)
    return min(due, default=None)
