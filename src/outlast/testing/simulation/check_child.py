"""Promises about work that is handed on: a child is started once, and waited for until its end."""

from collections import Counter
from collections.abc import Iterator

from outlast.core import record as r
from outlast.testing.simulation.evidence import SessionEvidence, SimulationEvidence


def children_are_started_once(evidence: SimulationEvidence) -> Iterator[str]:
    called = Counter(
        (name, e.child)
        for name, session in evidence.sessions.items()
        for e in session.records(r.SubagentCalled)
    )
    born = {
        (session.info.parent, name)
        for name, session in evidence.sessions.items()
        if session.info.parent
    }
    for (parent, child), times in called.items():
        if times > 1:
            yield f"{parent} called {child} {times} times"
        if (parent, child) not in born:
            yield f"{parent} called {child}, which was never started"
    for parent, child in born - called.keys():
        yield f"{child} was started, and {parent} never called it"
    for name, session in evidence.sessions.items():
        yield from waited_for(name, session, evidence)


def waited_for(name: str, session: SessionEvidence, evidence: SimulationEvidence) -> Iterator[str]:
    """Every call has one end, and what it says is what the child came to."""
    ends = Counter(e.request_id for e in session.records(r.SubagentCompleted))
    ends += Counter(e.request_id for e in session.records(r.SubagentFailed))
    for e in session.records(r.SubagentCalled):
        child = evidence.sessions.get(e.child)
        if ends[e.request_id] != 1:
            yield f"{name}: the call of {e.child} has {ends[e.request_id]} ends"
        if child is not None and not child.info.over:
            yield f"{name}: its child {e.child} goes on for nobody"
    for done in session.records(r.SubagentCompleted):
        child = evidence.sessions.get(done.child)
        if child is not None and child.info.over != "completed":
            yield f"{name}: {done.child} is said to be completed, and is {child.info.over}"
