"""Promises about runs: a step comes to one end, undo runs once and in reverse, events in order.

`wrong_in_log` looks at one run's log alone; the rest holds what was really done against it.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from outlast.core import record as r
from outlast.core.name import MAIN
from outlast.core.record import AnyRecord
from outlast.core.undo import UNDO_SCOPE, undo_key
from outlast.core.workflow import payload_of
from outlast.session.run_history import is_void
from outlast.testing.simulation.evidence import SessionEvidence, SimulationEvidence
from outlast.testing.simulation.random_workflow import EVENT, RIVALS


def runs_are_done_once(evidence: SimulationEvidence) -> Iterator[str]:
    """Hold what steps did outside, and left in tables, against the logs of their runs."""
    for name, session in evidence.runs.items():
        for wrong in wrong_in_log(entry.record for entry in session.entries):
            yield f"{name}: {wrong}"
        if not session.info.over:
            yield f"{name}: the run goes on for ever"
        yield from (f"{name}: {wrong}" for wrong in done_too_often(evidence, name, session))
        yield from (f"{name}: {wrong}" for wrong in undone_in_reverse(evidence, name))
        yield from (f"{name}: {wrong}" for wrong in events_in_order(session))
    reserved = Counter((run, what) for run, what, _ in evidence.rows)
    told = Counter(
        (name, what)
        for name, session in evidence.runs.items()
        for e in session.records(r.ToolStepRecorded)
        if (what := deed_of(e.name)).startswith("reserve ")
    )
    if evidence.runs and reserved != told:
        yield f"{reserved - told} were reserved, and {told - reserved} are in the logs only"


def deed_of(name: str) -> str:
    """Return what a step does, from the name that it is recorded under."""
    last = name.rpartition("/")[2]
    return last.removeprefix("step:").partition("#")[0] if last.startswith("step:") else ""


def done_too_often(
    evidence: SimulationEvidence, name: str, session: SessionEvidence
) -> Iterator[str]:
    """A step begins in the log before it does anything, and does nothing once it has ended there.

    Both only as far as its worker could know: of one that was taken for dead, the next may have
    ended the step, or done it again where it may be.
    """
    begun = Counter(deed_of(e.name) for e in session.records(r.ToolStepStarted))
    ends: dict[str, int] = {}
    for entry in session.entries:
        if isinstance(entry.record, r.ToolStepRecorded):
            wrote = evidence.written(name, entry.offset)
            ends[deed_of(entry.record.name)] = wrote.number if wrote else 0
    done: Counter[str] = Counter()
    claims = evidence.claims.get((name, MAIN), [])
    for note in evidence.deeds.get(name, ()):
        done[note.what] += 1
        owner = next((c.who for c in reversed(claims) if c.number < note.number), "")
        if ends.get(note.what, note.number) < note.number and owner == note.who:
            yield f"{note.what} was done at {note.at:.3f}, after it was recorded"
    for what, times in done.items():
        if not what.startswith(("rerun", "read", "undo")) and times > begun[what]:
            yield f"{what} was done {times} times, and begun {begun[what]} times in the log"


def undone_in_reverse(evidence: SimulationEvidence, name: str) -> Iterator[str]:
    """The last thing comes first, whoever does it. A worker taken for dead may do it late."""
    undone = [note for note in evidence.deeds.get(name, ()) if note.what.startswith("undo")]
    first = list(dict.fromkeys(note.what for note in undone))
    registered = [
        f"undo {e.title.removeprefix('undo ')}"
        for e in evidence.runs[name].records(r.UndoRegistered)
    ]
    due = [what for what in reversed(registered) if what in first]
    if registered and first != due:
        yield f"undone were {first}, and {due} would be the reverse"


def events_in_order(session: SessionEvidence) -> Iterator[str]:
    """The body is given those events that were sent first, each once; of two rivals one takes one.

    One that it was given and has not told of was given under an edition that is gone.
    """
    sent = [json.loads(e.payload) for e in session.records(r.EventSent) if e.name == EVENT]
    taken = [e.name for e in session.records(r.EventTaken) if e.event == EVENT]
    had = Counter((*inherited_events(session), *sent[: len(taken)]))
    # An emit is known by its name and count, not by what it carries. So an edition in which events
    # have changed places may tell of one again at a place that had told of none. The same code
    # tells of it once.
    told: dict[int, Counter[int]] = defaultdict(Counter)
    for e in session.records(r.ToolEmitted):
        if e.name == "got":
            edition, event = json.loads(e.data)
            told[edition][event] += 1
    for edition, given in told.items():
        if not given <= had:
            yield f"edition {edition} was given {given} of the events {had}, of {sent} sent"
    races = Counter(race for name in taken if (race := race_of(name)))
    yield from (
        f"both branches of {race} have taken an event" for race in races - Counter(set(races))
    )


def inherited_events(session: SessionEvidence) -> list[int]:
    """Return the events that the run before had taken, if this one tries it again."""
    steps = [step for e in session.records(r.JournalInherited) for step in e.steps.items()]
    return [
        json.loads(payload_of(known))
        for name, known in steps
        if name.rpartition("/")[2].startswith(f"event:{EVENT}#") and not is_void(known)
    ]


def race_of(wait: str) -> str:
    """Return which two waits for an event a wait is one of, if it is one of `RIVALS`."""
    branch = wait.rpartition("/")[0]
    scope, _, name = branch.rpartition("/")
    return f"{scope}/{name.partition(RIVALS)[0]}" if RIVALS in name else ""


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
                self._begun |= record.begun
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
