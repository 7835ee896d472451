"""Promises about time: nothing is due before its time, and no log goes back in time.

Spans are measured by the machine's monotonic clock. PostgreSQL's clock runs on the same machine and
is never set, so a timer that fires early by the one does by the other. SQLite's clock is set
forward now and then, and timers come so much earlier.
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
        slept += set_forward(evidence, mark.at - slept, mark.at) / 1000
        if slept < float(mark.key) / 1000:
            yield f"{mark.session} {mark.call} slept for {slept:.3f} s instead of {mark.key} ms"


def set_forward(evidence: Evidence, since: float, until: float) -> int:
    """Return by how many milliseconds the store's clock was set forward meanwhile, at most."""
    jumps = evidence.of_kind("jump")
    return sum(jump.forward for jump in jumps if jump.at <= until and since <= jump.until)


def dates_never_fall(evidence: Evidence) -> Iterator[str]:
    for session, log in evidence.logs.items():
        for before, entry in pairwise(log):
            if entry.at < before.at:
                yield f"{session}@{entry.offset} is dated {before.at - entry.at} ms back"
