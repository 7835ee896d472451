"""Whether an outage of the provider is waited out: told once, for as long as there is patience.

Told from the logs of all lanes and the store's time of each commit. Where the store's clock has
jumped since the writer claimed its lane, it cannot be said what that writer should have known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from outlast.core import record as r
from outlast.core.breaker import LONGEST_PAUSE
from outlast.core.record import Entry
from outlast.testing.simulation.check_limit import in_order
from outlast.testing.simulation.check_wait import SLOW, is_told_the_time
from outlast.testing.simulation.evidence import SessionEvidence, SimulationEvidence
from outlast.testing.simulation.history import (
    CommitWritten,
    PermitKept,
    ProviderSpoke,
    WorkerStarted,
)

UNCERTAIN = 10_000
"""Milliseconds by which a pause may be told longer than it is, where the store is slow."""
UNDER_WAY = 1.0
"""Seconds within which a call may have passed the breaker before another's failure was written."""


def outages_are_waited_out(evidence: SimulationEvidence) -> Iterator[str]:
    for name, session in evidence.sessions.items():
        lanes: dict[str, LaneOutages] = {}
        for entry in session.entries:
            lane = lanes.setdefault(entry.lane, LaneOutages(evidence, session))
            for wrong in lane.see(entry):
                yield f"{name}@{entry.offset} {entry.lane}: {wrong}"
    yield from probes_come_in_their_time(evidence)
    for kept in evidence.history.of(PermitKept):
        yield f"{kept.session_id} {kept.call_id} waits for the provider and holds {kept.name}"


# In line


class LinePause(Struct, frozen=True):
    """For how long a provider is left alone that has just failed, and the commit that says so.

    `blocked`: time alone does not mend it, so a worker that starts has it asked at once.
    """

    until: int
    wrote: CommitWritten
    blocked: bool


def probes_come_in_their_time(evidence: SimulationEvidence) -> Iterator[str]:
    """Of the calls of an agent that stand in line, none is made while its provider is left alone.

    Unless that has answered another one meanwhile. Each model of an agent has a line of its own.
    """
    spoke: dict[tuple[str, str], list[int]] = {}
    for note in evidence.history.of(ProviderSpoke):
        spoke.setdefault((note.agent, note.model), []).append(note.number)
    pauses: dict[tuple[str, str], LinePause] = {}
    in_line: set[tuple[str, str]] = set()
    began: dict[tuple[str, str], int] = {}
    for name, entry in in_order(evidence):
        e, wrote = entry.record, evidence.written(name, entry.offset)
        agent = evidence.sessions[name].info.agent
        assert wrote is not None
        if isinstance(e, r.ProviderUnavailable | r.ProviderStillUnavailable) and e.in_line:
            in_line.add((name, e.call_id))
            if e.asked:
                until = e.not_before if e.next_model in ("", e.model) else e.retry_at
                before, asked_at = pauses.get((agent, e.model)), began.get((name, e.call_id), 0)
                if before and is_time_of_probe(before, until, wrote, asked_at):
                    until = min(until, before.until)
                # A failure within the pause of a key that is refused tells nothing new of it.
                within = before is not None and before.blocked and until <= before.until
                pauses[agent, e.model] = LinePause(until, wrote, e.blocked or within)
        elif isinstance(e, r.ProviderAvailable):
            pauses.pop((agent, e.model), None)
        elif isinstance(e, r.ModelSwitched) and e.asked:
            # What another call was told may have been the time that this probe had to answer.
            pauses[agent, e.left] = LinePause(e.retry_at, wrote, e.blocked)
        elif isinstance(e, r.ModelStarted):
            began[name, e.call_id] = wrote.number
            if (name, e.call_id) not in in_line:
                continue
            in_line.discard((name, e.call_id))
            pause = pauses.get((agent, e.model))
            if pause and is_early(evidence, pause, wrote, spoke.get((agent, e.model), [])):
                early = pause.until - wrote.clock
                yield f"{name}@{entry.offset} {e.call_id} is made {early} ms too early"


