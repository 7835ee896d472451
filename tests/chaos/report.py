"""What a run of chaos came to: numbers for people and for machines, and what was found wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from statistics import median

from msgspec import Struct

from chaos.check_call import recorded_work_never_reruns, unknown_effects_are_not_repeated
from chaos.check_delivery import every_delivery_is_settled_once, every_receipt_is_in_the_log
from chaos.check_owner import outlasts_leases
from chaos.checker import check
from chaos.evidence import Evidence

SESSION = re.compile(r"(?:ses|run)_\w+")


class Report(Struct, frozen=True, kw_only=True):
    """One run. Durations are seconds; a takeover lasts from a kill to the heir's first commit.

    `outlasted` counts the faults of the database that lasted for longer than leases allow: only
    after those may living workers have lost lanes.
    """

    store: str
    seed: int
    lasted: float
    lease: float
    sessions: int
    deliveries: int
    calls: int
    begun: int
    commits: int
    faults: dict[str, int]
    outlasted: int
    takeovers: int
    takeover_median: float | None
    takeover_max: float | None
    repeats: int
    lost: int
    findings: dict[str, list[str]]

    @property
    def is_clean(self) -> bool:
        return not any(self.findings.values())


def report_on(evidence: Evidence, seed: int, lasted: float) -> Report:
    """Check the evidence, and count."""
    times = [seconds for _, seconds in after_kills(evidence)]
    repeats = (recorded_work_never_reruns, unknown_effects_are_not_repeated)
    losses = (every_receipt_is_in_the_log, every_delivery_is_settled_once)
    return Report(
        store=evidence.store,
        seed=seed,
        lasted=round(lasted, 1),
        lease=evidence.lease,
        sessions=len(evidence.logs),
        deliveries=len(evidence.accepted),
        calls=len(evidence.outcomes),
        begun=len(evidence.marked("begun")),
        commits=len(evidence.marked("wrote")),
        faults=dict(sorted(Counter(fault.kind for fault in evidence.faults).items())),
        outlasted=sum(outlasts_leases(evidence, f) for f in evidence.faults if not f.pid),
        takeovers=len(list(evidence.takeovers())),
        takeover_median=round(median(times), 3) if times else None,
        takeover_max=round(max(times), 3) if times else None,
        repeats=sum(len(list(find(evidence))) for find in repeats),
        lost=sum(len(list(find(evidence))) for find in losses),
        findings=check(evidence),
    )


def after_kills(evidence: Evidence) -> Iterator[tuple[str, float]]:
    """Give the sessions whose owner was killed, and how long each of them stood still."""
    killed = {fault.pid: fault.at for fault in evidence.of_kind("kill")}
    for old, new in evidence.takeovers():
        wrote = evidence.first_writes.get((new.session, new.lane, new.fence))
        if wrote and old.at < killed.get(old.pid, 0.0) < new.at:
            yield new.session, wrote.at - killed[old.pid]


def traces(evidence: Evidence, findings: dict[str, list[str]]) -> Iterator[str]:
    """Give all that is known of the sessions that were found wrong, a line each."""
    found = (
        name for texts in findings.values() for text in texts for name in SESSION.findall(text)
    )
    for session in dict.fromkeys(found):
        yield f"== {session}"
        for entry in evidence.logs.get(session, evidence.runs.get(session, ())):
            yield f"log    {entry.offset:4} {entry.at} {entry.lane} {entry.record}"
        yield from (f"ledger {mark}" for mark in evidence.marks if mark.session == session)
    yield from (f"fault  {fault}" for fault in evidence.faults)
