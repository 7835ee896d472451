"""Checks the filters of listings: statuses, kinds of requests, page size and cursor.

Owns the checks of filters and the listing of workers and lanes. Knows no database: the store
answers, see `store/listing.py`.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, get_args

from outlast.core.event import shown
from outlast.core.index import PEOPLE
from outlast.core.instant import date_of, milliseconds, since_epoch
from outlast.core.lane import OpenStatus, Status, Wait
from outlast.core.name import check_who, is_id
from outlast.core.queue import check_queue
from outlast.errors import InvalidCursor, InvalidInput, UnknownWorker
from outlast.store import FailureFilter, LaneInfo, OpenFilter, Store, StoreClock, WorkerInfo

STATUSES: tuple[str, ...] = get_args(Status)
OPEN_STATUSES: tuple[str, ...] = get_args(OpenStatus)
WAITS: tuple[str, ...] = get_args(Wait)
MOST = 1_000_000
"""How many can be listed at once."""


class WorkerControl:
    """The workers on the app's store, in whichever process they run: `app.workers`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self) -> Sequence[WorkerInfo]:
        """List the living workers of this store, oldest first."""
        return await self._store.work.workers()

    async def lanes(
        self,
        *,
        session_id: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        status: Status | None = None,
        worker: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 50,
    ) -> Sequence[LaneInfo]:
        """List lanes, those of the newest session first; `after` is a session and a lane of it."""
        return await self._store.listing.lanes(
            session_id=check_sought("session", session_id),
            tenant=check_sought("tenant", tenant),
            agent=check_sought("agent", agent),
            status=check_status(status),
            worker=check_sought("worker", worker),
            after=check_place(after),
            limit=check_limit(limit),
        )

    async def drain(self, worker: str) -> None:
        """Ask a worker to hand back its lanes and stop."""
        is_known = await self._store.work.drain(worker) if is_id(worker) else False
        if not is_known:
            raise UnknownWorker(f"no living worker is called {worker}", worker=worker)


def check_kinds(kinds: Any) -> Sequence[str]:
    """Return the kinds of questions that are wanted, by default all."""
    if kinds is None:
        return PEOPLE
    is_several = isinstance(kinds, Iterable) and not isinstance(kinds, str)
    wanted = list(kinds) if is_several else [kinds]
    if not is_several or any(kind not in PEOPLE for kind in wanted):
        raise InvalidInput(f"kinds are a list of some of {', '.join(PEOPLE)}, not {kinds!r}")
    return tuple(kind for kind in PEOPLE if kind in wanted)


def check_limit(limit: Any) -> int:
    """Return how many are listed, if that many can be."""
    if not isinstance(limit, int) or not 1 <= limit <= MOST:
        raise InvalidInput(f"a limit is a whole number from 1 to {MOST:,}, not {limit!r}")
    return limit


def check_sought(what: str, value: Any) -> str | None:
    """Return what is looked for by its name, or that it does not matter."""
    return None if value is None else check_who(what, value)


def check_status(status: Any) -> str | None:
    """Return how what is looked for stands, or that it does not matter."""
    if status is not None and status not in STATUSES:
        raise InvalidInput(f"a status is one of {', '.join(STATUSES)}, not {status!r}")
    return None if status is None else str(status)


def check_failed(
    failed: bool, code: Any, since: Any, queue: Any, clock: StoreClock
) -> FailureFilter | None:
    """Return which failures are looked for; a code, an instant or a queue says that some are."""
    if not failed and code is None and since is None and queue is None:
        return None
    stands_in = None if queue is None else check_queue(queue)
    return FailureFilter(check_sought("code", code), check_since(since, clock), stands_in)


def check_since(since: Any, clock: StoreClock) -> datetime | None:
    """Return from which instant on is looked for; a timedelta is so long ago."""
    if since is None:
        return None
    if isinstance(since, timedelta):
        # By the earlier bound: rather one too many is found than one too few.
        return date_of(max(0, clock.earliest() - milliseconds(since)))
    if not isinstance(since, datetime):
        raise InvalidInput(f"since is a datetime with a time zone or a timedelta, not {since!r}")
    return date_of(max(0, since_epoch("since", since)))


def check_open(status: Any, waiting: Any, since: Any, clock: StoreClock) -> OpenFilter:
    """Return which open lanes are looked for."""
    if status is not None and status not in OPEN_STATUSES:
        raise InvalidInput(f"status has to be one of {', '.join(OPEN_STATUSES)}, not {status!r}")
    if waiting is not None and waiting not in WAITS:
        raise InvalidInput(f"waiting has to be one of {', '.join(WAITS)}, not {waiting!r}")
    return OpenFilter(status, waiting, check_since(since, clock))


def check_place(after: Any) -> tuple[str, str] | None:
    """Return the session and lane behind which a list goes on."""
    if after is None:
        return None
    if not isinstance(after, tuple | list) or len(after) != 2 or not all(map(is_id, after)):
        raise InvalidCursor(
            f"a cursor of a list is a session and one of its lanes, not {shown(after)}"
        )
    return after[0], after[1]


def check_cursor(name: str, given: Any) -> str | None:
    """Return the id behind which a list goes on; what the list ended with may be gone by now."""
    if given is None:
        return None
    if is_id(given):
        return str(given)
    raise unknown_cursor(name, given)


async def check_request_cursor(
    store: Store, tenant: str | None, given: Any, name: str = "cursor"
) -> str | None:
    """Return the request behind which a list goes on.

    Requests are listed in the order in which they were opened, which only their rows know: behind
    one that is not there, or another tenant's, the list would begin anew.
    """
    if given is None:
        return None
    known = await store.listing.request(given) if is_id(given) else None
    if known is None or tenant not in (None, known.tenant):
        raise unknown_cursor(name, given)
    return known.request_id


def unknown_cursor(name: str, given: Any) -> InvalidCursor:
    return InvalidCursor(
        f"`{name}` is the id with which the last page ended, not {shown(given)}", cursor=name
    )
