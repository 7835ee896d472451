"""The topic `limit` in SQLite: which calls hold a permit, and which wait for one.

See `outlast.store.limit` for the promises.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from outlast.core.limit import Bound, pay, start_at
from outlast.store import Permit, PermitInfo, PermitRequest, Refused
from outlast.store.limit import LineInfo, end_of_names
from outlast.stores.sqlite.access import Access
from outlast.stores.sqlite.database import Database, to_json

LEASE_LOST = Refused("lease_lost")
GRANTED = Permit(granted=True)


class SqliteLimit:
    """See `outlast.store.LimitStore`."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def acquire(self, requests: Sequence[PermitRequest]) -> Sequence[Permit | Refused]:
        return await self._access.write_all(write_requests, requests)

    async def resize(self, name: str, concurrency: int) -> int:
        (waiting,) = await self._access.write(partial(resize, name=name, concurrency=concurrency))
        return int(waiting)

    async def skip_stale(self, timeout: int, line: str = "") -> int:
        # Asked every few seconds by every worker: only one that finds something takes the write
        # lock.
        if not await self._access.read(lambda db: find_overdue(db, timeout, line)):
            return 0
        (skipped,) = await self._access.write(partial(skip_stale, timeout=timeout, line=line))
        return int(skipped)

    async def permits(
        self, session_id: str | None = None, name: str | None = None, limit: int = 500
    ) -> Sequence[PermitInfo]:
        return await self._access.read(lambda db: listing(db, session_id, name, limit))

    async def lines(self, start: str) -> Sequence[LineInfo]:
        names = {"start": start, "behind": end_of_names(start)}
        rows = await self._access.read(lambda db: db.all("lines", names))
        return [
            LineInfo(name=name, held=held, waiting=waiting, oldest_at=oldest_at)
            for name, held, waiting, oldest_at in rows
        ]


def write_requests(db: Database, requests: Sequence[PermitRequest]) -> list[Permit | Refused]:
    return [acquire(db, request) for request in requests]


def acquire(db: Database, request: PermitRequest) -> Permit | Refused:
    """Let a call begin under all its limits, or queue it at the first that has no place.

    Permits that it had under other limits are not its own: they belong to an earlier request, whose
    answer was lost.
    """
    row = db.one(
        "owned_lane",
        {
            "session_id": request.session_id,
            "lane": request.lane,
            "worker": request.worker,
            "fence": request.fence,
        },
    )
    if row is None:
        return LEASE_LOST
    names = to_json([bound.name for bound in request.bounds])
    stale = {"lid": row[0], "call_id": request.call_id, "names": names}
    wake_those_with_a_place(db, (name for (name,) in db.all("drop_stale_permits", stale)))
    for bound in request.bounds:
        if waits := find_obstacle(db, bound, row[0], request):
            return waits
    return GRANTED


def find_obstacle(db: Database, bound: Bound, lid: int, request: PermitRequest) -> Permit | None:
    """Take a permit under one limit, or say why there is none now."""
    now = db.clock.now()
    asked = {
        "name": bound.name,
        "lid": lid,
        "call_id": request.call_id,
        "most": bound.concurrency,
        "now": now,
        "ahead": request.ahead,
    }
    row = db.one("ask_for_permit", asked)
    assert row is not None
    pid, is_held = row
    if is_held:
        return None
    places = db.one("places", {"name": bound.name})
    assert places is not None
    running, waiting, paid_until = places
    if bound.concurrency and running >= bound.concurrency:
        return Permit(granted=False)
    ahead = ahead_of(db, bound.name, pid) if waiting > 1 else 0
    # There is a free place, but those ahead of this call have a right to it, though they have not
    # asked yet.
    if bound.concurrency and running + ahead >= bound.concurrency:
        return Permit(granted=False)
    if (at := start_at(bound, paid_until, ahead, now)) > now:
        # Noted, so that a call that is never asked for again is skipped after a while.
        db.run("expect_permit", {"pid": pid, "at": at})
        return Permit(granted=False, again_at=at)
    if bound.rate:
        paid = pay(bound, paid_until, now)
        db.run("pay_rate", {"name": bound.name, "paid_until": paid})
    # Without others in the line there is no turn to note.
    if waiting > 1:
        db.run("note_turn", {"name": bound.name, "lid": lid})
    db.run("grant_permit" if bound.concurrency else "drop_permit", {"pid": pid})
    return None


