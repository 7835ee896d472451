"""Lanes that were given back a short while ago, with their folds.

An entry is valid only at the commit number at which its lane was given back: the next claim
compares, and folds the log anew if anything was written since. See `worker.py`.
"""

from __future__ import annotations

from collections import OrderedDict

from outlast.engine.owned_lane import OwnedLane


class LaneCache:
    """The most recent `size` lanes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lanes: OrderedDict[tuple[str, str], OwnedLane] = OrderedDict()

    def keep(self, lane: OwnedLane) -> None:
        self._lanes[lane.session_id, lane.name] = lane
        while len(self._lanes) > self._size:
            self._lanes.popitem(last=False)

    def take(self, session_id: str, lane: str, number: int) -> OwnedLane | None:
        """Return the lane as it was given back, if nothing was written to it since."""
        kept = self._lanes.pop((session_id, lane), None)
        return kept if kept and kept.number == number else None
