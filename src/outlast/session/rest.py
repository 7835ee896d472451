"""When a session rests: nothing moves in it before something arrives."""

from datetime import datetime

from outlast.store import LaneInfo, SessionInfo

IN_A_TURN = frozenset({"running", "sleeping"})
AT_REST = frozenset({"idle", "waiting", "completed", "failed", "ended"})


def is_at_rest(info: SessionInfo) -> bool:
    """Say whether nothing of the session is queued, ready or running."""
    return all(rests(lane, info.seen_at) for lane in info.lanes)


def needs_somebody(info: SessionInfo, name: str) -> bool:
    """Say whether a lane rests in a turn that needs a human, while others work.

    A message that another lane is about to take may end the whole session.
    """
    own = [lane for lane in info.lanes if lane.lane == name]
    others = [lane for lane in info.lanes if lane.lane != name and lane.status not in IN_A_TURN]
    is_waiting = any(lane.status == "waiting" for lane in own)
    return is_waiting and all(rests(lane, info.seen_at) for lane in (*own, *others))


def rests(lane: LaneInfo, now: datetime | None) -> bool:
    # Messages behind a turn that needs a human do not move until it does.
    queued = lane.queued and lane.status != "waiting"
    return lane.status in AT_REST and not (lane.worker or queued or is_ready(lane, now))


def is_ready(lane: LaneInfo, now: datetime | None) -> bool:
    """Say whether a worker could go on with a lane."""
    return lane.ready_at is not None and (now is None or lane.ready_at <= now)
