"""Milestones: when a call reaches one, how it is written down, and what begins anew from it.

Owns the core's part: what has passed since the last milestone of a lane, and when the model's
context restarts from it. Which calls are milestones is said by users' code, a trigger
(`agents/milestone.py`); what the model sees after a restart is made by `view.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.lane import Lane, LastMilestone, OpenCall, QueuedDelivery, Turn
from outlast.core.policy import Policy
from outlast.core.result import Returned

# What comes next


def restarts_turn(lane: Lane, turn: Turn, policy: Policy) -> bool:
    """Say whether the next model call of a turn begins anew from the last milestone."""
    return turn.restarts and can_restart(lane, policy)


def restarts_retry(lane: Lane, head: QueuedDelivery, policy: Policy) -> bool:
    """Say whether a turn that retries another begins anew from the last milestone."""
    return head.retry and can_restart(lane, policy)


def can_restart(lane: Lane, policy: Policy) -> bool:
    """Say whether a lane has a milestone to go on from. Without one the conversation goes on."""
    return policy.resume == "milestone" and lane.milestone.reached > 0


# The fold


def milestone_reached(lane: Lane, e: r.MilestoneReached) -> Lane:
    assert lane.turn is not None
    calls = lane.ended + lane.turn.ended
    return replace(lane, milestone=LastMilestone(lane.milestone.reached + 1, calls, e.since))


LANE_MILESTONES: dict[type, Callable[[Lane, Any], Lane]] = {
    r.MilestoneReached: milestone_reached,
}


# How it is written down


def reach(lane: Lane, call: OpenCall, end: Returned, now: int) -> Iterator[r.AnyRecord]:
    """Record that a call which is about to have an outcome is a milestone, if it is one.

    Time counts as for feedback: within a turn, from its beginning.
    """
    if end.milestone is None:
        return
    turn, last = lane.turn, lane.milestone
    assert turn is not None
    calls = lane.ended + turn.ended + 1 - last.calls
    seconds = max(0, now - max(last.since, turn.began)) / 1000
    if end.milestone.is_reached(calls, seconds):
        yield r.MilestoneReached(
            call_id=call.call_id,
            attempt=call.attempt,
            since=now,
            title=end.milestone.title,
        )
