"""Who may begin under a limit: wishes as the database takes them. See functions/permit.sql."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.store import Permit, Refused, Wish
from holdfast.stores.postgres.link import Rows
from holdfast.stores.postgres.statement import Query, Statement
from holdfast.stores.postgres.writer import Hints

GRANTED = Permit(granted=True)

_decode = msgspec.json.Decoder(list[list[Any]]).decode


class WishErrand:
    """Wishes on their way."""

    def __init__(self, query: Query, wishes: Sequence[Wish]) -> None:
        self._statement = query.bind({"wishes": msgspec.json.encode(wishes).decode()})

    def compose(self) -> Sequence[Statement]:
        return [self._statement]

    def take(self, answers: Sequence[Rows], hints: Hints) -> list[Permit | Refused]:
        [[(text,)]] = answers
        return [to_permit(answer) for answer in _decode(text)]


def to_permit(answer: list[Any]) -> Permit | Refused:
    match answer:
        case ["granted"]:
            return GRANTED
        case ["waits", again_at]:
            return Permit(granted=False, again_at=again_at)
        case [reason]:
            return Refused(reason)
    raise AssertionError(answer)
