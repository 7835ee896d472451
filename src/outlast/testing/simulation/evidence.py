"""Everything that is left when a simulation is over, prepared for the checks.

`world.py` gathers it once, from the logs, the store's lists and the history, so that all checks
look at the same. Judges nothing: see `promise.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from msgspec import Struct

from outlast.agents.agent import Agent
from outlast.core import record as r
from outlast.core.amount import BudgetState
from outlast.core.policy import Policy
from outlast.core.record import NO_USAGE, AnyRecord, Entry, UsageSum
from outlast.log.verify import Finding
from outlast.store import SessionInfo
from outlast.testing.simulation.fault_plan import COSTLY
from outlast.testing.simulation.history import (
    CommitWritten,
    DeedDone,
    EffectEnded,
    FaultInjected,
    History,
    HistoryNote,
    LaneClaimed,
)
from outlast.testing.simulation.ledger import Row
from outlast.workflows.workflow import Workflow

R = TypeVar("R")
Place = tuple[str, str]
"""A session and a lane of it."""


class SessionEvidence(Struct, frozen=True, kw_only=True):
    """A session at the end.

    `events` are its events as a reader that begins now gets them, `alike` all sessions that are
    listed by its tags.
    """

    info: SessionInfo
    entries: tuple[Entry, ...]
    events: tuple[tuple[int, str], ...]
    alike: tuple[str, ...]
    findings: tuple[Finding, ...]

    def records(self, kind: type[R]) -> list[R]:
        """Return the log's records of a kind."""
        return [e.record for e in self.entries if type(e.record) is kind]


class SimulationEvidence:
    """Everything that can be known of a simulation.

    `rows` were left by transactions, `held` are the holds that are still open, and `used` is all
    usage as the store adds it up, and `budgets` are those that tenants share.
    """

    def __init__(
        self,
        history: History,
        sessions: Mapping[str, SessionEvidence],
        agents: Mapping[str, Agent[Any, Any]],
        rows: tuple[Row, ...],
        held: tuple[str, ...],
        unfinished: tuple[str, ...],
        used: UsageSum = NO_USAGE,
        budgets: Sequence[tuple[str, BudgetState]] = (),
        workflows: Mapping[str, Workflow[Any, Any]] = {},
    ) -> None:
        self.history = history
        self.sessions = sessions
        self.agents = agents
        self.rows = rows
        self.held = held
        self.unfinished = unfinished
        self.used = used
        self.budgets = budgets
        self.workflows = workflows

    @cached_property
    def runs(self) -> dict[str, SessionEvidence]:
        """The sessions that are runs of workflows."""
        return {name: each for name, each in self.sessions.items() if each.info.mode == "run"}

    @cached_property
    def talks(self) -> dict[str, SessionEvidence]:
        """The sessions with agents."""
        return {name: each for name, each in self.sessions.items() if name not in self.runs}

    @cached_property
    def deeds(self) -> dict[str, list[DeedDone]]:
        """What steps of bodies did outside, by run."""
        found: dict[str, list[DeedDone]] = {}
        for note in self.history.of(DeedDone):
            found.setdefault(note.session_id, []).append(note)
        return found

    def agent(self, session_id: str) -> Agent[Any, Any]:
        return self.agents[self.sessions[session_id].info.agent]

    def policy(self, session_id: str) -> Policy:
        name = self.sessions[session_id].info.agent
        return self.agents[name].policy if name in self.agents else self.workflows[name].policy

    @cached_property
    def writes(self) -> dict[str, list[CommitWritten]]:
        """Each session's commits, once each, in the order of the log."""
        found: dict[str, list[CommitWritten]] = {name: [] for name in self.sessions}
        seen: set[tuple[str, int]] = set()
        for wrote in self.history.of(CommitWritten):
            if (wrote.session_id, wrote.first_offset) not in seen and wrote.records:
                found.setdefault(wrote.session_id, []).append(wrote)
                seen.add((wrote.session_id, wrote.first_offset))
        return found

    @cached_property
    def _written(self) -> dict[tuple[str, int], CommitWritten]:
        return {
            (name, offset): wrote
            for name, writes in self.writes.items()
            for wrote in writes
            for offset in range(wrote.first_offset, wrote.first_offset + len(wrote.records))
        }

    def written(self, session_id: str, offset: int) -> CommitWritten | None:
        """Return the commit that put a record into the log; an arrival is part of no commit."""
        return self._written.get((session_id, offset))

    @cached_property
    def claims(self) -> dict[Place, list[LaneClaimed]]:
        found: dict[Place, list[LaneClaimed]] = {}
        for claim in self.history.of(LaneClaimed):
            found.setdefault((claim.session_id, claim.lane), []).append(claim)
        return found

    @cached_property
    def ends(self) -> dict[tuple[str, str], list[EffectEnded]]:
        """How each tool call ended, by session and call, as its workers saw it."""
        found: dict[tuple[str, str], list[EffectEnded]] = {}
        for end in self.history.of(EffectEnded):
            if end.kind == "tool":
                found.setdefault((end.session_id, end.call_id), []).append(end)
        return found

    @cached_property
    def reasons(self) -> int:
        """How often something happened that may cost a worker its lanes."""
        costs = dict.fromkeys((*COSTLY, "stopped"), 1)
        costs["renewals fail"] = 3  # for so many leases, the worker enlisting anew after each
        return sum(costs.get(fault.what, 0) for fault in self.history.of(FaultInjected))

    @cached_property
    def jumps(self) -> list[int]:
        """When clocks jumped, by the numbers of the notes."""
        faults = self.history.of(FaultInjected)
        return [fault.number for fault in faults if fault.what.startswith("clock of")]

    @cached_property
    def jumps_of_store(self) -> list[int]:
        """When the store's own clock jumped, by the numbers of the notes."""
        kinds = ("clock of the store jumps", "clock of everybody jumps")
        return [fault.number for fault in self.history.of(FaultInjected) if fault.what in kinds]

    def fence_at(self, place: Place, note: HistoryNote) -> int:
        """Return the fence that a lane had when something happened."""
        before = [c.fence for c in self.claims.get(place, ()) if c.number < note.number]
        return before[-1] if before else 0


def outcome_of(record: AnyRecord) -> tuple[str, str, str] | None:
    """Return the call that a record is the outcome of, how it ended, and with what."""
    match record:
        case r.ToolCompleted():
            return record.call_id, "completed", record.value
        case r.ToolFailed(again_at=0):
            return record.call_id, "failed", record.error.message
        case r.ToolInterrupted(final=True):
            return record.call_id, "interrupted", record.reason
        case r.ToolDenied():
            return record.call_id, "denied", record.reason
        case r.MessageCompleted():
            return record.call_id, "answered", ""
    return None


def outcomes(session: SessionEvidence) -> Iterator[tuple[Entry, tuple[str, str, str]]]:
    for entry in session.entries:
        if found := outcome_of(entry.record):
            yield entry, found
