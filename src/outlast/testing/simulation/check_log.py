"""Promises that the log itself keeps or breaks: 1, 2, 3, 6 and 10, and what models see of it.

What the store acknowledged (`history.py`) is held against what its log says in the end. The numbers
are those of the promises in `docs/design/index.md`.
"""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from outlast.core import record as r
from outlast.core.codec import encode
from outlast.core.event import type_of
from outlast.core.fold import ARRIVALS
from outlast.core.view import View, view_of
from outlast.testing.simulation.evidence import SessionEvidence, SimulationEvidence
from outlast.testing.simulation.history import (
    ArrivalAdmitted,
    CommitWritten,
    EffectBegan,
    LaneClaimed,
    UnexpectedError,
)
from outlast.testing.simulation.probe import digest_of

PER_SESSION = 1000
PER_RECORD = 140
"""How many bytes may be stored beside what was said, written and kept."""
PER_CHARGE = 160
"""And for what a call reserves or returns, which names each budget that it is counted in."""
SPOKEN = (r.MessageDelta, r.MessageCompleted, r.ToolCompleted, r.ReasoningDelta)


def logs_and_indexes_agree(evidence: SimulationEvidence) -> Iterator[str]:
    for name, session in evidence.sessions.items():
        for found in session.findings:
            yield f"{name}@{found.offset} {found.lane}: {found.code}: {found.message}"


def transitions_are_whole(evidence: SimulationEvidence) -> Iterator[str]:
    """The log is what was acknowledged, commit by commit, and nothing else."""
    for name, session in evidence.sessions.items():
        written = {w.first_offset: w for w in evidence.writes[name]}
        left = [e for e in session.entries if not is_arrival(e.record)]
        while left:
            first = left[0]
            wrote = written.pop(first.offset, None)
            if wrote is None:
                yield f"{name}@{first.offset}: {type_of(first.record)} is in no commit"
                left = left[1:]
                continue
            here, left = left[: len(wrote.records)], left[len(wrote.records) :]
            if tuple(type_of(e.record) for e in here) != wrote.records:
                yield f"{name}@{first.offset}: a commit is not whole"
        for wrote in written.values():
            yield f"{name}@{wrote.first_offset}: a commit that was acknowledged is not there"
        yield from numbers_rise(name, evidence.writes[name])


def is_arrival(record: r.AnyRecord) -> bool:
    return type(record) in ARRIVALS


def numbers_rise(name: str, writes: list[CommitWritten]) -> Iterator[str]:
    """Each lane's commits that carry records have rising numbers."""
    last: dict[str, int] = {}
    for wrote in sorted(writes, key=lambda w: w.first_offset):
        if wrote.commit <= last.get(wrote.lane, -1):
            yield f"{name}@{wrote.first_offset}: commit {wrote.commit} of {wrote.lane} is repeated"
        last[wrote.lane] = wrote.commit


def all_work_ends(evidence: SimulationEvidence) -> Iterator[str]:
    """After all faults, nothing is left undone and no unexpected error occurred."""
    yield from evidence.unfinished
    for surprise in evidence.history.of(UnexpectedError):
        yield f"at {surprise.at:.3f} {surprise.who}: {surprise.what}"


def only_the_owner_writes(evidence: SimulationEvidence) -> Iterator[str]:
    owner: dict[tuple[str, str], tuple[int, str]] = {}
    landed: set[tuple[str, int]] = set()
    for note in evidence.history.notes:
        if isinstance(note, LaneClaimed):
            place = (note.session_id, note.lane)
            before, _ = owner.get(place, (0, ""))
            if note.fence <= before:
                yield f"{place}: fence {note.fence} was given out after {before}"
            owner[place] = (note.fence, note.worker)
        elif isinstance(note, CommitWritten) and (note.session_id, note.first_offset) not in landed:
            place = (note.session_id, note.lane)
            if owner.get(place) != (note.fence, note.worker):
                yield (
                    f"{place}@{note.first_offset}: {note.worker} wrote under fence {note.fence},"
                    f" and the owner was {owner.get(place)}"
                )
            if note.records:
                landed.add((note.session_id, note.first_offset))


def models_are_shown_the_log(evidence: SimulationEvidence) -> Iterator[str]:
    """A model call's input equals the fold of the log up to it."""
    begun = {
        (note.session_id, note.call_id, note.attempt): note.shown
        for note in evidence.history.of(EffectBegan)
        if note.kind == "model"
    }
    for name, session in evidence.sessions.items():
        if session.findings:
            continue  # a log that is not sound shows nothing
        views: dict[str, View] = defaultdict(View)
        for entry in session.entries:
            view, record = views[entry.lane], entry.record
            view.see((record,), entry.offset)
            if isinstance(record, r.ContextRewound):
                views[entry.lane] = view_of(session.entries[: entry.offset], entry.lane)
            if isinstance(record, r.ModelStarted):
                shown = begun.get((name, record.call_id, record.attempt))
                if shown not in (None, digest_of(view)):
                    yield f"{name} {record.call_id}#{record.attempt}: it was shown something else"


def cost_is_linear(evidence: SimulationEvidence) -> Iterator[str]:
    said: dict[str, int] = {}
    for admitted in evidence.history.of(ArrivalAdmitted):
        if not admitted.duplicate:
            said[admitted.session_id] = said.get(admitted.session_id, 0) + admitted.size
    for name, session in evidence.sessions.items():
        records = [entry.record for entry in session.entries]
        stored = len(encode(records))
        allowed = said.get(name, 0) + words_of(session) + PER_RECORD * len(records) + PER_SESSION
        allowed += PER_CHARGE * len(session.records(r.BudgetCharged))
        if stored > allowed:
            yield f"{name}: {stored} bytes in {len(records)} records, {allowed} would be fair"
        yield from too_many_commits(name, session, len(evidence.writes[name]))


def words_of(session: SessionEvidence) -> int:
    """Return how much models and tools have said, tools have kept, and children ask here.

    And what is told instead of what a compaction leaves out: see `check_context.py`.
    """
    told = (r.RequestRelayed, r.CompactionCompleted)
    kinds = (*SPOKEN, r.StateChanged, r.ToolEmitted, r.ToolStepRecorded, *told)
    return sum(
        len(msgspec.json.encode(e.record)) for e in session.entries if isinstance(e.record, kinds)
    )


def too_many_commits(name: str, session: SessionEvidence, commits: int) -> Iterator[str]:
    """Each commit has a reason: something began, ended, arrived, was said or changed hands."""
    quiet = (r.StepStarted, r.StepCompleted, r.SessionResumed, r.UsageRecorded, r.ToolRequested)
    reasons = sum(not isinstance(e.record, quiet) for e in session.entries)
    if commits > reasons:
        yield f"{name}: {commits} commits for {reasons} things that happened"