def is_time_of_probe(before: LinePause, until: int, wrote: CommitWritten, asked_at: int) -> bool:
    """Say whether a call may have been told the minute that another one had to answer.

    Both asked at the same time, so the other's failure began the pause, and perhaps a shorter one.
    """
    is_within = before.until > wrote.clock and asked_at < before.wrote.number
    return is_within and until <= wrote.clock + LONGEST_PAUSE


def is_early(
    evidence: SimulationEvidence, pause: LinePause, wrote: CommitWritten, spoke: list[int]
) -> bool:
    if wrote.clock + UNCERTAIN >= pause.until or wrote.at - pause.wrote.at < UNDER_WAY:
        return False
    since, until = pause.wrote.number, wrote.number
    # What was answered or what time it was may be known before the failure is written.
    claimed = [
        claim.number
        for each in (pause.wrote, wrote)
        for claim in evidence.claims.get((each.session_id, each.lane), ())
        if claim.fence == each.fence
    ]
    first = min([since, *claimed])
    if pause.blocked and has_started(evidence, first, until):
        return False
    return not any(first < number < until for number in (*spoke, *evidence.jumps))


def has_started(evidence: SimulationEvidence, first: int, until: int) -> bool:
    """Say whether a worker looked around between two notes; one may be killed while it does."""
    looking: dict[str, int] = {}
    for note in evidence.history.of(WorkerStarted):
        if not note.is_ready and note.number < until:
            looking[note.worker] = note.number
        elif note.is_ready and note.number < first:
            looking.pop(note.worker, None)
    return bool(looking)


# Lane by lane


class FirstFailure(Struct, frozen=True):
    """When a lane's provider failed first, and the commit that says so."""

    since: int
    wrote: CommitWritten


