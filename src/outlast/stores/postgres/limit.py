"""Who may begin under a limit: wishes as the database takes them. See functions/permit.sql."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from outlast.store import Permit, PermitRequest, Refused
from outlast.stores.postgres.aside import SideConnection
from outlast.stores.postgres.notify import Notifier
from outlast.stores.postgres.pipeline import Rows
from outlast.stores.postgres.reader import Readers
from outlast.stores.postgres.statement import Query, Statement
from outlast.stores.postgres.writer import Hints

GRANTED = Permit(granted=True)

_decode = msgspec.json.Decoder(tuple[list[list[Any]], list[str]]).decode
_decode_passed = msgspec.json.Decoder(tuple[int, list[str]]).decode


class PermitItem:
    """Wishes on their way."""

    size = 0

    def __init__(self, query: Query, wishes: Sequence[PermitRequest]) -> None:
        self.limits = [bound.name for wish in wishes for bound in wish.bounds]
        self._statement = query.bind({"wishes": msgspec.json.encode(wishes).decode()})

    def compose(self) -> Sequence[Statement]:
        return [self._statement]

    def take(self, answers: Sequence[Rows], hints: Hints) -> list[Permit | Refused]:
        [[(text,)]] = answers
        permits, woken = _decode(text)
        hints.update(dict.fromkeys(woken, True))
        return [to_permit(answer) for answer in permits]


class StalePermits:
    """Passes by those who do not come for their places, in transactions of their own."""

    def __init__(
        self,
        aside: SideConnection,
        readers: Readers,
        queries: Mapping[str, Query],
        messenger: Notifier,
    ) -> None:
        self._aside = aside
        self._readers = readers
        self._queries = queries
        self._messenger = messenger

    async def pass_by(self, patience: int) -> int:
        named = {"patience": patience}
        if not await self._readers.ask(self._queries["has_overdue"].bind(named)):
            return 0
        [(text,)] = await self._aside.do(self._queries["pass_by"].bind(named))
        passed, woken = _decode_passed(text)
        if woken:
            self._messenger.tell(dict.fromkeys(woken, True))
        return passed


def to_permit(answer: list[Any]) -> Permit | Refused:
    match answer:
        case ["granted"]:
            return GRANTED
        case ["waits", again_at]:
            return Permit(granted=False, again_at=again_at)
        case [reason]:
            return Refused(reason)
    raise AssertionError(answer)