def ahead_of(db: Database, name: str, pid: int) -> int:
    rows = db.all("in_line", {"name": name, "pid": pid})
    return next(int(ahead) for found, _, _, ahead in rows if found == pid)


def with_a_place(db: Database, name: str) -> list[tuple[int, int, str]]:
    """Return calls that could begin under a limit now, with their lanes and sessions."""
    rows = db.all("in_line", {"name": name, "pid": None})
    return [(pid, lid, session_id) for pid, lid, session_id, _ in rows]


def free_permits(db: Database, lid: int, calls: Sequence[str]) -> None:
    """Take back the calls' permits and places, and wake the lanes that get a place by that."""
    freed = db.all("free_permits", {"lid": lid, "calls": to_json(calls)})
    wake_those_with_a_place(db, (name for (name,) in freed))


def wake_those_with_a_place(db: Database, limits: Iterable[str]) -> None:
    """Make the lanes ready whose calls have a place under one of the limits now."""
    for name in dict.fromkeys(limits):
        for pid, lid, session_id in with_a_place(db, name):
            db.run("expect_permit", {"pid": pid, "at": db.clock.now()})
            wake(db, lid, session_id)


def resize(db: Database, name: str, concurrency: int) -> int:
    """Change how many calls may hold a permit at once, and wake those that hold or can have one."""
    db.run("resize_limit", {"name": name, "most": concurrency})
    for lid, session_id in db.all("permit_holders", {"name": name}):
        wake(db, lid, session_id)
    wake_those_with_a_place(db, [name])
    places = db.one("places", {"name": name})
    assert places is not None
    return int(places[1])


def wake(db: Database, lid: int, session_id: str) -> None:
    db.run("wake_lane", {"lid": lid, "now": db.clock.now()})
    db.tell(session_id, arrived=True)


def has_permit_to_come(db: Database, lid: int, frees: Sequence[str]) -> bool:
    """Whether a call of the lane that waits has a place under its limit now, or was passed by.

    Not one of those that are freed with the same commit.
    """
    return any(
        absent or any(waiting == pid for waiting, _, _ in with_a_place(db, name))
        for pid, name, absent in db.all("waited_for", {"lid": lid, "frees": to_json(frees)})
    )


def find_overdue(db: Database, timeout: int, line: str) -> list[tuple[int, str, int, str]]:
    """Return calls that have not come for their places, with their limits, lanes and sessions."""
    before = db.clock.now() - timeout
    return db.all("overdue_permits", {"before": before, "line": line, "behind": end_of_names(line)})


def skip_stale(db: Database, timeout: int, line: str) -> int:
    """Take calls that do not ask for their permits out of the queue, and wake those behind them."""
    overdue = find_overdue(db, timeout, line)
    for pid, _, lid, session_id in overdue:
        db.run("skip_permit", {"pid": pid})
        wake(db, lid, session_id)
    wake_those_with_a_place(db, (name for _, name, _, _ in overdue))
    return len(overdue)


def listing(db: Database, session_id: str | None, name: str | None, limit: int) -> list[PermitInfo]:
    rows = db.all("permits", {"session_id": session_id, "name": name, "limit": limit})
    return [
        PermitInfo(
            name=limited,
            session_id=session,
            lane=lane,
            call_id=call_id,
            held=bool(is_held),
            ahead=ahead,
        )
        for limited, session, lane, call_id, is_held, ahead in rows
    ]
