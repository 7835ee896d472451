"""Retries of many failed turns at once: `app.bulk`.

Owns the walk over the failed lanes and what makes it safe to repeat. Whether a turn has failed is
what the store lists; a lane's owner decides again when it takes the retry (`core/decide.py`).
"""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

from msgspec import Struct

from outlast.core import record as r
from outlast.core.name import check_who
from outlast.errors import QueueFull, SessionOver, UnknownSession
from outlast.session.inbox import Inbox
from outlast.session.listing import check_failed, check_sought
from outlast.store import FailureFilter, LaneInfo, Store

PAGE = 200


class BulkRetry(Struct, frozen=True):
    """How many failed turns are tried again, and how many were left.

    Left are turns that are no longer the last of their lane, or for which something is queued
    already, and those of sessions that are over.
    """

    retried: int
    left: int


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
        since: datetime | timedelta | None = None,
        tenant: str | None = None,
        principal: str = "",
        dry_run: bool = False,
    ) -> BulkRetry:
        """Try failed turns again from where they failed: all, or those that failed so.

        Each failed turn is retried once, however often and in how many processes this is called.
        With `dry_run` it only counts.
        """
        failed = check_failed(True, code, since, self._store.clock)
        assert failed is not None
        principal = check_who("name of who acts", principal)
        retried = left = 0
        sought = check_sought("tenant", tenant), check_sought("agent", agent)
        async for lane in self._failed_lanes(failed, *sought):
            if can_retry(lane) and (dry_run or await self._retry(lane, principal)):
                retried += 1
            else:
                left += 1
        return BulkRetry(retried, left)

    async def _failed_lanes(
        self, failed: FailureFilter, tenant: str | None, agent: str | None
    ) -> AsyncIterator[LaneInfo]:
        """Page through the lanes; one that fails meanwhile in a newer session is not met."""
        after: tuple[str, str] | None = None
        while page := await self._store.listing.lanes(
            failed=failed, tenant=tenant, agent=agent, after=after, limit=PAGE
        ):
            for lane in page:
                yield lane
            after = page[-1].session_id, page[-1].lane

    async def _retry(self, lane: LaneInfo, principal: str) -> bool:
        """Queue a retry, and say whether it is the first of its turn."""
        assert lane.failure is not None
        try:
            receipt = await self._inbox.add(
                lane.session_id,
                lane.tenant,
                lane.lane,
                r.DeliveryQueued(delivery_id="", kind="retry", principal=principal),
                scope=f"retry:{lane.session_id}",
                # Named after the turn: of two that ask at once, one adds the retry.
                dispatch_id=lane.failure.turn,
                # Who asks makes no difference to that.
                fingerprint=RETRY,
            )
        except (SessionOver, UnknownSession, QueueFull):
            return False
        return not receipt.duplicate


RETRY = "0" * 32
"""The fingerprint of all retries: the same turn is the same retry."""


def can_retry(lane: LaneInfo) -> bool:
    """Say whether a lane rests after a failed turn, and nothing is queued behind it."""
    return lane.failure is not None and bool(lane.failure.turn) and lane.status == "failed"
