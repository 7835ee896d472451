"""What is left of a run: logs, ledger, receipts, faults. The checker believes nothing else."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeVar

from msgspec import Struct

from chaos.fault import Fault
from chaos.ledger import Mark
from chaos.place import Rows
from chaos.reader import Reading
from chaos.user import Accepted
from outlast import Event
from outlast.core import record as r
from outlast.core.record import Entry

R = TypeVar("R")
Log = tuple[Entry, ...]
CallKey = tuple[str, str]
LaneKey = tuple[str, str]


class Evidence(Struct, dict=True, kw_only=True):
    """All that is known of a run of chaos. `findings` are those of `outlast.log.verify`.

    `logs` are those of sessions with the agent, `runs` those of runs of workflows.
    """

    store: str
    lease: float
    logs: dict[str, Log]
    runs: dict[str, Log] = {}
    events: dict[str, tuple[Event, ...]] = {}
    marks: tuple[Mark, ...] = ()
    accepted: tuple[Accepted, ...] = ()
    readings: tuple[Reading, ...] = ()
    faults: tuple[Fault, ...] = ()
    effects: Rows = []
    findings: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()

    def records(self, kind: type[R]) -> Iterator[tuple[str, R]]:
        """Give all records of a kind with their sessions."""
        for session, log in self.logs.items():
            yield from ((session, e.record) for e in log if isinstance(e.record, kind))

    def marked(self, what: str) -> list[Mark]:
        return [mark for mark in self.marks if mark.what == what]

    def of_kind(self, kind: str) -> list[Fault]:
        return [fault for fault in self.faults if fault.kind == kind]

    @cached_property
    def outcomes(self) -> dict[CallKey, list[int]]:
        """The attempts at each call that have an outcome: one, if all is well."""
        found: dict[CallKey, list[int]] = {}
        for session, log in self.logs.items():
            for call, attempt in (known for e in log if (known := outcome_of(e.record))):
                found.setdefault((session, call), []).append(attempt)
        return found

    @cached_property
    def tools(self) -> dict[CallKey, str]:
        return {(s, e.call_id): e.tool for s, e in self.records(r.ToolRequested)}

    @cached_property
    def claims(self) -> dict[LaneKey, dict[int, Mark]]:
        """Who was given each lane, by fence."""
        found: dict[LaneKey, dict[int, Mark]] = {}
        for mark in self.marked("claimed"):
            found.setdefault((mark.session, mark.lane), {}).setdefault(mark.fence, mark)
        return found

    @cached_property
    def first_writes(self) -> dict[tuple[str, str, int], Mark]:
        """The first commit to each lane under each fence."""
        found: dict[tuple[str, str, int], Mark] = {}
        for mark in self.marked("wrote"):
            found.setdefault((mark.session, mark.lane, mark.fence), mark)
        return found

    @cached_property
    def _writes(self) -> dict[str, list[tuple[int, float]]]:
        """Each session's commits: where they begin, and when their writers first knew of them."""
        found: dict[str, dict[int, float]] = {}
        for mark in self.marked("wrote"):
            known = found.setdefault(mark.session, {})
            known[mark.offset] = min(mark.at, known.get(mark.offset, mark.at))
        return {session: sorted(known.items()) for session, known in found.items()}

    def written_at(self, session: str, offset: int) -> float:
        """Return when the writer of a record knew that it was in the log; 0 if nobody says."""
        writes = self._writes.get(session, [])
        place = bisect_right(writes, offset, key=lambda write: write[0])
        return writes[place - 1][1] if place else 0.0

    def takeovers(self) -> Iterator[tuple[Mark, Mark]]:
        """Give who lost a lane in the middle of its work, and who took it, where both are known."""
        for session, log in self.logs.items():
            for entry in log:
                e = entry.record
                if isinstance(e, r.LaneTakenOver) and not e.graceful:
                    known = self.claims.get((session, entry.lane), {})
                    before = [fence for fence in known if fence < e.fence]
                    if e.fence in known and before:
                        yield known[max(before)], known[e.fence]

    def evidence_of(self, taken: Mark) -> str:
        """Return on which evidence a lane was taken over, as the log says."""
        for session, e in self.records(r.LaneTakenOver):
            if (session, e.fence, e.graceful) == (taken.session, taken.fence, False):
                return e.evidence
        return ""


def outcome_of(record: Any) -> tuple[str, int] | None:
    """Return the call and the attempt that a record is the outcome of, if it is one."""
    match record:
        case r.MessageCompleted() | r.ToolCompleted():
            return record.call_id, record.attempt
        case r.ToolFailed(again_at=0) | r.ToolInterrupted(final=True):
            return record.call_id, record.attempt
    return None
