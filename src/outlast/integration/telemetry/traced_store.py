"""The store as a worker uses it, with metrics of its claims and commits, and spans of turns.

Only `log.commit` and `work.claim` are wrapped; every other method is the wrapped store's own.
A turn's span is added by the worker that records the turn's end. If the turn began elsewhere,
its start is read from the log.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress

from outlast.core import record as r
from outlast.core.record import FORMAT
from outlast.errors import StoreError
from outlast.integration.telemetry.instrument import Instruments
from outlast.log.reader import EntriesBefore
from outlast.log_context import known
from outlast.store import (
    NO_LIMITS,
    Claim,
    Commit,
    Committed,
    LogStore,
    Refused,
    Store,
    WorkStore,
)

TurnEnd = r.TurnCompleted | r.TurnFailed | r.TurnCancelled

HOW = {r.TurnCompleted: "completed", r.TurnFailed: "failed", r.TurnCancelled: "cancelled"}
OF_NOTE = frozenset({*HOW, r.TurnStarted, r.LaneTakenOver})
MOST_REMEMBERED = 10_000


class TracedStore:
    """A `outlast.store.Store` that reports what a worker claims and commits."""

    def __init__(self, store: Store, instruments: Instruments) -> None:
        self.log = TracedLog(store.log, instruments)
        self.work = TracedWork(store.work, instruments)
        self.listing = store.listing
        self.limit = store.limit
        self.outbox = store.outbox
        self.document = store.document
        self.migrate = store.migrate
        self.close = store.close
        self.counts = store.counts


class TracedWork:
    """A `outlast.store.WorkStore` that counts claims."""

    def __init__(self, work: WorkStore, instruments: Instruments) -> None:
        self._claim = work.claim
        self._to = instruments
        self.enlist = work.enlist
        self.find_dead = work.find_dead
        self.workers = work.workers
        self.drain = work.drain
        self.find_arrivals = work.find_arrivals
        self.next_ready_at = work.next_ready_at
        self.listen = work.listen

    async def claim(
        self,
        worker: str,
        limit: int,
        held: Sequence[tuple[str, str]] = (),
        agents: Sequence[str] | None = None,
        version: int = FORMAT,
        lanes: Sequence[str] | None = None,
        most: Mapping[str, int] = NO_LIMITS,
    ) -> Sequence[Claim]:
        claims = await self._claim(worker, limit, held, agents, version, lanes, most)
        if claims:
            self._to.claims.add(len(claims))
        self._to.held.set(len(held) + len(claims), {"outlast.worker": worker})
        return claims


class TracedLog:
    """A `outlast.store.LogStore` that counts commits and adds the spans of turns."""

    def __init__(self, log: LogStore, instruments: Instruments) -> None:
        self._commit = log.commit
        self._to = instruments
        self._began: OrderedDict[tuple[str, str], int] = OrderedDict()
        self.admit = log.admit
        self.transaction = log.transaction
        self.effect = log.effect
        self.load = log.load
        self.read = log.read
        self.read_back = log.read_back
        self.erase = log.erase
        self.find_orphans = log.find_orphans

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        results = await self._commit(commits)
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
            async for entry in EntriesBefore(self, session_id, before):
                if isinstance(entry.record, r.TurnStarted) and entry.record.turn == turn:
                    return entry.at
        return None
