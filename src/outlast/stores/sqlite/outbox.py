"""The topic `outbox` in SQLite. See `outlast.store.outbox` for the promises.

`admission.py` adds cursors and `commit.py` makes them due.
"""

from collections.abc import Sequence
from functools import partial

from outlast.core.record import NewOutboxCursor
from outlast.store import DeadLetter, OutboxCursor
from outlast.stores.sqlite.access import Access
from outlast.stores.sqlite.database import (
    Database,
    Params,
    Row,
    to_json,
)
from outlast.stores.sqlite.listing import names_of


class SqliteOutbox:
    """See `outlast.store.OutboxStore`."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def take(self, limit: int, hold: int) -> Sequence[OutboxCursor]:
        (taken,) = await self._access.write(partial(take, limit=limit, hold=hold))
        return list(taken)

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
        work = partial(settle, cursor=cursor, position=position, again_at=again_at)
        (was_ours,) = await self._access.write(partial(work, tries=tries, error=error, dead=dead))
        return bool(was_ours)

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
        return await self._access.read(lambda db: listing(db, filters))

    async def next_due_at(self) -> int | None:
        return await self._access.read(next_due_at)

    async def dead_letters(
        self, *, tenant: str | None = None, session_id: str | None = None, limit: int = 100
    ) -> Sequence[DeadLetter]:
        filters = {"tenant": tenant, "session_id": session_id, "limit": limit}
        return await self._access.read(lambda db: dead_letters(db, filters))


def add(db: Database, sid: int, cursors: Sequence[NewOutboxCursor], position: int = 0) -> None:
    """Add the cursors that a session does not have; what is behind the position is told."""
    rows = [(cursor.name, cursor.url, cursor.secret, cursor.events) for cursor in cursors]
    # By their names: one that the session has keeps its position.
    named = {"sid": sid, "cursors": to_json(rows), "position": position}
    db.run("add_outbox_cursors", named)


def tell(db: Database, sid: int) -> None:
    """Note that a session's log has something new for its cursors."""
    db.run("tell_outbox_cursors", {"sid": sid, "now": db.clock.now()})


def take(db: Database, limit: int, hold: int) -> list[OutboxCursor]:
    wanted = {"limit": max(0, limit), "hold": hold, "now": db.clock.now()}
    taken = [oid for (oid,) in db.all("take_outbox_cursors", wanted)]
    return listed(db, "taken_outbox_cursors", {"taken": to_json(taken)}) if taken else []


def settle(
    db: Database,
    cursor: OutboxCursor,
    position: int,
    again_at: int | None,
    tries: int,
    error: str,
    dead: Sequence[DeadLetter],
) -> bool:
    row = db.one(
        "settle_outbox_cursor",
        {
            "session_id": cursor.session_id,
            "name": cursor.name,
            "held": cursor.held,
            "told": cursor.told,
            "position": position,
            "again_at": again_at,
            "tries": tries,
            "error": error,
            "now": db.clock.now(),
        },
    )
    # Only by the one who still holds the cursor: another dispatcher may have delivered these by
    # now.
    if row and dead:
        letters = [(each.cursor_name, each.offset, each.type, each.error, each.at) for each in dead]
        db.run("add_dead_letters", {"sid": row[0], "dead": to_json(letters)})
    return row is not None


def listing(db: Database, filters: Params) -> list[OutboxCursor]:
    of_one = filters["session_id"] is not None
    return listed(db, "outbox_cursors_of_session" if of_one else "outbox_cursors", filters)


def listed(db: Database, name: str, params: Params) -> list[OutboxCursor]:
    return [describe(row) for row in db.all(name, params)]


def describe(row: Row) -> OutboxCursor:
    (
        session_id,
        tenant,
        agent,
        name,
        url,
        secret,
        events,
        position,
        told,
        held,
        due_at,
        tries,
        error,
    ) = row
    return OutboxCursor(
        session_id=session_id,
        tenant=tenant,
        agent=agent,
        name=name,
        url=url,
        secret=secret,
        events=names_of(events),
        position=position,
        told=told,
        held=held,
        due_at=due_at,
        tries=tries,
        error=error,
    )


def next_due_at(db: Database) -> int | None:
    row = db.one("next_due_at")
    return row[0] if row else None


def dead_letters(db: Database, filters: Params) -> list[DeadLetter]:
    of_one = filters["session_id"] is not None
    rows = db.all("dead_letters_of_session" if of_one else "dead_letters", filters)
    return [
        DeadLetter(
            session_id=session_id,
            tenant=tenant,
            cursor_name=name,
            offset=offset,
            type=kind,
            error=error,
            at=at,
        )
        for session_id, tenant, name, offset, kind, error, at in rows
    ]
