"""Whether sessions were told where they were anchored, and were reached from there.

Judged by the log: an event belongs to the thread that its session was anchored in at its offset.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from outlast.core import record as r
from outlast.core.event import type_of
from outlast.core.name import OF_CHANNEL
from outlast.integration.channel import DEFAULT_EVENTS
from outlast.testing.simulation.evidence import SessionEvidence, SimulationEvidence
from outlast.testing.simulation.history import TellerKilled, ThreadPosted, ThreadTold

SHORTLY = 300.0
"""A store's clock that jumps makes holds run out early, for so many seconds."""

Anchor = tuple[int, str]
"""The offset at which a session got the token of a thread, and the token."""


def anchors_hold(evidence: SimulationEvidence) -> Iterator[str]:
    told: dict[tuple[str, int], list[ThreadTold]] = {}
    for note in evidence.history.of(ThreadTold):
        told.setdefault((note.session_id, note.offset), []).append(note)
    for name, session in evidence.sessions.items():
        anchors = anchors_of(session)
        for entry in session.entries if anchors else ():
            event, offset = type_of(entry.record), entry.offset
            if event in DEFAULT_EVENTS:
                notes, where = told.pop((name, offset), []), anchored_at(anchors, offset)
                yield from is_told(evidence, f"{name}@{offset} {event}", where, notes)
        yield from in_order(evidence, name)
    for (name, offset), notes in told.items():
        yield f"{name}@{offset} was told in {notes[0].token}, and is no event of one anchored there"
    yield from posts_arrive(evidence)


def anchors_of(session: SessionEvidence) -> list[Anchor]:
    found = []
    for entry in session.entries:
        match entry.record:
            case r.SessionStarted(token=token) | r.SessionRekeyed(token=token):
                if token.startswith(OF_CHANNEL):
                    found.append((entry.offset, token))
    return found


def anchored_at(anchors: Sequence[Anchor], offset: int) -> str:
    """Return where a session was anchored when something happened; empty before it was."""
    before = [token for at, token in anchors if at < offset]
    return before[-1] if before else ""


def is_told(
    evidence: SimulationEvidence, what: str, where: str, notes: Sequence[ThreadTold]
) -> Iterator[str]:
    if where and not any(note.taken for note in notes):
        yield f"{what} was not told in {where}"
    for note in notes:
        if note.token != where:
            yield f"{what} was told in {note.token}, and its session was anchored in {where or '-'}"
    for first, second in pairwise(notes):
        if first.taken and not is_excused(evidence, first, second):
            yield f"{what} was told twice by {first.who} and {second.who}"


def is_excused(evidence: SimulationEvidence, first: ThreadTold, second: ThreadTold) -> bool:
    """Say whether a teller may have lost what it had told, or the hold on it."""
    history = evidence.history
    if any(
        kill.teller == first.who and first.number < kill.number < second.number
        for kill in history.of(TellerKilled)
    ):
        return True
    jumps = (history.notes[number - 1] for number in evidence.jumps_of_store)
    return any(first.at - SHORTLY < jump.at <= second.at for jump in jumps)


def in_order(evidence: SimulationEvidence, name: str) -> Iterator[str]:
    """What a thread is told of a session comes in the order of its log."""
    last: dict[str, int] = {}
    seen: set[int] = set()
    for note in evidence.history.of(ThreadTold):
        if note.session_id == name and note.offset not in seen:
            if note.offset < last.get(note.token, 0):
                yield f"{name}@{note.offset} was told in {note.token} behind {last[note.token]}"
            last[note.token] = note.offset
            seen.add(note.offset)


def posts_arrive(evidence: SimulationEvidence) -> Iterator[str]:
    """What is said in a thread reaches the session that has it, also at an old address."""
    owners: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for name, session in evidence.sessions.items():
        for offset, token in anchors_of(session):
            owners.setdefault((session.info.tenant, token), []).append((name, offset))
    seen: set[str] = set()
    for post in evidence.history.of(ThreadPosted):
        if post.post in seen:  # a repeated one has the receipt of the first time
            continue
        seen.add(post.post)
        known = owners.get((post.tenant, post.token), [])
        if not any(name == post.session_id and at < post.offset for name, at in known):
            yield f"{post.post} in {post.token} reached {post.session_id}, which was not there"
        for name, at in known:
            got = evidence.written(name, at)
            is_living = not evidence.sessions[name].info.over
            if name != post.session_id and is_living and got and got.number <= post.asked_at:
                yield f"{post.post} in {post.token} did not reach {name}, which has the thread"
