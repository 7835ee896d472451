"""Promises about waiting: a wait has one end, which comes in its time and not before.

Time is the store's. A worker knows it from the answers that it gets, so its own clock may jump and
nothing may come early for it. Where the store's clock has jumped since the lane was claimed, it
cannot be said what the worker should have known; and where any has, how late it may be.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from outlast.core import record as r
from outlast.core.record import Entry
from outlast.testing.simulation.evidence import SessionEvidence, SimulationEvidence
from outlast.testing.simulation.history import CallbackMade, CommitWritten

SLOW = 60_000
"""Milliseconds that something may take from when it was decided to when it was written."""

OPENED = (r.RequestOpened, r.CallbackOpened, r.AuthorizationRequired)
CLOSED = (
    r.RequestResolved,
    r.RequestExpired,
    r.CallbackClosed,
    r.AuthorizationCompleted,
    r.AuthorizationFailed,
)
BEGUN = (r.TurnStarted, r.ModelStarted, r.ToolStarted)


def waits_end_in_their_time(evidence: SimulationEvidence) -> Iterator[str]:
    for name, session in evidence.sessions.items():
        yield from (f"{name}: {wrong}" for wrong in ends_once(session))
        yield from (f"{name}: {wrong}" for wrong in ends_early(evidence, session))
        yield from (f"{name}: {wrong}" for wrong in is_passed_over(session))
        yield from (f"{name}: {wrong}" for wrong in outlives_its_deadline(evidence, session))


def ends_once(session: SessionEvidence) -> Iterator[str]:
    records = [entry.record for entry in session.entries]
    opened = Counter(e.request_id for e in records if isinstance(e, OPENED))
    closed = Counter(e.request_id for e in records if isinstance(e, CLOSED))
    for request_id in opened | closed:
        if (opened[request_id], closed[request_id]) != (1, 1):
            times = f"{opened[request_id]} times, and ended {closed[request_id]} times"
            yield f"the wait {request_id} began {times}"
    timers = Counter((e.call_id, e.name) for e in session.records(r.TimerSet))
    fired = Counter((e.call_id, e.name) for e in session.records(r.TimerFired))
    is_run = session.info.mode == "run"  # whose body may give a timer up, and come to it again
    for timer in timers | fired:
        if (timers[timer] != 1 and not (is_run and timers[timer])) or fired[timer] > 1:
            yield f"the timer {timer} was set {timers[timer]} times, and fired {fired[timer]} times"


def is_passed_over(session: SessionEvidence) -> Iterator[str]:
    """An answer that was accepted came in time: its wait cannot run out any more."""
    expired = {e.request_id for e in map(expiry, session.entries) if e}
    for e in session.records(r.DeliveryQueued):
        if e.kind == "reply" and e.request_id in expired:
            yield f"{e.delivery_id} answered {e.request_id}, which ran out all the same"


# In time


def ends_early(evidence: SimulationEvidence, session: SessionEvidence) -> Iterator[str]:
    dues: dict[object, int] = {}
    for entry in session.entries:
        match entry.record:
            case r.TimerSet(call_id=call_id, name=name, due_at=due_at):
                dues[call_id, name] = due_at
            case (
                r.RequestOpened(origin="") | r.CallbackOpened() | r.AuthorizationRequired(origin="")
            ):
                dues[entry.record.request_id] = entry.record.expires_at  # a child tells of its own
            case r.TimerFired(call_id=call_id, name=name):
                yield from early(evidence, session, entry, dues.get((call_id, name), 0))
        if ended := expiry(entry):
            yield from early(evidence, session, entry, dues.get(ended.request_id, 0))


def expiry(entry: Entry) -> r.RequestExpired | r.CallbackClosed | r.AuthorizationFailed | None:
    """Return a record if it says that a wait ran out."""
    match entry.record:
        case (
            r.RequestExpired()
            | r.CallbackClosed(how="expired")
            | r.AuthorizationFailed(how="expired")
        ):
            return entry.record
    return None


def early(
    evidence: SimulationEvidence, session: SessionEvidence, entry: Entry, due: int
) -> Iterator[str]:
    wrote = evidence.written(session.info.session_id, entry.offset)
    if wrote and wrote.clock < due and is_told_the_time(evidence, wrote, evidence.jumps_of_store):
        yield f"{entry.record} came {due - wrote.clock} ms too early"


def is_told_the_time(
    evidence: SimulationEvidence, wrote: CommitWritten, jumps: Sequence[int]
) -> bool:
    """Whether none of these jumps of clocks was after the writer claimed its lane."""
    place = (wrote.session_id, wrote.lane)
    claimed = [c.number for c in evidence.claims.get(place, ()) if c.fence == wrote.fence]
    jumped = (n for n in jumps if claimed and claimed[0] < n < wrote.number)
    return bool(claimed) and not any(jumped)


def outlives_its_deadline(evidence: SimulationEvidence, session: SessionEvidence) -> Iterator[str]:
    [started] = session.records(r.SessionStarted)
    by_delivery = {e.delivery_id: e.deadline_at for e in session.records(r.DeliveryQueued)}
    if started.deadline_at and not session.info.over:
        yield "it has a deadline, and goes on for ever"
    deadlines: dict[str, int] = {}
    for entry in session.entries:
        e = entry.record
        if isinstance(e, r.UndoStarted):
            return  # which no deadline bounds
        if isinstance(e, r.TurnStarted):
            deadlines[entry.lane] = by_delivery.get(e.delivery_id, 0)
        if not isinstance(e, BEGUN):
            continue
        wrote = evidence.written(session.info.session_id, entry.offset)
        for deadline in (started.deadline_at, deadlines.get(entry.lane, 0)):
            late = wrote.clock - deadline - SLOW if wrote and deadline else 0
            if wrote and late > 0 and is_told_the_time(evidence, wrote, evidence.jumps):
                yield f"{e} was begun {late} ms too late for its deadline"


# Replies from outside


def callers_are_quoted(evidence: SimulationEvidence) -> Iterator[str]:
    """A callback is closed with a value that was posted to it before."""
    said: dict[tuple[str, str], int] = {}
    for note in evidence.history.of(CallbackMade):
        said.setdefault((note.request_id, note.body), note.number)
    for name, session in evidence.sessions.items():
        for entry in session.entries:
            e = entry.record
            if not isinstance(e, r.CallbackClosed) or e.how != "answered":
                continue
            wrote = evidence.written(name, entry.offset)
            number = said.get((e.request_id, json.loads(e.value)["body"]))
            if number is None or wrote is None or wrote.number < number:
                yield f"{name}@{entry.offset}: nobody said {e.value} to {e.request_id}"
