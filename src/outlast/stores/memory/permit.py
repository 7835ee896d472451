"""Who may begin under a limit, and who waits for a place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from outlast.core.limit import Bound, pay, start_at
from outlast.store import Permit, PermitInfo, PermitRequest, Refused
from outlast.stores.memory.table import LaneRow, PermitRow, Tables

LEASE_LOST = Refused("lease_lost")
GRANTED = Permit(granted=True)


def acquire(tables: Tables, wish: PermitRequest, now: int) -> tuple[Permit | Refused, list[str]]:
    """Let a call begin as far as its limits allow; also return the sessions that may go on by that.

    What it had under other limits is another's: an answer that was lost asked for something else.
    """
    session = tables.sessions.get(wish.session_id)
    lane = session.lanes.get(wish.lane) if session else None
    if session is None or lane is None or (lane.worker, lane.fence) != (wish.worker, wish.fence):
        return LEASE_LOST, []
    names = {bound.name for bound in wish.bounds}
    mine = permits_of(tables, wish.session_id, wish.lane)
    stale = [row for row in mine if row.call_id == wish.call_id and row.name not in names]
    woken = take_back(tables, stale, now)
    return take(tables, session.tenant, wish, now), woken


def take(tables: Tables, tenant: str, wish: PermitRequest, now: int) -> Permit:
    """Let a call begin under all its limits, or queue it at the first that has no place."""
    for bound in wish.bounds:
        row = find(tables, bound, wish)
        if row.held:
            continue
        ahead = place_of(tables, row)
        if bound.concurrency and held(tables, bound.name) + ahead >= bound.concurrency:
            return Permit(granted=False)
        paid_until = tables.paid_until.get(bound.name, 0)
        if (at := start_at(bound, paid_until, ahead, now)) > now:
            row.expected_at = at
            return Permit(granted=False, again_at=at)
        if bound.rate:
            tables.paid_until[bound.name] = pay(bound, paid_until, now)
        row.held = True
        tables.last_tenant[bound.name] = tenant
        if not bound.concurrency:
            tables.permits.remove(row)
    return GRANTED


def find(tables: Tables, bound: Bound, wish: PermitRequest) -> PermitRow:
    """Return the call's row under a limit, and have it in line; a new one is last."""
    key = (bound.name, wish.session_id, wish.call_id)
    for row in tables.permits:
        if (row.name, row.session_id, row.call_id) == key:
            row.most, row.expected_at, row.absent = bound.concurrency, None, False
            return row
    row = PermitRow(bound.name, wish.session_id, wish.lane, wish.call_id, bound.concurrency)
    tables.permits.append(row)
    return row


def held(tables: Tables, name: str) -> int:
    return sum(row.held for row in tables.permits if row.name == name)


def line(tables: Tables, name: str) -> list[PermitRow]:
    """Return who is in line under a limit: first whose tenant would have the fewest with it.

    Of those it is who comes by name after the tenant whose call began last.
    """
    rows = [row for row in tables.permits if row.name == name]
    shares = Counter(tables.sessions[row.session_id].tenant for row in rows if row.held)
    last = tables.last_tenant.get(name, "")
    turns: dict[tuple[int, bool, str], PermitRow] = {}
    for row in rows:
        if not row.held and not row.absent:
            tenant = tables.sessions[row.session_id].tenant
            shares[tenant] += 1
            turns[shares[tenant], tenant <= last, tenant] = row
    return [turns[turn] for turn in sorted(turns)]


def place_of(tables: Tables, row: PermitRow) -> int:
    return line(tables, row.name).index(row)


def with_a_place(tables: Tables, name: str) -> list[PermitRow]:
    """Return calls that wait for others to end and could begin now."""
    running = held(tables, name)
    return [row for place, row in enumerate(line(tables, name)) if running + place < row.most]


def should_ask(tables: Tables, row: PermitRow) -> bool:
    """Whether a call that waits has a place now, or was passed by."""
    return row.absent or row in with_a_place(tables, row.name)


def permits_of(tables: Tables, session_id: str, lane: str) -> Iterator[PermitRow]:
    for row in tables.permits:
        if (row.session_id, row.lane) == (session_id, lane):
            yield row


def free(tables: Tables, session_id: str, lane: str, calls: tuple[str, ...], now: int) -> list[str]:
    """Take back the calls' permits and places, and return the sessions that may go on by that."""
    gone = [row for row in permits_of(tables, session_id, lane) if row.call_id in calls]
    return take_back(tables, gone, now)


def take_back(tables: Tables, gone: Sequence[PermitRow], now: int) -> list[str]:
    tables.permits = [row for row in tables.permits if row not in gone]
    return call_up(tables, dict.fromkeys(row.name for row in gone), now)


def call_up(tables: Tables, names: Iterable[str], now: int) -> list[str]:
    """Wake who has a place under one of the limits, and return their sessions."""
    called = [row for name in names for row in with_a_place(tables, name)]
    for row in called:
        row.expected_at = row.expected_at or now
        wake(tables.sessions[row.session_id].lanes[row.lane], now)
    return [row.session_id for row in called]


def pass_by(tables: Tables, before: int, now: int) -> tuple[int, list[str]]:
    """Put those out of line who were expected before; return how many, and who was woken."""
    missed = [row for row in tables.permits if row.expected_at and row.expected_at < before]
    for row in missed:
        row.expected_at, row.absent = None, True
        wake(tables.sessions[row.session_id].lanes[row.lane], now)
    woken = call_up(tables, dict.fromkeys(row.name for row in missed), now)
    return len(missed), [*(row.session_id for row in missed), *woken]


def wake(lane: LaneRow, now: int) -> None:
    lane.ready_at = now if lane.ready_at is None else min(lane.ready_at, now)


def listing(
    tables: Tables, session_id: str | None, name: str | None, limit: int
) -> list[PermitInfo]:
    names = sorted({row.name for row in tables.permits if name in (None, row.name)})
    found = [info for each in names for info in under(tables, each)]
    return [info for info in found if session_id in (None, info.session_id)][:limit]


def under(tables: Tables, name: str) -> Iterator[PermitInfo]:
    """Give who holds a permit under a limit, who is in line, and who was passed by."""
    rows = [row for row in tables.permits if row.name == name]
    holding, absent = [r for r in rows if r.held], [r for r in rows if r.absent]
    waiting = [*line(tables, name), *absent]
    for row, ahead in [*((row, 0) for row in holding), *zip(waiting, count(), strict=False)]:
        yield PermitInfo(
            name=name,
            session_id=row.session_id,
            lane=row.lane,
            call_id=row.call_id,
            held=row.held,
            ahead=ahead,
        )
