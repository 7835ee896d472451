"""Whether no more calls ran at once than their limits allow, by the order of the commits."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core import record as r
from holdfast.core.limit import freed_by
from holdfast.core.record import Entry
from holdfast.testing.simulation.evidence import Evidence
from holdfast.testing.simulation.program import AT_ONCE

Running = dict[str, set[tuple[str, str]]]
"""The calls that have begun and have no outcome yet, by limit."""


def limits_hold(evidence: Evidence) -> Iterator[str]:
    """A call has begun when that is written, and is at work until its end is written."""
    running: Running = {}
    tools = {
        (name, e.call_id): e.tool
        for name, session in evidence.sessions.items()
        for e in session.records(r.ToolRequested)
    }
    for name, entry in in_order(evidence):
        forget(running, name, entry)
        if not isinstance(entry.record, r.ToolStarted):
            continue
        call = (name, entry.record.call_id)
        if limit := AT_ONCE.get(tools.get(call, "")):
            key = limit.key(evidence.sessions[name].info.tenant)
            at_work = running.setdefault(key, set())
            at_work.add(call)
            if len(at_work) > limit.most:
                yield f"{len(at_work)} calls ran at once under {key}: {sorted(at_work)}"


def in_order(evidence: Evidence) -> list[tuple[str, Entry]]:
    """Return what owners wrote, of all sessions, in the order in which it was written."""
    found = [
        (wrote.number, entry.offset, name, entry)
        for name, session in evidence.sessions.items()
        for entry in session.entries
        if (wrote := evidence.written(name, entry.offset))
    ]
    return [(name, entry) for _, _, name, entry in sorted(found, key=lambda item: item[:3])]


def forget(running: Running, name: str, entry: Entry) -> None:
    """Take out the calls that a record ends: one, or all of the turn that it ends."""
    turn = getattr(entry.record, "turn", "")
    for calls in running.values():
        mine = {call_id for session, call_id in calls if session == name}
        for call_id in freed_by(entry.record, mine):
            if not turn or call_id.startswith(f"{turn}."):
                calls.discard((name, call_id))
