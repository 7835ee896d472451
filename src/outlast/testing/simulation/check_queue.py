"""Whether no more turns had a place in a queue than its settings let, and none worked without one.

Judged by what the store granted and took back, in that order, and by what the settings were then.
"""

from collections import defaultdict
from collections.abc import Iterator

from outlast.core import record as r
from outlast.core.limit import Bound
from outlast.core.name import OF_QUEUE, lane_of
from outlast.core.queue import most_under, queue_of
from outlast.core.record import QueuePlace
from outlast.testing.simulation.evidence import SimulationEvidence
from outlast.testing.simulation.history import (
    CallPermitted,
    CallQueued,
    CommitWritten,
    QueueChanged,
)

LATE = 120.0
"""For so many seconds settings that were read may be asked by: answers come late, and are lost."""
BEGINS = frozenset({"model.started", "tool.started"})
AWAY, NOT_AWAY = (
    frozenset({"provider.unavailable", "provider.still_unavailable"}),
    frozenset({"provider.available", "turn.completed", "turn.failed", "turn.cancelled"}),
)

Turn = tuple[str, str]
"""A session, and the name by which one of its turns asks for a place."""


def queues_hold(evidence: SimulationEvidence) -> Iterator[str]:
    places = places_of(evidence)
    held: dict[str, set[Turn]] = defaultdict(set)
    away: set[tuple[str, str]] = set()
    changes: list[QueueChanged] = []
    for note in evidence.history.notes:
        match note:
            case QueueChanged():
                changes.append(note)
            case CallPermitted() | CallQueued():
                turn = (note.session_id, note.call_id)
                ours = [bound for bound in note.bounds if bound.name.startswith(OF_QUEUE)]
                drop(held, turn, but=[bound.name for bound in ours])
                for bound in ours:
                    if isinstance(note, CallPermitted) or bound.name in note.held:
                        yield from granted(bound, held[bound.name], turn)
                        yield from is_known(bound, changes, note)
            case CommitWritten() if note.session_id in places:
                lane = (note.session_id, note.lane)
                yield from works(note, held, lane in away)
                away = away - {lane} if NOT_AWAY & {*note.records} else away
                away = away | {lane} if AWAY & {*note.records} else away
                for call_id in note.frees:
                    drop(held, (note.session_id, call_id), but=())


def places_of(evidence: SimulationEvidence) -> dict[str, QueuePlace]:
    return {
        name: started.place
        for name, session in evidence.sessions.items()
        for started in session.records(r.SessionStarted)
        if started.place
    }


def drop(held: dict[str, set[Turn]], turn: Turn, but: object) -> None:
    """Take a turn out of all lines but those that it asks for now."""
    for name, turns in held.items():
        if name not in but:  # type: ignore[operator]
            turns.discard(turn)


def granted(bound: Bound, turns: set[Turn], turn: Turn) -> Iterator[str]:
    """A turn that is given a place finds fewer than it asked for; one that has it keeps it."""
    if not bound.concurrency or turn in turns:
        return
    turns.add(turn)
    if len(turns) > bound.concurrency:
        yield f"{len(turns)} turns have a place under {bound.name}: {sorted(turns)}"


def is_known(
    bound: Bound, changes: list[QueueChanged], note: CallPermitted | CallQueued
) -> Iterator[str]:
    """A turn asks by settings that are in force, or were a moment ago."""
    ours = [change for change in changes if change.queue == queue_of(bound.name)]
    recent = [change for change in ours if change.at > note.at - LATE]
    in_force = [*ours[: len(ours) - len(recent)][-1:], *recent]
    if bound.concurrency and bound.concurrency not in {
        most_under(bound.name, change.settings) for change in in_force
    }:
        yield f"{note.session_id} {note.call_id} was let in by {bound}, which is not in force"


def works(note: CommitWritten, held: dict[str, set[Turn]], is_away: bool) -> Iterator[str]:
    """A call begins in a turn that has its place; one that asks for its provider needs none."""
    if is_away or not BEGINS & {*note.records}:
        return
    ours = {turn for turns in held.values() for turn in turns if turn[0] == note.session_id}
    if not any(lane_of(call_id) == note.lane for _, call_id in ours):
        yield f"{note.session_id} {note.lane} began {note.records} without a place in its queue"
