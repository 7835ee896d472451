"""Promises about who may write: fences grow, and the living keep what they have."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from chaos.evidence import Evidence
from chaos.fault import Fault
from chaos.ledger import Mark
from outlast.core import record as r


def fences_grow(evidence: Evidence) -> Iterator[str]:
    """Each takeover is under a higher fence; who has been passed by writes nothing more."""
    for session, log in evidence.logs.items():
        fences: dict[str, int] = {}
        for entry in log:
            e = entry.record
            if isinstance(e, r.LaneTakenOver):
                last = fences.get(entry.lane, 0)
                if e.fence < last + (not e.graceful):
                    yield f"{session}@{entry.offset}: fence {e.fence} follows on fence {last}"
                fences[entry.lane] = e.fence
    yield from fences_given_twice(evidence)
    yield from late_writes(evidence)


def fences_given_twice(evidence: Evidence) -> Iterator[str]:
    given: dict[tuple[str, str, int], Mark] = {}
    for mark in evidence.marked("claimed"):
        first = given.setdefault((mark.session, mark.lane, mark.fence), mark)
        if first is not mark:
            yield f"{mark.session}: {first.worker} and {mark.worker} have fence {mark.fence}"


def late_writes(evidence: Evidence) -> Iterator[str]:
    written: dict[tuple[str, str], list[Mark]] = {}
    for mark in evidence.marked("wrote"):
        written.setdefault((mark.session, mark.lane), []).append(mark)
    for (session, _), marks in written.items():
        marks.sort(key=lambda mark: mark.offset)
        for before, mark in pairwise(marks):
            if mark.fence < before.fence:
                yield f"{session}@{mark.offset} was written under {mark.fence} after {before.fence}"


def the_living_keep_their_lanes(evidence: Evidence) -> Iterator[str]:
    """A lane changes hands in the middle of its work only if its owner died or stood still.

    A restart of the database, however long, connections that are cut and a lock that is held
    are no reason, as long as nobody's lease runs out meanwhile.
    """
    for old, new in evidence.takeovers():
        # A worker that was taken for dead works on under another name.
        if old.worker == new.worker:
            continue
        if not any(explains(evidence, fault, old, new) for fault in evidence.faults):
            yield f"{new.session}: {new.worker} took it from {old.worker}, which was alive"


def explains(evidence: Evidence, fault: Fault, old: Mark, new: Mark) -> bool:
    if fault.at >= new.at:
        return False
    if fault.pid == old.pid:
        return old.at < fault.until and is_long(evidence, fault)
    # Some time passes until a worker finds out that its lease has run out.
    return outlasts_leases(evidence, fault) and old.at < fault.until + evidence.lease / 3


def is_long(evidence: Evidence, fault: Fault) -> bool:
    """Whether a fault of one worker may have cost it its lease.

    One that is cut off has renewed it a third of its length ago at the latest, and needs some time
    to renew it again.
    """
    is_cut_off = fault.kind in ("blip", "blackhole")
    return not is_cut_off or fault.until - fault.at > evidence.lease / 3


EARLY = ("lock_file", "port_refused")


def only_the_dead_are_passed_over_early(evidence: Evidence) -> Iterator[str]:
    """Before its lease ends only a killed worker loses a lane, whatever the network did."""
    died = {fault.pid: fault.at for fault in evidence.of_kind("kill")}
    for old, new in evidence.takeovers():
        why = evidence.evidence_of(new)
        if why in EARLY and not died.get(old.pid, new.at) < new.at:
            yield f"{new.session}: {new.worker} took it from {old.worker} by its {why}"


def outlasts_leases(evidence: Evidence, fault: Fault) -> bool:
    """Whether a fault kept everybody from renewing a lease in time; each third of it is one.

    Only on SQLite: a process that stands still in the middle of a write holds the file's only
    lock, and leases run out by the clock that all have. While a server is away, no lease runs out.
    """
    if evidence.store != "sqlite" or fault.kind not in ("lock", "stop", "jump"):
        return False
    lasted = fault.until - fault.at + fault.forward / 1000
    # A lease that was renewed just before a jump still counts what was left of the one before.
    return lasted > evidence.lease * (1 / 3 if fault.kind == "jump" else 2 / 3)
