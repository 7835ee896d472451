"""Retries and cancels of many turns at once: `app.bulk`.

Owns the walk over the lanes, in pages, and what makes it safe to repeat. Which lanes have failed or
are open is what the store lists; a lane's owner decides again when it takes the retry or the cancel
(`core/decide.py`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from msgspec import Struct

from outlast.core import record as r
from outlast.core.lane import OpenStatus, Wait
from outlast.core.message import check_text
from outlast.core.name import check_who
from outlast.errors import QueueFull, SessionOver, UnknownSession
from outlast.session.inbox import Inbox
from outlast.session.listing import check_failed, check_limit, check_open, check_place, check_sought
from outlast.session.retry import add_retry, can_retry
from outlast.store import LaneInfo, OpenLane, Store

PAGE = 100
"""Lanes that are looked at and changed together: their arrivals share transactions."""

CANCEL = "1" * 32
"""The fingerprint of all cancels in bulk: the same turn or message is the same cancel."""

LanePlace = tuple[str, str]
"""A session and a lane of it."""


class BulkRetry(Struct, frozen=True, omit_defaults=True):
    """How many failed turns are tried again, and how many were left as they are.

    Left are turns after which their lane has taken another message or has one queued, and turns of
    sessions that are over. If a `limit` was reached, `after` is where to go on.
    """

    retried: int
    left: int
    after: LanePlace | None = None


class BulkCancel(Struct, frozen=True, omit_defaults=True):
    """How many turns and messages are stopped, and how many were left.

    Left are those that were stopped before, or have ended meanwhile. If a `limit` was reached,
    `after` is where to go on.
    """

    cancelled: int
    left: int
    after: LanePlace | None = None


class PlacedLane(Protocol):
    @property
    def session_id(self) -> str: ...

    @property
    def lane(self) -> str: ...


Found = TypeVar("Found", bound=PlacedLane)
ReadPage = Callable[[LanePlace | None, int], Awaitable[Sequence[Found]]]
"""Returns the lanes behind a place, so many at most."""


class BulkControl:
    """Acts on many sessions of the app's store at once: `app.bulk`."""

    def __init__(self, store: Store, inbox: Inbox) -> None:
        self._store = store
        self._inbox = inbox

    async def retry(
        self,
        *,
        code: str | None = None,
        agent: str | None = None,
        queue: str | None = None,
        since: datetime | timedelta | None = None,
        tenant: str | None = None,
        principal: str = "",
        dry_run: bool = False,
        limit: int | None = None,
        after: LanePlace | None = None,
    ) -> BulkRetry:
        """Try failed turns again from where they failed: all, or those chosen by the parameters.

        Each failed turn is retried once, however often and in however many processes this is
        called. With a `queue`, only turns of sessions that stand in it; those that are no longer
        the last of their lane are not counted then. With `dry_run` it only counts. With a `limit`
        it looks at so many turns, and `after` in its result is where the next call goes on.
        """
        failed = check_failed(True, code, since, queue, self._store.clock)
        tenant, agent = check_sought("tenant", tenant), check_sought("agent", agent)
        principal = check_who("name of who acts", principal)

        async def read(after: LanePlace | None, limit: int) -> Sequence[LaneInfo]:
            return await self._store.listing.lanes(
                failed=failed, tenant=tenant, agent=agent, after=after, limit=limit
            )

        async def act(lane: LaneInfo) -> bool:
            return can_retry(lane) and (dry_run or await self._retry(lane, principal))

        done, left, place = await on_all(read, act, limit, after)
        if after is None and failed and queue is None:  # counted with the first page
            left += await self._store.listing.past_failures(failed, tenant=tenant, agent=agent)
        return BulkRetry(done, left, place)

    async def _retry(self, lane: LaneInfo, principal: str) -> bool:
        """Queue a retry, and say whether it is the first of its turn."""
        try:
            receipt = await add_retry(self._store, self._inbox, lane, principal)
        except (SessionOver, UnknownSession, QueueFull):
            return False
        return not receipt.duplicate

    async def cancel(
        self,
        *,
        agent: str | None = None,
        status: OpenStatus | None = None,
        waiting: Wait | None = None,
        since: datetime | timedelta | None = None,
        tenant: str | None = None,
        reason: str = "",
        principal: str = "",
        dry_run: bool = False,
        limit: int | None = None,
        after: LanePlace | None = None,
    ) -> BulkCancel:
        """Stop the open turn of many lanes, or the next message of lanes without an open turn.

        The parameters choose lanes: of an agent, with a status, `waiting` for something, of
        sessions that were started `since` an instant; without any, all. Other queued messages stay.
        Each turn and message is stopped once, however often this is called. With `dry_run` it only
        counts. With a `limit` it looks at so many lanes, and `after` in its result is where the
        next call goes on.
        """
        sought = check_open(status, waiting, since, self._store.clock)
        tenant, agent = check_sought("tenant", tenant), check_sought("agent", agent)
        reason = check_text("a reason", reason)
        principal = check_who("name of who acts", principal)

        async def read(after: LanePlace | None, limit: int) -> Sequence[OpenLane]:
            return await self._store.listing.open_lanes(
                sought, tenant=tenant, agent=agent, after=after, limit=limit
            )

        async def act(lane: OpenLane) -> bool:
            is_open = bool(lane.turn or lane.message)
            return is_open and (dry_run or await self._cancel(lane, reason, principal))

        return BulkCancel(*await on_all(read, act, limit, after))

    async def _cancel(self, lane: OpenLane, reason: str, principal: str) -> bool:
        """Queue a cancel, and say whether it is the first of its turn or message."""
        cancel = r.CancelRequested(
            delivery_id="",
            reason=reason,
            turn=lane.turn,
            message=lane.message,
            principal=principal,
        )
        try:
            receipt = await self._inbox.add(
                lane.session_id,
                lane.tenant,
                lane.lane,
                cancel,
                scope=f"cancel:{lane.session_id}",
                # Named after what is to stop: asked twice, it is the same cancel, and no later turn
                # is hit by it.
                dispatch_id=lane.turn or lane.message,
                fingerprint=CANCEL,
            )
        except (SessionOver, UnknownSession):
            return False
        return not receipt.duplicate


async def on_all(
    read: ReadPage[Found],
    act: Callable[[Found], Awaitable[bool]],
    limit: int | None,
    after: LanePlace | None,
) -> tuple[int, int, LanePlace | None]:
    """Act on lanes until there are no more, or on `limit` of them.

    Return on how many it was done, how many were left, and where to go on.
    """
    most = None if limit is None else check_limit(limit)
    after = check_place(after)
    done = left = 0
    async for lanes in pages(read, most, after):
        # At once: what arrives together is written together.
        results = await asyncio.gather(*(act(lane) for lane in lanes))
        done += results.count(True)
        left += results.count(False)
        # Noted also for lanes that were left: they are not looked at again.
        after = lanes[-1].session_id, lanes[-1].lane
    return done, left, after if done + left == most else None


async def pages(
    read: ReadPage[Found], most: int | None, after: LanePlace | None
) -> AsyncIterator[Sequence[Found]]:
    """Page through lanes; one of a session that is started meanwhile is not met."""
    seen = 0
    while most is None or seen < most:
        size = PAGE if most is None else min(PAGE, most - seen)
        # By the place of the last, not by a number: lanes that are changed meanwhile fall out of
        # the list.
        lanes = await read(after, size)
        if lanes:
            yield lanes
            seen += len(lanes)
            after = lanes[-1].session_id, lanes[-1].lane
        if len(lanes) < size:
            return
