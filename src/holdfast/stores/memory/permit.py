"""Who may begin under a limit, and who waits for a place."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.limit import Bound, pay, start_at
from holdfast.store import Permit, PermitInfo, Refused, Wish
from holdfast.stores.memory.table import LaneRow, PermitRow, Tables

LEASE_LOST = Refused("lease_lost")
GRANTED = Permit(granted=True)


def acquire(tables: Tables, wish: Wish, now: int) -> Permit | Refused:
    """Let a call begin under all its limits, or queue it at the first that has no place."""
    session = tables.sessions.get(wish.session_id)
    lane = session.lanes.get(wish.lane) if session else None
    if lane is None or (lane.worker, lane.fence) != (wish.worker, wish.fence):
        return LEASE_LOST
    for bound in wish.bounds:
        row = find(tables, bound, wish)
        if row.held:
            continue
        ahead = place_of(tables, row)
        if bound.concurrency and held(tables, bound.name) + ahead >= bound.concurrency:
            return Permit(granted=False)
        paid_until = tables.paid_until.get(bound.name, 0)
        if (at := start_at(bound, paid_until, ahead, now)) > now:
            return Permit(granted=False, again_at=at)
        if bound.rate:
            tables.paid_until[bound.name] = pay(bound, paid_until, now)
        row.held = True
        if not bound.concurrency:
            tables.permits.remove(row)
    return GRANTED


def find(tables: Tables, bound: Bound, wish: Wish) -> PermitRow:
    """Return the call's row under a limit; a new one is at the end of the queue."""
    key = (bound.name, wish.session_id, wish.call_id)
    for row in tables.permits:
        if (row.name, row.session_id, row.call_id) == key:
            row.most = bound.concurrency
            return row
    row = PermitRow(bound.name, wish.session_id, wish.lane, wish.call_id, bound.concurrency)
    tables.permits.append(row)
    return row


def held(tables: Tables, name: str) -> int:
    return sum(row.held for row in tables.permits if row.name == name)


def waiting(tables: Tables, name: str) -> list[PermitRow]:
    return [row for row in tables.permits if row.name == name and not row.held]


def place_of(tables: Tables, row: PermitRow) -> int:
    return waiting(tables, row.name).index(row)


def has_place(tables: Tables, row: PermitRow) -> bool:
    """Whether a call that waits for others to end could begin now."""
    places = row.most - held(tables, row.name)
    return row.most > 0 and place_of(tables, row) < places


def permits_of(tables: Tables, session_id: str, lane: str) -> Iterator[PermitRow]:
    for row in tables.permits:
        if (row.session_id, row.lane) == (session_id, lane):
            yield row


def free(tables: Tables, session_id: str, lane: str, calls: tuple[str, ...], now: int) -> list[str]:
    """Take back the calls' permits and places, and return the sessions that may go on by that."""
    gone = [row for row in permits_of(tables, session_id, lane) if row.call_id in calls]
    tables.permits = [row for row in tables.permits if row not in gone]
    woken = []
    for name in dict.fromkeys(row.name for row in gone):
        for row in waiting(tables, name):
            if has_place(tables, row):
                wake(tables.sessions[row.session_id].lanes[row.lane], now)
                woken.append(row.session_id)
    return woken


def wake(lane: LaneRow, now: int) -> None:
    lane.ready_at = now if lane.ready_at is None else min(lane.ready_at, now)


def listing(
    tables: Tables, session_id: str | None, name: str | None, limit: int
) -> list[PermitInfo]:
    rows = [
        row
        for row in tables.permits
        if session_id in (None, row.session_id) and name in (None, row.name)
    ]
    rows.sort(key=lambda row: (row.name, not row.held))
    return [
        PermitInfo(
            name=row.name,
            session_id=row.session_id,
            lane=row.lane,
            call_id=row.call_id,
            held=row.held,
            ahead=0 if row.held else place_of(tables, row),
        )
        for row in rows[:limit]
    ]
