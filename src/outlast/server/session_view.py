"""A session as one answer: how it stands, what each lane waits for, what it has cost.

Owns what of it a principal may see, and the page of lanes that is told. Made of the store's lists
and the end of the log; the shape of the answer is `model/session.py`.
"""

from collections.abc import Mapping, Sequence

from outlast.core import record as r
from outlast.core.index import PEOPLE, RELAYED
from outlast.core.instant import date_or_none
from outlast.core.lane import Lane
from outlast.core.name import KEYED
from outlast.log.explain import read_state
from outlast.log.reader import EntriesBefore
from outlast.server.error import invalid_cursor
from outlast.server.model.request import request_out
from outlast.server.model.session import (
    LaneWait,
    SessionOut,
    item_fields,
    usage_out,
    waiting_out,
)
from outlast.server.model.shape import rfc3339_or_none
from outlast.server.principal import SEND, Principal
from outlast.session import request_of
from outlast.session.waiting import read_waiting
from outlast.store import LaneInfo, SessionInfo, Store

RESTS = ("idle", "waiting", "sleeping", "failed")
DEEPEST = 100
MOST_LOOKED_AT = 500
"""How far back in the log a wait's beginning is looked for."""


async def portray(
    store: Store, info: SessionInfo, caller: Principal, lanes_after: str | None, limit: int
) -> SessionOut:
    """Return a session as the principal may see it, with so many of its lanes.

    How a lane stands is read lane by lane, so a session of many is told page by page.
    """
    lanes, next_lane = page_of(info.lanes, lanes_after, limit)
    resting = [n for n in lanes if n.status in RESTS and not info.over]
    states = {n.lane: await read_state(store, info.session_id, n.lane) for n in lanes}
    since = await began(store, info, [n.lane for n in resting])
    deadlines = [state.deadline for state in states.values() if state.deadline]
    requests = await store.listing.requests(info.session_id, kinds=(*PEOPLE, RELAYED))
    return SessionOut(
        **item_fields(info, lanes),
        next_lane=next_lane,
        continuation_token=token_of(info) if caller.may(SEND) else None,
        waits=[wait_of(n, states[n.lane], since) for n in resting],
        waiting_for=waiting_out(await read_waiting(store, info)),
        requests=[request_out(request_of(request), info.agent) for request in requests],
        usage=usage_out(await store.usage.tree(info.session_id)),
        lineage=await lineage_of(store, info),
        deadline=rfc3339_or_none(date_or_none(min(deadlines, default=None))),
    )


def page_of(
    lanes: Sequence[LaneInfo], after: str | None, limit: int
) -> tuple[Sequence[LaneInfo], str | None]:
    """Return the lanes behind one, in the order in which they were made, and where that ends."""
    start = 0
    if after is not None:
        start = next((n for n, each in enumerate(lanes, 1) if each.lane == after), 0)
        if not start:  # lanes stay: the name was never given by a page of this session
            raise invalid_cursor("lanes_after")
    page = lanes[start : start + limit]
    return page, page[-1].lane if page and start + limit < len(lanes) else None


async def lineage_of(store: Store, info: SessionInfo) -> list[str]:
    """Return the sessions that a session comes from, nearest first, as far as they exist."""
    found: list[str] = []
    parent: SessionInfo | None = info
    while parent and parent.parent and len(found) < DEEPEST:
        found.append(parent.parent)
        parent = await store.listing.session(parent.parent)
    return found


def token_of(info: SessionInfo) -> str | None:
    """Return a token that a message can be sent to; an agent's own is no such."""
    return info.token if info.token and not info.token.startswith(KEYED) else None


def wait_of(info: LaneInfo, state: Lane, since: Mapping[str, int]) -> LaneWait:
    return LaneWait(
        lane=info.lane,
        status=info.status,
        wait=list(state.waiting) or ["message"],
        since=rfc3339_or_none(date_or_none(since.get(info.lane))),
        until=rfc3339_or_none(info.ready_at if info.status not in ("idle", "failed") else None),
    )


async def began(store: Store, info: SessionInfo, lanes: list[str]) -> dict[str, int]:
    """Return since when lanes wait, as far as the end of the log tells."""
    found: dict[str, int] = {}
    left = MOST_LOOKED_AT
    async for entry in EntriesBefore(store.log, info.session_id, info.end + 1):
        if entry.lane in lanes and isinstance(entry.record, r.SessionWaiting):
            found.setdefault(entry.lane, entry.record.since)
        left -= 1
        if len(found) == len(lanes) or not left:
            break
    return found
