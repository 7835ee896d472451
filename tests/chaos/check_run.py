"""What must hold for runs of workflows, whatever happened to their workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from chaos.evidence import Evidence
from outlast.core import record as r
from outlast.testing.simulation.check_workflow import deed_of, wrong_in_log

STARTED = r.ToolStepStarted
READS = "look"
UNDO = "undo "


def runs_are_done_once(evidence: Evidence) -> Iterator[str]:
    for run, log in evidence.runs.items():
        yield from (f"{run}: {wrong}" for wrong in wrong_in_log(e.record for e in log))
        begun = Counter(deed_of(e.record.name) for e in log if isinstance(e.record, STARTED))
        done = Counter(mark.key for mark in evidence.marked("did") if mark.session == run)
        for what, times in done.items():
            if what != READS and not what.startswith(UNDO) and times > begun[what]:
                yield f"{run}: {what} was done {times} times, and begun {begun[what]} times"


def undo_runs_in_reverse(evidence: Evidence) -> Iterator[str]:
    """The first time that each thing is undone: a worker taken for dead may do it once more."""
    for run, log in evidence.runs.items():
        registered = [e.record.title for e in log if isinstance(e.record, r.UndoRegistered)]
        marks = (m for m in evidence.marked("did") if m.session == run and m.key.startswith(UNDO))
        undone = list(dict.fromkeys(mark.key for mark in marks))
        is_due = any(isinstance(e.record, r.UndoStarted) for e in log)
        if undone != (registered[::-1] if is_due else []):
            yield f"{run}: undone were {undone}, and registered {registered}"


def transactional_steps_leave_their_row(evidence: Evidence) -> Iterator[str]:
    rows = Counter((run, what) for run, what in evidence.effects if run in evidence.runs)
    told = Counter(
        (run, "book")
        for run, log in evidence.runs.items()
        for e in log
        if isinstance(e.record, r.ToolStepRecorded) and deed_of(e.record.name) == "book"
    )
    if rows != told:
        yield f"{rows - told} have a row and no result, {told - rows} a result and no row"
