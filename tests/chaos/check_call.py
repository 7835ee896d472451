"""Promises about what was done outside: recorded work never re-runs, effects are not repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from chaos.evidence import CallKey, Evidence
from chaos.ledger import Mark
from outlast.core import record as r

ONCE = ("pay", "refund")
"""The tools that say nothing of an interruption: they are never begun again."""

READS = ("look",)
"""The tools without an effect: they may begin before the log says so."""


def recorded_work_never_reruns(evidence: Evidence) -> Iterator[str]:
    """Each attempt begins once, after the log said so, and none after the one with the outcome."""
    started = attempts_in_log(evidence)
    for (key, attempt), times in Counter(begun(evidence)).items():
        what = f"{key[0]} {key[1]}#{attempt}"
        ended = evidence.outcomes.get(key, [])
        if times > 1:
            yield f"{what} began {times} times"
        if (key, attempt) not in started:
            yield f"{what} began, and the log did not say so"
        if ended and attempt > min(ended):
            yield f"{what} began, although attempt {min(ended)} had its outcome"
    yield from begun_too_early(evidence)
    for key, attempts in evidence.outcomes.items():
        if len(attempts) > 1:
            yield f"{key[0]} {key[1]} has {len(attempts)} outcomes"


def begun_too_early(evidence: Evidence) -> Iterator[str]:
    """Who begins a call has seen the commit land that says so; what only reads need not wait."""
    places = {
        (session, entry.record.call_id, entry.record.attempt): entry.offset
        for session, log in evidence.logs.items()
        for entry in log
        if isinstance(entry.record, r.ModelStarted | r.ToolStarted)
    }
    for mark in evidence.marked("begun"):
        offset = places.get((mark.session, mark.call, mark.attempt), 0)
        seen = evidence.written_at(mark.session, offset)
        if seen > mark.at and evidence.tools.get((mark.session, mark.call)) not in READS:
            yield f"{mark.session} {mark.call}#{mark.attempt} began before the log said so"


def begun(evidence: Evidence) -> list[tuple[CallKey, int]]:
    return [((m.session, m.call), m.attempt) for m in evidence.marked("begun")]


def attempts_in_log(evidence: Evidence) -> set[tuple[CallKey, int]]:
    models = (((s, e.call_id), e.attempt) for s, e in evidence.records(r.ModelStarted))
    tools = (((s, e.call_id), e.attempt) for s, e in evidence.records(r.ToolStarted))
    return {*models, *tools}


def recorded_steps_never_rerun(evidence: Evidence) -> Iterator[str]:
    """A step that was recorded is not run by an attempt that starts later."""
    ran = {((m.session, m.call), m.attempt) for m in evidence.marked("stepped")}
    for session, log in evidence.logs.items():
        recorded: set[str] = set()
        for e in (entry.record for entry in log):
            if isinstance(e, r.ToolStepRecorded):
                recorded.add(e.call_id)
            elif (
                isinstance(e, r.ToolStarted)
                and e.call_id in recorded
                and ((session, e.call_id), e.attempt) in ran
            ):
                yield f"{session} {e.call_id}#{e.attempt} ran a step that was recorded"


def no_tool_fails(evidence: Evidence) -> Iterator[str]:
    """These tools never raise: what a shaken database does to one is no failure of its own.

    But a transaction that a pause of its worker outlasts is undone, and the tool is told so.
    """
    for session, e in evidence.records(r.ToolFailed):
        if e.error.code not in ("NOT_RUN", "NOT_IN_TRANSACTION"):
            yield f"{session} {e.call_id} {evidence.tools[session, e.call_id]}: {e.error.message}"


def unknown_effects_are_not_repeated(evidence: Evidence) -> Iterator[str]:
    """A tool whose interruption is only reported was begun once, whatever happened."""
    times = Counter(key for key, _ in begun(evidence) if evidence.tools.get(key) in ONCE)
    for (session, call), count in times.items():
        if count > 1:
            yield f"{session} {call} {evidence.tools[session, call]} began {count} times"


def reconciled_effects_happen_once(evidence: Evidence) -> Iterator[str]:
    """A parcel that can be looked for is sent once, but for workers that were taken for dead."""
    sent: dict[str, list[Mark]] = {}
    for mark in evidence.marked("shipped"):
        sent.setdefault(mark.key, []).append(mark)
    for key, marks in sent.items():
        if len([m for m in marks if not is_zombie(evidence, m)]) > 1:
            yield f"{marks[0].session} {marks[0].call}: {key} was sent {len(marks)} times"


def is_zombie(evidence: Evidence, mark: Mark) -> bool:
    """Whether who did this may have lost its lane before: it stood still, or was held up."""
    taken = (new for old, new in evidence.takeovers() if old.pid == mark.pid)
    return any(new.session == mark.session and new.at < mark.at for new in taken)


def no_call_runs_twice_at_once(evidence: Evidence) -> Iterator[str]:
    """A call runs on one worker at a time, unless the lease of the first had run out."""
    runs: dict[CallKey, list[tuple[Mark, float]]] = {}
    for mark, end in runs_of_tools(evidence):
        runs.setdefault((mark.session, mark.call), []).append((mark, end))
    for (session, call), marks in runs.items():
        for (first, end), (second, _) in pairwise(marks):
            if second.at < end and not was_late(evidence, first, second):
                yield f"{session} {call} ran on {first.worker} when {second.worker} began it"


def runs_of_tools(evidence: Evidence) -> Iterator[tuple[Mark, float]]:
    """Give the attempts at tool calls by their beginnings, each with when its function was over.

    It ended, was stopped, or died with its process; of another one nobody knows.
    """
    died = {fault.pid: fault.at for fault in evidence.of_kind("kill")}
    ends = {
        (m.session, m.call, m.attempt): m.at
        for what in ("stopped", "ended")
        for m in evidence.marked(what)
    }
    for mark in sorted((m for m in evidence.marked("begun") if m.tool), key=lambda m: m.at):
        known = ends.get((mark.session, mark.call, mark.attempt))
        yield mark, died.get(mark.pid, mark.at) if known is None else known


def was_late(evidence: Evidence, first: Mark, second: Mark) -> bool:
    """Whether a lane changed hands between two marks because a lease had run out."""
    return any(
        e.evidence == "lease_expired" and first.fence < e.fence <= second.fence
        for session, e in evidence.records(r.LaneTakenOver)
        if session == first.session
    )


def transactions_happen_once(evidence: Evidence) -> Iterator[str]:
    """The row of a transactional call is there if, and only if, its result is in the log."""
    rows = Counter(row for row in evidence.effects if row[0] not in evidence.runs)
    done = Counter(
        (session, e.call_id)
        for session, e in evidence.records(r.ToolCompleted)
        if evidence.tools.get((session, e.call_id)) == "book"
    )
    for key in rows | done:
        if not rows[key] == done[key] == 1:
            yield f"{key[0]} {key[1]} left {rows[key]} rows and {done[key]} results"


def tool_lanes_are_serial(evidence: Evidence) -> Iterator[str]:
    """Under one key one call runs at a time, unless its worker was taken for dead meanwhile."""
    last: dict[str, tuple[Mark, float]] = {}
    for mark, end in runs_of_tools(evidence):
        if not mark.key:
            continue
        before, until = last.get(mark.key, (mark, 0.0))
        if mark.at < until and not was_taken_for_dead(evidence, before, mark.at):
            yield f"{mark.key}: {mark.session} {mark.call} began while {before.session} ran"
        if end > until:
            last[mark.key] = (mark, end)


def was_taken_for_dead(evidence: Evidence, mark: Mark, at: float) -> bool:
    """Whether the lane of a call had changed hands by some instant, after the call began."""
    claims = evidence.claims.get((mark.session, mark.lane), {})
    by_then = {fence for fence, claim in claims.items() if claim.at < at}
    taken = (e for s, e in evidence.records(r.LaneTakenOver) if s == mark.session)
    return any(e.fence > mark.fence and e.fence in by_then for e in taken)
