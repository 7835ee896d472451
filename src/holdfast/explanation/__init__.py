"""Why a session stands where it stands: what each of its lanes waits for, link by link.

`explain` is pure: it is given all that it may look at. `gather` reads that from a store.
Nothing here decides anything; the log and `decide` do.
"""

from holdfast.explanation.evidence import Evidence, gather, read_state
from holdfast.explanation.lane import explain
from holdfast.explanation.link import Explanation, LaneExplanation, Link

__all__ = [
    "Evidence",
    "Explanation",
    "LaneExplanation",
    "Link",
    "explain",
    "gather",
    "read_state",
]
