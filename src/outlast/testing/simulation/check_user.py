"""Promises to those outside: 7, 8 and 9.

What was accepted is not lost, messages are taken in order, readers see what is kept, and waiting
costs nothing. What deliveries may come to is known to `model.py`; the numbers are those of the
promises in `docs/design/index.md`.
"""

from collections import Counter
from collections.abc import Iterator

from outlast.core import record as r
from outlast.testing.simulation.evidence import SessionEvidence, SimulationEvidence
from outlast.testing.simulation.history import EventRead, ReceiptReceived, UserAsked
from outlast.testing.simulation.model import DeliveryFacts, may_settle

# Nothing accepted is lost


def nothing_accepted_is_lost(evidence: SimulationEvidence) -> Iterator[str]:
    for receipt in evidence.history.of(ReceiptReceived):
        session = evidence.sessions.get(receipt.session_id)
        if session is None or receipt.delivery_id not in arrivals_at(session, receipt.offset):
            yield f"{receipt.session_id}@{receipt.offset}: {receipt.delivery_id} is not in the log"
    for name, session in evidence.sessions.items():
        yield from settled_once(name, session, evidence)
        yield from taken_in_order(name, session)


WITH_RECEIPT = (
    r.DeliveryQueued,
    r.CancelRequested,
    r.StateChangeRequested,
    r.ContextChangeRequested,
)


def arrivals_at(session: SessionEvidence, offset: int) -> list[str]:
    return [
        e.record.delivery_id
        for e in session.entries[offset - 1 : offset]
        if isinstance(e.record, WITH_RECEIPT)
    ]


def settled_once(
    name: str, session: SessionEvidence, evidence: SimulationEvidence
) -> Iterator[str]:
    arrived: dict[str, str] = {}
    for entry in session.entries:
        e = entry.record
        if isinstance(e, Arrived):
            if e.delivery_id in arrived:
                yield f"{name}@{entry.offset}: {e.delivery_id} arrived twice"
            arrived[e.delivery_id] = kind_of(e)
    settled = session.records(r.DeliverySettled)
    for delivery_id, times in Counter(e.delivery_id for e in settled).items():
        if times > 1:
            yield f"{name}: {delivery_id} was settled {times} times"
    for e in settled:
        facts = facts_of(evidence, session, arrived.get(e.delivery_id, ""))
        if e.outcome not in may_settle(facts):
            yield f"{name}: {e.delivery_id} is settled as {e.outcome}: {facts}"
    for delivery_id in arrived.keys() - {e.delivery_id for e in settled}:
        yield f"{name}: {delivery_id} was accepted and never settled"


Arrived = (
    r.DeliveryQueued
    | r.CancelRequested
    | r.RequestRelayed
    | r.StateChangeRequested
    | r.ContextChangeRequested
    | r.EventSent
)


def kind_of(e: Arrived) -> str:
    match e:
        case r.DeliveryQueued():
            return e.kind
        case r.StateChangeRequested() | r.ContextChangeRequested():
            return "change"
        case r.EventSent():
            return "event"
    return "cancel" if isinstance(e, r.CancelRequested) else "relay"


def facts_of(evidence: SimulationEvidence, session: SessionEvidence, kind: str) -> DeliveryFacts:
    name = session.info.session_id
    asked = evidence.history.of(UserAsked)
    stopped = any(a.what in ("cancel", "end") and a.session_id == name for a in asked)
    interrupts = evidence.policy(name).on_busy == "interrupt"
    return DeliveryFacts(kind=kind, stopped=stopped or interrupts, over=bool(session.info.over))


def taken_in_order(name: str, session: SessionEvidence) -> Iterator[str]:
    """Messages are taken first come, first served, in each lane."""
    waiting: dict[str, list[str]] = {}
    for entry in session.entries:
        match entry.record:
            case r.DeliveryQueued(kind="message", delivery_id=delivery_id):
                waiting.setdefault(entry.lane, []).append(delivery_id)
            case (
                r.TurnStarted(delivery_id=delivery_id)
                | r.DeliveryJoined(delivery_id=delivery_id)
                | r.DeliverySettled(delivery_id=delivery_id)
            ):
                queue = waiting.get(entry.lane, [])
                if delivery_id in queue:
                    if queue[0] != delivery_id:
                        yield f"{name}@{entry.offset}: {delivery_id} was taken before {queue[0]}"
                    queue.remove(delivery_id)


# Listings


def sessions_are_found_by_their_tags(evidence: SimulationEvidence) -> Iterator[str]:
    """Every start of a user has a tag that no other has; children have none."""
    for name, session in evidence.talks.items():
        due = () if session.info.parent else (name,)
        if session.alike != due:
            yield f"{name}: by its tags are found {session.alike or 'no sessions'}"


# Readers


def readers_see_what_is_kept(evidence: SimulationEvidence) -> Iterator[str]:
    given: dict[tuple[str, str], list[EventRead]] = {}
    for note in evidence.history.of(EventRead):
        given.setdefault((note.who, note.session_id), []).append(note)
    for (who, name), notes in given.items():
        events = evidence.sessions[name].events if name in evidence.sessions else ()
        seen = tuple((note.offset, note.event) for note in notes)
        if seen != events[: len(seen)]:
            pairs = zip(seen, events, strict=False)
            wrong = next((a for a, b in pairs if a != b), seen[-1])
            yield f"{who} was given {name}@{wrong[0]}, which is not what the log has there"
        for note in notes:
            wrote = evidence.written(name, note.offset)
            if wrote and wrote.number > note.number:
                yield f"{who} was given {name}@{note.offset} before it was written"


# Waiting is free


def waiting_is_free(evidence: SimulationEvidence) -> Iterator[str]:
    yield from evidence.held
