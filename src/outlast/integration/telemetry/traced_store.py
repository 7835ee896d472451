"""The store as a worker uses it, observed: what was claimed and committed, and whole turns.

A turn's span is added by the worker that records the turn's end. If the turn began elsewhere,
its start is read from the log.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from outlast.core import record as r
from outlast.errors import StoreError
from outlast.integration.telemetry.instrument import Instruments
from outlast.log.reader import EntriesBefore
from outlast.log_context import known
from outlast.store import Claim, Commit, Committed, Refused, Store

TurnEnd = r.TurnCompleted | r.TurnFailed | r.TurnCancelled

HOW = {r.TurnCompleted: "completed", r.TurnFailed: "failed", r.TurnCancelled: "cancelled"}
OF_NOTE = frozenset({*HOW, r.TurnStarted, r.LaneTakenOver})
MOST_REMEMBERED = 10_000


class TracedStore:
    """A store that does what the one inside it does; all but two methods are that one's own."""

    def __init__(self, store: Store, instruments: Instruments) -> None:
        self._store = store
        self._to = instruments
        self._began: OrderedDict[tuple[str, str], int] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(
        self,
        worker: str,
        limit: int,
        held: Sequence[tuple[str, str]] = (),
        *args: Any,
        **options: Any,
    ) -> Sequence[Claim]:
        claims = await self._store.claim(worker, limit, held, *args, **options)
        if claims:
            self._to.claims.add(len(claims))
        self._to.held.set(len(held) + len(claims), {"outlast.worker": worker})
        return claims

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        results = await self._store.commit(commits)
        if not self._to.is_heard:
            return results
        for commit, result in zip(commits, results, strict=True):
            if isinstance(result, Refused):
                self._to.refusals.add(1, {"outlast.reason": result.reason})
                continue
            self._to.commits.add(1)
            for record in commit.records:
                if type(record) in OF_NOTE:
                    await self._note(commit, result, record)
        return results

    async def _note(self, commit: Commit, result: Committed, record: r.AnyRecord) -> None:
        match record:
            case r.TurnStarted(turn=turn):
                self._remember(commit.session_id, turn, result.at)
            case r.LaneTakenOver(graceful=graceful):
                self._to.takeovers.add(1, {"outlast.graceful": graceful})
            case r.TurnCompleted() | r.TurnFailed() | r.TurnCancelled():
                await self._add_turn(commit, result, record)

    def _remember(self, session_id: str, turn: str, at: int) -> None:
        """Keep a turn's start, unless so many began here that ended elsewhere."""
        self._began[session_id, turn] = at
        if len(self._began) > MOST_REMEMBERED:
            self._began.popitem(last=False)

    async def _add_turn(self, commit: Commit, result: Committed, end: TurnEnd) -> None:
        began = self._began.pop((commit.session_id, end.turn), None)
        if began is None and self._to.is_traced:
            began = await self._find_start(commit.session_id, end.turn, result.first_offset)
        if began is None:
            return
        how, agent = HOW[type(end)], str(known().get("agent", ""))
        facts = {"gen_ai.agent.name": agent, "outlast.outcome": how}
        self._to.turns.record((result.at - began) / 1000, facts)
        self._to.add_turn(
            agent,
            commit.session_id,
            end.turn,
            began,
            result.at,
            end.error.code if isinstance(end, r.TurnFailed) else "",
            **{
                "outlast.outcome": how,
                "gen_ai.usage.input_tokens": end.usage.input_tokens,
                "gen_ai.usage.output_tokens": end.usage.output_tokens,
            },
        )

    async def _find_start(self, session_id: str, turn: str, before: int) -> int | None:
        with suppress(StoreError):  # what was committed must not look as if it had failed
            async for entry in EntriesBefore(self._store, session_id, before):
                if isinstance(entry.record, r.TurnStarted) and entry.record.turn == turn:
                    return entry.at
        return None
