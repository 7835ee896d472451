"""Promises about usage: rows add up to what was recorded, and a parent is told the same."""

from collections.abc import Iterator

from outlast.core import record as r
from outlast.core.record import NO_USAGE, UsageSum
from outlast.core.usage import used_by
from outlast.testing.simulation.evidence import SessionEvidence, SimulationEvidence


def usage_adds_up(evidence: SimulationEvidence) -> Iterator[str]:
    recorded = NO_USAGE
    for name, session in evidence.sessions.items():
        for e in session.records(r.UsageRecorded):
            recorded += used_by(e)
        for done in ends(session):
            child = evidence.sessions.get(done.child)
            if child and done.usage not in (NO_USAGE, due := told_by(child)):
                yield f"{name}: {done.child} is said to have used {done.usage}, and used {due}"
        if name in evidence.talks:
            yield from children_left_out(name, session)
    if evidence.used != recorded:
        yield f"{evidence.used} is added up in the store, and {recorded} was recorded"


def told_by(child: SessionEvidence) -> UsageSum:
    """Return what a child and those it waited for have used, by the child's own log."""
    total = NO_USAGE
    for e in child.records(r.UsageRecorded):
        total += used_by(e)
    for done in ends(child):
        total += done.usage
    return total


def children_left_out(name: str, session: SessionEvidence) -> Iterator[str]:
    """A child that has completed has asked a model, which is no usage of zero."""
    for done in session.records(r.SubagentCompleted):
        if done.usage == NO_USAGE:
            yield f"{name}: {done.child} is completed, and is said to have used nothing"


def ends(session: SessionEvidence) -> list[r.SubagentCompleted | r.SubagentFailed]:
    """Return the ends of a session's children, as its log has them."""
    return [*session.records(r.SubagentCompleted), *session.records(r.SubagentFailed)]
