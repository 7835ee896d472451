"""Promises about what was done to the world outside: 4, 5, and what transactions have done.

Effects that the world saw are held against the log: begun only when recorded, not repeated where
they must not be. What may become of a call is known to `model.py`.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from outlast.core import record as r
from outlast.core.record import Entry
from outlast.testing.simulation.evidence import SessionEvidence, SimulationEvidence, outcomes
from outlast.testing.simulation.history import CommitWritten, EffectBegan
from outlast.testing.simulation.model import CallFacts, may_end, may_start
from outlast.testing.simulation.random_agent import TRANSACTIONAL

R = TypeVar("R")
Attempt = tuple[str, str, int]


# Recorded work never re-runs


def recorded_work_never_reruns(evidence: SimulationEvidence) -> Iterator[str]:
    begun: set[tuple[str, Attempt]] = set()
    starts = {name: started(session) for name, session in evidence.sessions.items()}
    ends = {name: ended(session) for name, session in evidence.sessions.items()}
    for note in evidence.history.of(EffectBegan):
        what = f"at {note.at:.3f} {note.who}: {note.session_id} {note.kind} {note.call_id}"
        kind = "tool" if note.kind == "step" else note.kind
        attempt = (kind, note.call_id, note.attempt)
        start = starts[note.session_id].get(attempt)
        wrote = evidence.written(note.session_id, start.offset) if start else None
        if wrote is None or wrote.number > note.number:
            if not only_reads(evidence, note):
                yield f"{what} began, and the log did not say so"
            continue
        if note.kind != "step" and (note.session_id, attempt) in begun:
            yield f"{what} began its attempt {note.attempt} twice"
        begun.add((note.session_id, attempt))
        known = [ends[note.session_id].get(note.call_id), *steps_of(evidence, note)]
        for entry in known:
            if entry and is_known(evidence, note, wrote, entry):
                yield f"{what} {note.name} began again after its outcome at {entry.offset}"
    for name, session in evidence.sessions.items():
        yield from second_calls(name, session)
        yield from lost_for_nothing(name, session, evidence)


def only_reads(evidence: SimulationEvidence, note: EffectBegan) -> bool:
    """Whether this was a tool without an effect: it need not be in the log before it begins."""
    return note.kind == "tool" and evidence.policy(note.session_id).tool(note.name).readonly


def steps_of(evidence: SimulationEvidence, note: EffectBegan) -> list[Entry]:
    """Return where the log says what a step returned that is being run."""
    if note.kind != "step":
        return []
    return [
        entry
        for entry in evidence.sessions[note.session_id].entries
        if isinstance(entry.record, r.ToolStepRecorded)
        and (entry.record.call_id, entry.record.name) == (note.call_id, f"step:{note.name}")
    ]


def started(session: SessionEvidence) -> dict[Attempt, Entry]:
    found: dict[Attempt, Entry] = {}
    for entry in session.entries:
        match entry.record:
            case r.ModelStarted(call_id=call_id, attempt=attempt):
                found["model", call_id, attempt] = entry
            case r.SummaryStarted(call_id=call_id, attempt=attempt):
                found["summary", call_id, attempt] = entry
            case r.ToolStarted(call_id=call_id, attempt=attempt):
                found["tool", call_id, attempt] = entry
    return found


def ended(session: SessionEvidence) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for entry, (call_id, _, _) in outcomes(session):
        found.setdefault(call_id, entry)
    return found


def is_known(
    evidence: SimulationEvidence, note: EffectBegan, start: CommitWritten, end: Entry
) -> bool:
    """Whether the worker that began this could know of its outcome.

    A worker whose lane was claimed by another meanwhile cannot: see
    docs/explanation/not-promised.md.
    """
    wrote = evidence.written(note.session_id, end.offset)
    if wrote is None or wrote.number > note.number:
        return False
    return evidence.fence_at((note.session_id, end.lane), note) == start.fence


def second_calls(name: str, session: SessionEvidence) -> Iterator[str]:
    """A model is called again after a failure, or once for each time that its lane was lost."""
    calls = Counter(e.call_id for e in session.records(r.ModelStarted))
    calls -= Counter(e.call_id for e in session.records(r.ModelRetrying))
    calls -= Counter(e.call_id for e in session.records(r.ModelSwitched))
    calls -= Counter(e.call_id for e in session.records(r.ProviderUnavailable))
    calls -= Counter(e.call_id for e in session.records(r.ProviderStillUnavailable))
    calls -= Counter(e.call_id for e in session.records(r.ContextOverflowed))
    lost = takeovers(session)
    again: Counter[str] = Counter()
    for entry in session.entries:
        if isinstance(entry.record, r.ModelStarted) and entry.record.attempt == 1:
            again[entry.lane] += max(0, calls[entry.record.call_id] - 1)
    for lane, times in again.items():
        if times > lost[lane]:
            yield f"{name} {lane}: {times} model calls again, {lost[lane]} times lost"


def takeovers(session: SessionEvidence) -> Counter[str]:
    """Count how often each lane changed hands in the middle of its work."""
    taken = (e.lane for e in session.entries if isinstance(e.record, r.LaneTakenOver))
    return Counter(taken)


def lost_for_nothing(
    name: str, session: SessionEvidence, evidence: SimulationEvidence
) -> Iterator[str]:
    """A lane changes hands in the middle of its work only where a fault made it."""
    taken: Counter[str] = Counter()
    for entry in session.entries:
        e = entry.record
        if isinstance(e, r.LaneTakenOver) and not e.graceful:
            taken[entry.lane] += has_changed_hands(evidence, name, entry)
    for lane, times in taken.items():
        if times > evidence.reasons:
            yield f"{name} {lane} was taken over {times} times, with {evidence.reasons} reasons"


def has_changed_hands(evidence: SimulationEvidence, name: str, entry: Entry) -> bool:
    """Whether nothing was written before under the fence of a takeover.

    An owner that lost a race for a key or a token takes over from itself.
    """
    taken = evidence.written(name, entry.offset)
    return taken is not None and not any(
        (wrote.lane, wrote.fence) == (taken.lane, taken.fence) and wrote.number < taken.number
        for wrote in evidence.writes[name]
    )


# An interrupted effect is never repeated silently


def interrupted_effects_are_not_repeated(evidence: SimulationEvidence) -> Iterator[str]:
    for name, session in evidence.sessions.items():
        wanted = {e.call_id: e for e in session.records(r.ToolRequested)}
        facts = {call_id: facts_of(evidence, session, e) for call_id, e in wanted.items()}
        for call_id, known in facts.items():
            if known.starts > may_start(known):
                yield f"{name} {call_id} was started {known.starts} times: {known}"
        for entry, (call_id, how, value) in outcomes(session):
            if how == "answered" or call_id not in facts:
                continue
            if is_given(session, entry.record, wanted[call_id]):
                continue
            if how == "completed" and wanted[call_id].tool == TRANSACTIONAL:
                continue  # its row tells the outcome, even if its worker died
            if not may_end(facts[call_id], how, value):
                yield f"{name}@{entry.offset} {call_id} {how} with {value!r}: {facts[call_id]}"


def is_given(session: SessionEvidence, e: r.AnyRecord, wanted: r.ToolRequested) -> bool:
    """Whether an outcome came from elsewhere: a duplicate's, a human's, or the answer itself.

    Also where another session got the continuation token that the call wanted to set.
    """
    if isinstance(e, r.ToolFailed) and e.error.code == "TOKEN_TAKEN":
        return True
    if isinstance(e, r.ToolCompleted) and (e.same_as or wanted.output):
        return True
    if isinstance(e, r.ToolInterrupted) and e.reason.startswith("the same call"):
        return True
    return bool(answers(session, wanted.call_id, "done"))


def answers(session: SessionEvidence, call_id: str, option: str) -> int:
    """Count how often a human chose an option when asked about a call."""
    asked = {q.request_id for q in session.records(r.RequestOpened) if q.call_id == call_id}
    given = session.records(r.RequestResolved)
    return sum(answer.request_id in asked and answer.option == option for answer in given)


def facts_of(
    evidence: SimulationEvidence, session: SessionEvidence, wanted: r.ToolRequested
) -> CallFacts:
    call_id, name = wanted.call_id, session.info.session_id
    lane = next(entry.lane for entry in session.entries if entry.record is wanted)
    ends = evidence.ends.get((name, call_id), [])

    def mine(kind: type[R]) -> list[R]:
        return [e for e in session.records(kind) if getattr(e, "call_id", "") == call_id]

    cuts = [e for e in mine(r.ToolInterrupted) if not e.final]
    return CallFacts(
        on_interrupt=evidence.policy(name).tool(wanted.tool).on_interrupt,
        starts=len(mine(r.ToolStarted)),
        waits=len(mine(r.ToolWaiting)),
        failures=sum(bool(e.again_at) for e in mine(r.ToolFailed)),
        cuts=takeovers(session)[lane] + len(cuts),
        allowed=answers(session, call_id, "rerun"),
        returned=frozenset(note.value for note in ends if note.how == "returned"),
        raised=frozenset(note.value for note in ends if note.how == "raised"),
    )


# A transaction and the record of its outcome are one


def transactions_are_recorded(evidence: SimulationEvidence) -> Iterator[str]:
    kept = Counter(row for row in evidence.rows if row[0] not in evidence.runs)
    told: Counter[tuple[str, ...]] = Counter()
    for name, session in evidence.sessions.items():
        booked = {e.call_id for e in session.records(r.ToolRequested) if e.tool == TRANSACTIONAL}
        for e in session.records(r.ToolCompleted):
            if e.call_id in booked:
                told[name, e.call_id, msgspec.json.decode(e.value)] += 1
    for row in (kept - told).elements():
        yield f"{row} was kept, and the log does not say so"
    for row in (told - kept).elements():
        yield f"the log says {row}, and it was not kept"
