"""Failed turns of sessions that stand in a queue: its dead letters, found where they failed.

They are no list of their own, but a filter of what has failed. A session's place in a queue is in
its log, so each failed session is looked at, and those of a tenant that has very many take a while.
"""

from typing import Any

from outlast.core.name import MAIN
from outlast.core.queue import check_queue
from outlast.log.explain.evidence import read_state
from outlast.store import FailureFilter, SessionInfo, Store

PAGE = 200


def check_sought_queue(queue: str | None) -> str | None:
    """Return the queue whose failures are looked for, if one is."""
    return None if queue is None else check_queue(queue)


async def stands_in(store: Store, session_id: str, queue: str | None) -> bool:
    """Say whether a session stands in a queue; with None it need not stand in any."""
    if queue is None:
        return True
    place = (await read_state(store, session_id, MAIN)).place
    return place is not None and place.queue == queue


async def failed_in_queue(
    store: Store,
    queue: str,
    failed: FailureFilter,
    before: str | None,
    limit: int,
    **sought: Any,
) -> list[SessionInfo]:
    """Return the newest failed sessions in a queue, of all that are sought."""
    found: list[SessionInfo] = []
    while page := await store.listing.sessions(failed=failed, before=before, limit=PAGE, **sought):
        for info in page:
            if await stands_in(store, info.session_id, queue):
                found.append(info)
                if len(found) == limit:
                    return found
        before = page[-1].session_id
    return found
