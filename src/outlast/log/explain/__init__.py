"""Why a session stands where it stands: what each of its lanes waits for, link by link.

`explain` is pure: it is given all that it may look at. `gather` reads that from a store.
Nothing here decides anything; the log and `decide` do.
"""

from outlast.log.explain.evidence import Evidence, gather, read_state
from outlast.log.explain.lane import explain
from outlast.log.explain.link import Explanation, LaneExplanation, Link

__all__ = [
    "Evidence",
    "Explanation",
    "LaneExplanation",
    "Link",
    "explain",
    "gather",
    "read_state",
]
