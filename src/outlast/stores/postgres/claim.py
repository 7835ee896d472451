"""A claim of lanes, as an item of the writer's next group.

functions/claim.sql decides which lanes a worker gets. The same round trip brings when the next lane
gets ready and, about once a second, which workers show no sign of life: so an idle worker asks once
a second.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from outlast.store import Claim
from outlast.store.clock import MeasuredStoreClock
from outlast.store.work import NO_PIN, Pin
from outlast.stores.postgres.liveness import LivenessObserver
from outlast.stores.postgres.pipeline import Rows
from outlast.stores.postgres.statement import Query, Statement
from outlast.stores.postgres.writer import Hints

LOOK_ALONG_AFTER = 0.4


class ClaimAnswer(msgspec.Struct):
    """The lanes of a claim, the server's time, and when the next lane gets ready."""

    claims: list[tuple[Any, ...]]
    now: int
    next: int | None
    epoch: str


_decode = msgspec.json.Decoder(ClaimAnswer).decode


class ClaimItem:
    """A claim, and with it a look at the signs of life if one is due."""

    limits = ()
    size = 0

    def __init__(
        self,
        queries: Mapping[str, Query],
        observer: LivenessObserver,
        clock: MeasuredStoreClock,
        worker: str,
        limit: int,
        held: Sequence[tuple[str, str]],
        agents: Sequence[str] | None,
        version: int,
        lanes: Sequence[str] | None,
        most: Mapping[str, int],
    ) -> None:
        self._query = queries["claim"]
        self._observer = observer
        self._clock = clock
        self._params = {
            "worker": worker,
            "limit": max(0, limit),
            "held": to_json([f"{session_id} {lane}" for session_id, lane in held]),
            "agents": None if agents is None else to_json(list(agents)),
            "version": version,
            "lanes": None if lanes is None else to_json([to_like(name) for name in lanes]),
            "most": to_json(dict(most)),
        }

    def compose(self) -> Sequence[Statement]:
        # With each try: the bounds of the server's clock count from the question that was answered.
        self._asked_at = self._clock.asking()
        claim = self._query.bind(self._params)
        # Along with the claim it costs no round trip of its own.
        if self._observer.is_due(LOOK_ALONG_AFTER):
            return [claim, self._observer.look()]
        return [claim]

    def take(self, answers: Sequence[Rows], hints: Hints) -> tuple[list[Claim], int | None]:
        [[(text,)], *looks] = answers
        for rows in looks:
            self._observer.note(rows)
        given = _decode(text)
        self._clock.note(self._asked_at, given.now)
        return [claim_of(row, given) for row in given.claims], given.next


def claim_of(row: tuple[Any, ...], given: ClaimAnswer) -> Claim:
    *known, evidence, permits, pinned = row
    return replace(
        Claim(*known),
        permits=tuple(permits),
        epoch=given.epoch,
        evidence=evidence,
        pin=Pin(*pinned) if pinned else NO_PIN,
    )


def to_like(pattern: str) -> str:
    """Return a pattern in which only `*` is special, as LIKE takes it."""
    escaped = re.sub(r"([\\%_])", r"\\\1", pattern)
    return escaped.replace("*", "%")


def to_json(values: list[str] | Mapping[str, int] | Mapping[str, str]) -> str:
    return msgspec.json.encode(values).decode()
