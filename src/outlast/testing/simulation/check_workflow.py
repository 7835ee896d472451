"""Promises about runs: a step comes to one end, undo runs once and in reverse, events in order.

`wrong_in_log` looks at one run's log alone; what really happened outside is held against it by
those who know that.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from outlast.core import record as r
from outlast.core.record import AnyRecord
from outlast.core.undo import UNDO_SCOPE, undo_key


def wrong_in_log(records: Iterable[AnyRecord]) -> Iterator[str]:
    """Say what no crash, no fault and no change of the body may do to a run's log."""
    reading = RunReading()
    for record in records:
        yield from reading.read(record)


class RunReading:
    """What is known of a run, as its log is read from the beginning."""

    def __init__(self) -> None:
        self._ended: set[str] = set()
        self._begun: dict[str, int] = {}
        self._undos: list[str] = []
        self._undone: list[str] = []
        self._is_undoing = False
        self._received: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()

    def read(self, record: AnyRecord) -> Iterator[str]:
        match record:
            case r.JournalInherited():
                self._ended |= {*record.steps, *record.spoilt}
                self._undos += record.undos
                self._undone += [name for name in record.steps if name.startswith(UNDO_SCOPE)]
                self._is_undoing = record.undoing is not None
            case r.RunRestarted():
                self._ended, self._begun = set(), {}
            case r.ToolStepStarted():
                yield from self._starts(record)
            case r.ToolStepRecorded():
                yield from self._ends(record.name)
            case r.ToolStepFailed():
                yield from self._fails(record)
            case r.ToolEmitted(key=key) if key:
                yield from self._ends(key)
            case r.EventReceived():
                self._received[record.name] += 1
            case r.EventTaken():
                self._taken[record.event] += 1
                yield from self._ends(record.name)
                if self._taken[record.event] > self._received[record.event]:
                    yield f"more of the event {record.event} were taken than had come"
            case r.UndoRegistered():
                if self._is_undoing or record.name in self._undos:
                    yield f"{record.name} was registered twice, or while the run was undone"
                self._undos.append(record.name)
            case r.UndoStarted():
                if self._is_undoing:
                    yield "the undo began twice"
                self._is_undoing = True
            case r.UndoEnded():
                yield from self._undo_ends(record)

    def _starts(self, record: r.ToolStepStarted) -> Iterator[str]:
        if record.name in self._ended:
            yield f"{record.name} was begun after it had come to an end"
        if record.attempt <= self._begun.get(record.name, 0):
            yield f"attempt {record.attempt} at {record.name} was begun twice"
        self._begun[record.name] = record.attempt
        yield from self._is_in_time(record.name)

    def _fails(self, record: r.ToolStepFailed) -> Iterator[str]:
        if record.name in self._ended:
            yield f"{record.name} failed after it had come to an end"
        if not record.again:
            self._ended.add(record.name)

    def _ends(self, name: str) -> Iterator[str]:
        if name in self._ended:
            yield f"{name} came to an end twice"
        self._ended.add(name)
        yield from self._is_in_time(name)
        if name.startswith(UNDO_SCOPE):
            self._undone.append(name)

    def _is_in_time(self, name: str) -> Iterator[str]:
        """Nothing is undone before the run is, and nothing else is done then."""
        if name.startswith(UNDO_SCOPE) != self._is_undoing:
            yield f"{name} was done {'while' if self._is_undoing else 'before'} the run was undone"

    def _undo_ends(self, record: r.UndoEnded) -> Iterator[str]:
        due = [key for name in reversed(self._undos) if (key := undo_key(name)) in self._undone]
        if self._undone != due:
            yield f"{self._undone} were undone, in this order; {due} would be the reverse"
        if not record.error and len(due) != len(self._undos):
            yield f"only {due} of {self._undos} were undone"
