"""When a session rests: nothing moves in it before something arrives."""

from __future__ import annotations

from holdfast.store import LaneInfo, SessionInfo

AT_REST = frozenset({"idle", "waiting", "completed", "failed", "ended"})


def is_at_rest(info: SessionInfo) -> bool:
    """Say whether nothing of the session is queued, ready or running."""
    return all(rests(lane, info.seen_at) for lane in info.lanes)


def rests(lane: LaneInfo, now: int) -> bool:
    ready = lane.ready_at is not None and lane.ready_at <= now
    # What is queued behind a turn that needs a human moves no more than that turn does.
    queued = lane.queued and lane.status != "waiting"
    return lane.status in AT_REST and not (lane.worker or queued or ready)