class LaneOutages:
    """The outages of one lane, from the first record of its log to the last."""

    def __init__(self, evidence: SimulationEvidence, session: SessionEvidence) -> None:
        self._evidence = evidence
        self._session = session
        self._patience = evidence.policy(session.info.session_id).provider_patience
        self._has_turn = False
        self._failing: dict[str, FirstFailure] = {}
        self._away: FirstFailure | None = None
        self._code = ""
        self._due: dict[str, int] = {}
        self._turn_at = 0

    def see(self, entry: Entry) -> Iterator[str]:
        """Give what is wrong with one more record."""
        wrote = self._evidence.written(self._session.info.session_id, entry.offset)
        look = LOOKS.get(type(entry.record))
        if look and wrote:
            yield from look(self, entry.record, wrote)

    # Told once

    def tried_soon(self, e: r.ModelRetrying, wrote: CommitWritten) -> Iterator[str]:
        first = self._failing.setdefault(e.call_id, FirstFailure(e.since, wrote))
        if self._away:
            yield "it is tried as if the provider were there"
        if e.since != first.since:
            yield f"{e.call_id} fails since {first.since}, and {e.since} is said"

    def switched(self, e: r.ModelSwitched, wrote: CommitWritten) -> Iterator[str]:
        self._failing.setdefault(e.call_id, FirstFailure(e.since, wrote))
        yield from ()

    def left(self, e: r.ProviderUnavailable, wrote: CommitWritten) -> Iterator[str]:
        first = self._failing.pop(e.call_id, FirstFailure(e.since, wrote))
        if self._away:
            yield "the provider is said to be away, which was known"
        if e.since != first.since:
            yield f"{e.call_id} fails since {first.since}, and {e.since} is said"
        self._away = first
        self._wait(e)

    def stayed_away(self, e: r.ProviderStillUnavailable, wrote: CommitWritten) -> Iterator[str]:
        if not self._away:
            yield "the provider is still away, and nobody was told that it is"
        self._wait(e)

    def _wait(self, e: r.ProviderUnavailable | r.ProviderStillUnavailable) -> None:
        self._code = e.error.code
        self._due[e.call_id] = 0 if e.in_line else e.not_before

    def came_back(self, e: r.ProviderAvailable, wrote: CommitWritten) -> Iterator[str]:
        if not self._away:
            yield "the provider is said to be back, and was not away"
        elif e.since != self._away.since:
            yield f"it was away since {self._away.since}, and {e.since} is said"
        self._away = None

    def answered(self, e: r.MessageCompleted, wrote: CommitWritten) -> Iterator[str]:
        if self._away:
            yield "the provider answers, and nobody was told that it is back"
        self._failing.pop(e.call_id, None)

    # In time

    def began(self, e: r.ModelStarted, wrote: CommitWritten) -> Iterator[str]:
        early = self._due.pop(e.call_id, 0) - wrote.clock
        if early > 0 and is_told_the_time(self._evidence, wrote, self._evidence.jumps_of_store):
            yield f"{e.call_id} is tried {early} ms too early"

    def failed(self, e: r.TurnFailed, wrote: CommitWritten) -> Iterator[str]:
        if self._away and e.error.code == self._code and self._can_tell(wrote):
            over = self._away.since + self._patience
            late = wrote.clock - max(over, self._turn_at) - SLOW
            if wrote.clock < over:
                yield f"{e.turn} failed with {self._code}, and there was patience left"
            elif late > 0:
                yield f"{e.turn} was given up {late} ms too late"
        yield from self.ended(e, wrote)

    def ended(self, e: r.AnyRecord, wrote: CommitWritten) -> Iterator[str]:
        self._has_turn = False
        yield from ()

    def started(self, e: r.TurnStarted, wrote: CommitWritten) -> Iterator[str]:
        self._has_turn, self._turn_at = True, wrote.clock
        yield from ()

    def rested(self, e: r.SessionWaiting, wrote: CommitWritten) -> Iterator[str]:
        """An outage that was given up is over when the lane has nothing to do."""
        if not self._has_turn:
            self._away = None
        yield from ()

    def session_failed(self, e: r.SessionFailed, wrote: CommitWritten) -> Iterator[str]:
        is_child = bool(self._session.info.parent)
        if self._away and e.error.code == self._code and not is_child:
            yield f"the provider ended the session: {self._code}"

    # Patience

    def _can_tell(self, wrote: CommitWritten) -> bool:
        """Say whether no clock has jumped since the first failure."""
        assert self._away is not None
        jumps, first = self._evidence.jumps, self._away.wrote
        if any(first.number < jumped < wrote.number for jumped in jumps):
            return False
        return all(is_told_the_time(self._evidence, each, jumps) for each in (first, wrote))


Look = Callable[[LaneOutages, r.AnyRecord, CommitWritten], Iterator[str]]
LOOKS: dict[type, Look] = {
    r.ModelRetrying: LaneOutages.tried_soon,  # type: ignore[dict-item]
    r.ModelSwitched: LaneOutages.switched,  # type: ignore[dict-item]
    r.ProviderUnavailable: LaneOutages.left,  # type: ignore[dict-item]
    r.ProviderStillUnavailable: LaneOutages.stayed_away,  # type: ignore[dict-item]
    r.ProviderAvailable: LaneOutages.came_back,  # type: ignore[dict-item]
    r.MessageCompleted: LaneOutages.answered,  # type: ignore[dict-item]
    r.ModelStarted: LaneOutages.began,  # type: ignore[dict-item]
    r.TurnStarted: LaneOutages.started,  # type: ignore[dict-item]
    r.TurnCompleted: LaneOutages.ended,
    r.TurnCancelled: LaneOutages.ended,
    r.TurnFailed: LaneOutages.failed,  # type: ignore[dict-item]
    r.SessionWaiting: LaneOutages.rested,  # type: ignore[dict-item]
    r.SessionFailed: LaneOutages.session_failed,  # type: ignore[dict-item]
}
