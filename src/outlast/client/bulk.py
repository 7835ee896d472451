"""Retries and cancels of many turns on a server: `client.bulk`.

The server does a page per request; this asks until there are no more.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from outlast.client.connection import ServerConnection
from outlast.client.decode import decode
from outlast.client.encode import some
from outlast.core.instant import rfc3339
from outlast.core.lane import OpenStatus, Wait
from outlast.session.bulk import BulkCancel, BulkRetry
from outlast.session.listing import check_open, check_since
from outlast.store.clock import LocalStoreClock


class WireBulk(Struct):
    """A page of retries or of cancels."""

    left: int
    retried: int = 0
    cancelled: int = 0
    next_cursor: str | None = None


class RemoteBulk:
    """Acts on many sessions of a server at once: `client.bulk`.

    A page whose answer was lost is asked for again: what it did the first time counts as left.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def retry(
        self,
        *,
        code: str | None = None,
        agent: str | None = None,
        queue: str | None = None,
        since: datetime | timedelta | None = None,
        dry_run: bool = False,
    ) -> BulkRetry:
        """Try failed turns again from where they failed: all, or those that failed so.

        Each failed turn is retried once, however often this is called. With `dry_run` it only
        counts.
        """
        chosen = some(code=code, agent=agent, queue=queue, since=self._instant(since))
        done, left = await self._ask_all("/bulk/retry", {**chosen, "dry_run": dry_run})
        return BulkRetry(done, left)

    async def cancel(
        self,
        *,
        agent: str | None = None,
        status: OpenStatus | None = None,
        waiting: Wait | None = None,
        since: datetime | timedelta | None = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> BulkCancel:
        """Stop what is open in many lanes: the open turn of each, or else its next message.

        All, or those of an agent, with a status, that are `waiting` for something, of sessions that
        were started `since` then. What else is queued stays. Each turn and message is asked to stop
        once, however often this is called. With `dry_run` it only counts.
        """
        check_open(status, waiting, None, LocalStoreClock(self._connection.clock))
        chosen = some(agent=agent, status=status, waiting=waiting, since=self._instant(since))
        rest = {"all": not chosen, "reason": reason, "dry_run": dry_run}
        done, left = await self._ask_all("/bulk/cancel", {**chosen, **rest})
        return BulkCancel(done, left)

    def _instant(self, since: datetime | timedelta | None) -> str | None:
        """Return an instant; a timedelta is so long ago by the clock here."""
        found = check_since(since, LocalStoreClock(self._connection.clock))
        return rfc3339(found) if found else None

    async def _ask_all(self, path: str, body: Mapping[str, Any]) -> tuple[int, int]:
        """Ask for one page after the other; return for how many it was done and how many left."""
        done = left = 0
        cursor: dict[str, str] = {}
        while True:
            raw = await self._connection.call("POST", path, body={**body, **cursor})
            page = decode(raw, WireBulk)
            done += page.retried + page.cancelled
            left += page.left
            if page.next_cursor is None:
                return done, left
            cursor = {"cursor": page.next_cursor}
