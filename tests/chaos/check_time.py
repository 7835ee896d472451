"""Promises about time: nothing is due before its time, and no log goes back in time.

Spans are measured by the machine's monotonic clock. The database's clock runs on the same machine
and is never set, so a timer that fires early by the one does by the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from chaos.evidence import Evidence


def timers_never_fire_early(evidence: Evidence) -> Iterator[str]:
    """A call that lay down and slept has slept for as long as it wanted; `key` says how long."""
    lay_down = {(m.session, m.call): m.at for m in reversed(evidence.marked("stepped"))}
    for mark in evidence.marked("woke"):
        slept = mark.at - lay_down.get((mark.session, mark.call), 0.0)
        if slept < float(mark.key) / 1000:
            yield f"{mark.session} {mark.call} slept for {slept:.3f} s instead of {mark.key} ms"


def dates_never_fall(evidence: Evidence) -> Iterator[str]:
    for session, log in evidence.logs.items():
        for before, entry in pairwise(log):
            if entry.at < before.at:
                yield f"{session}@{entry.offset} is dated {before.at - entry.at} ms back"
