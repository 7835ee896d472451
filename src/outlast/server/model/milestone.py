"""Milestones over the wire."""

from pydantic import Field

from outlast.core.instant import rfc3339
from outlast.log.milestone import Milestone
from outlast.server.model.shape import Out, example

A_MILESTONE = {
    "title": "Boil water",
    "lane": "main",
    "turn": "t1",
    "call_id": "t1.s3.c1",
    "at": "2026-01-31T12:00:00.000Z",
    "offset": 42,
}


class MilestoneOut(Out):
    """A point of progress that a lane has reached."""

    title: str = Field(description="That of the plan's step, where it is one.")
    lane: str
    turn: str
    call_id: str
    at: str
    offset: int = Field(description="Its place in the log: the state there is its snapshot.")


class MilestonesOut(Out):
    """A page of a session's milestones, oldest first."""

    model_config = example({"milestones": [A_MILESTONE], "next_cursor": None})

    milestones: list[MilestoneOut]
    next_cursor: str | None


def milestone_out(milestone: Milestone) -> MilestoneOut:
    return MilestoneOut(
        title=milestone.title,
        lane=milestone.lane,
        turn=milestone.turn,
        call_id=milestone.call_id,
        at=rfc3339(milestone.at),
        offset=milestone.offset,
    )
