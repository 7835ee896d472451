"""Milestones: which points of progress are kept. How is told in docs/how-to/planning.md."""

from outlast.agents.milestone import (
    AllTriggers,
    AnyTrigger,
    CallProgress,
    CheckpointTrigger,
    IntervalTrigger,
    MilestoneTrigger,
)

__all__ = [
    "AllTriggers",
    "AnyTrigger",
    "CallProgress",
    "CheckpointTrigger",
    "IntervalTrigger",
    "MilestoneTrigger",
]
