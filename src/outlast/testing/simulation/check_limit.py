"""Whether no more ran at once, and no more began in a while, than limits allow."""

from collections.abc import Collection, Iterator

from outlast.core import record as r
from outlast.core.limit import Bound, freed_by
from outlast.core.record import Entry
from outlast.testing.simulation.evidence import Place, SimulationEvidence
from outlast.testing.simulation.history import CallPermitted, CallQueued, CommitWritten, LaneClaimed
from outlast.testing.simulation.random_agent import AT_ONCE, ConcurrencyBound

Running = dict[str, set[tuple[str, str]]]
"""The calls that have begun and have no outcome yet, by limit."""

MODEL = "model:"
"""How the store's names of the limits of models begin."""


def limits_hold(evidence: SimulationEvidence) -> Iterator[str]:
    yield from calls_at_once(evidence)
    yield from lanes_at_once(evidence)
    yield from starts_in_a_while(evidence)


# Calls, by the order of the commits


def calls_at_once(evidence: SimulationEvidence) -> Iterator[str]:
    """A call has begun when that is written, and is at work until its end is written.

    Or until it asks to begin at another model: it then has ended at the first, which is written
    with its beginning at the other. It may have to wait for that one. Or until its lane rests: a
    call that a crash has cut off is made again later, when a budget has room for it.
    """
    running: Running = {}
    moves = model_moves(evidence)
    tools = {
        (name, e.call_id): e.tool
        for name, session in evidence.sessions.items()
        for e in session.records(r.ToolRequested)
    }
    for name, entry in in_order(evidence):
        wrote = evidence.written(name, entry.offset)
        while wrote and moves and moves[-1].number < wrote.number:
            leave_other_models(running, moves.pop())
        forget(running, name, entry)
        if wrote and isinstance(entry.record, r.SessionWaiting):
            let_go(running, name, wrote.frees)
        if not isinstance(entry.record, r.ToolStarted | r.ModelStarted | r.SummaryStarted):
            continue
        call = (name, entry.record.call_id)
        if isinstance(entry.record, r.ToolStarted):
            limit = AT_ONCE.get(tools.get(call, ""))
        else:
            limit = of_model(evidence, name, entry.record.model)
        if limit:
            key = limit.key(evidence.sessions[name].info.tenant)
            at_work = running.setdefault(key, set())
            at_work.add(call)
            if len(at_work) > limit.most:
                yield f"{len(at_work)} calls ran at once under {key}: {sorted(at_work)}"


def of_model(evidence: SimulationEvidence, name: str, model: str) -> ConcurrencyBound | None:
    agent = evidence.agent(name)
    if agent.model_limit is None or not agent.model_limit.concurrency:
        return None
    return ConcurrencyBound(f"model {model}", agent.model_limit.concurrency, per_tenant=False)


def model_moves(evidence: SimulationEvidence) -> list[CallPermitted | CallQueued]:
    """Return when calls asked to begin at a model, the last one first."""
    notes = [n for n in evidence.history.notes if isinstance(n, CallPermitted | CallQueued)]
    return [note for note in notes if any(is_model(bound) for bound in note.bounds)][::-1]


def leave_other_models(running: Running, note: CallPermitted | CallQueued) -> None:
    models = {f"model {bound.name.removeprefix(MODEL)}" for bound in note.bounds if is_model(bound)}
    for key, calls in running.items():
        if key.startswith("model ") and key not in models:
            calls.discard((note.session_id, note.call_id))


def is_model(bound: Bound) -> bool:
    return bound.name.startswith(MODEL)


def in_order(evidence: SimulationEvidence) -> list[tuple[str, Entry]]:
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


def let_go(running: Running, name: str, call_ids: Collection[str]) -> None:
    for calls in running.values():
        calls.difference_update((name, call_id) for call_id in call_ids)


# Lanes, by the order of the claims


def lanes_at_once(evidence: SimulationEvidence) -> Iterator[str]:
    """A worker that is given a lane finds no more at work than the agent may have."""
    owners: dict[Place, str] = {}
    for note in evidence.history.notes:
        if isinstance(note, CommitWritten) and note.released:
            owners.pop((note.session_id, note.lane), None)
        elif isinstance(note, LaneClaimed):
            place = (note.session_id, note.lane)
            had_it, owners[place] = owners.get(place) == note.worker, note.worker
            most = evidence.policy(note.session_id).at_once
            if 0 < most < note.at_work and not had_it:
                yield f"{place} was given to {note.worker} as one of {note.at_work}, not {most}"


# Starts, by the store's clock


def starts_in_a_while(evidence: SimulationEvidence) -> Iterator[str]:
    """A rate is paid for before a call begins, and there are only so many starts to be had."""
    paid_until: dict[str, float] = {}
    for note in evidence.history.of(CallPermitted):
        for bound in note.bounds:
            if not bound.rate:
                continue
            price = bound.per / bound.rate
            paid = max(paid_until.get(bound.name, 0.0), note.clock) + price
            paid_until[bound.name] = paid
            if paid - note.clock > bound.per + price:  # the store counts in whole milliseconds
                yield f"{note.session_id} {note.call_id} began too early for {bound.name}"
    let_in = {(note.session_id, note.call_id) for note in evidence.history.of(CallPermitted)}
    for name, session in evidence.sessions.items():
        for started in session.records(r.ModelStarted):
            if has_rate(evidence, name, started) and (name, started.call_id) not in let_in:
                yield f"{name} {started.call_id} began without having been let in"


def has_rate(evidence: SimulationEvidence, name: str, started: r.ModelStarted) -> bool:
    agent = evidence.agent(name)
    limits = [agent.model_limit]
    if started.attempt == 1 and started.call_id.endswith(".s1"):
        limits.append(agent.limit)
    return any(limit is not None and limit.rate for limit in limits)
