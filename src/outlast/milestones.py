"""Milestones: which points of progress are kept. How is told in docs/how-to/milestones.md."""

from outlast.agents.milestone import (
    AllTriggers,
    AnyTrigger,
    CallProgress,
    CheckpointTrigger,
    IntervalTrigger,
    MilestoneTrigger,
)
from outlast.log.milestone import Milestone

__all__ = [
    "AllTriggers",
    "AnyTrigger",
    "CallProgress",
    "CheckpointTrigger",
    "IntervalTrigger",
    "Milestone",
    "MilestoneTrigger",
]
