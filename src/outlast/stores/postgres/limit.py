"""The topic `limit` in PostgreSQL. See `outlast.store.limit` for the promises.

functions/permit.sql decides which calls may begin.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from outlast.store import Permit, PermitInfo, PermitRequest, Refused
from outlast.store.limit import LineInfo, end_of_names
from outlast.stores.postgres.access import PostgresAccess
from outlast.stores.postgres.pipeline import Row, Rows
from outlast.stores.postgres.statement import Query, Statement
from outlast.stores.postgres.writer import Hints

GRANTED = Permit(granted=True)

_decode = msgspec.json.Decoder(tuple[list[list[Any]], list[str]]).decode
_decode_woken = msgspec.json.Decoder(tuple[int, list[str]]).decode


class PostgresLimit:
    """See `outlast.store.LimitStore`."""

    def __init__(self, access: PostgresAccess) -> None:
        self._access = access

    async def acquire(self, requests: Sequence[PermitRequest]) -> Sequence[Permit | Refused]:
        item = PermitItem(self._access.queries["acquire"], requests)
        found: list[Permit | Refused] = await self._access.parts().writer.submit(item)
        return found

    async def resize(self, name: str, concurrency: int) -> int:
        parts, named = self._access.parts(), {"name": name, "concurrency": concurrency}
        # By itself: in a group it would wait with the locks of sessions, and limits come before
        # sessions.
        [(text,)] = await parts.ungrouped.ask(self._access.queries["resize_limit"].bind(named))
        waiting, woken = _decode_woken(text)
        if woken:
            parts.notifier.tell(dict.fromkeys(woken, True))
        return waiting

    async def skip_stale(self, timeout: int, line: str = "") -> int:
        named = {"timeout": timeout, "line": line, "behind": end_of_names(line)}
        parts = self._access.parts()
        # Every worker asks every few seconds: only one that finds something takes locks.
        if not await self._access.ask("has_overdue", named):
            return 0
        [(text,)] = await parts.ungrouped.ask(self._access.queries["skip_stale"].bind(named))
        skipped, woken = _decode_woken(text)
        if woken:
            parts.notifier.tell(dict.fromkeys(woken, True))
        return skipped

    async def permits(
        self, session_id: str | None = None, name: str | None = None, limit: int = 500
    ) -> Sequence[PermitInfo]:
        params = {"session_id": session_id, "name": name, "limit": limit}
        return [describe_permit(row) for row in await self._access.ask("permits", params)]

    async def lines(self, start: str) -> Sequence[LineInfo]:
        names = {"start": start, "behind": end_of_names(start)}
        return [
            LineInfo(name=name, held=held, waiting=waiting, oldest_at=oldest_at)
            for name, held, waiting, oldest_at in await self._access.ask("lines", names)
        ]


class PermitItem:
    """Requests for permits, as an item of the writer's next group."""

    size = 0

    def __init__(self, query: Query, requests: Sequence[PermitRequest]) -> None:
        # Locked before the sessions of the group: see `WriteGroup`.
        self.limits = [bound.name for request in requests for bound in request.bounds]
        self._statement = query.bind({"requests": msgspec.json.encode(requests).decode()})

    def compose(self) -> Sequence[Statement]:
        return [self._statement]

    def take(self, answers: Sequence[Rows], hints: Hints) -> list[Permit | Refused]:
        [[(text,)]] = answers
        permits, woken = _decode(text)
        hints.update(dict.fromkeys(woken, True))
        return [to_permit(answer) for answer in permits]


def to_permit(answer: list[Any]) -> Permit | Refused:
    match answer:
        case ["granted"]:
            return GRANTED
        case ["waits", again_at]:
            return Permit(granted=False, again_at=again_at)
        case [reason]:
            return Refused(reason)
    raise AssertionError(answer)


def describe_permit(row: Row) -> PermitInfo:
    name, session_id, lane, call_id, held, ahead = row
    return PermitInfo(
        name=name, session_id=session_id, lane=lane, call_id=call_id, held=held, ahead=ahead
    )
