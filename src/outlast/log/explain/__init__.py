"""Why a session stands where it stands: what each of its lanes waits for, link by link.

`explain` is pure: it is given all that it may look at. `gather` reads that from a store.
Nothing here decides anything; the log and `decide` do.
"""

from outlast.log.explain.evidence import ExplainEvidence, gather, read_state
from outlast.log.explain.lane import explain
from outlast.log.explain.link import Cause, Explanation, LaneExplanation

__all__ = [
    "Cause",
    "ExplainEvidence",
    "Explanation",
    "LaneExplanation",
    "explain",
    "gather",
    "read_state",
]
