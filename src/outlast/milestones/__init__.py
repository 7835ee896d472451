"""Milestones: which points of progress are kept, and a loop that needs nothing but a directory.

How is told in docs/how-to/milestones.md.
"""

from outlast.agents.milestone import (
    AllTriggers,
    AnyTrigger,
    CallProgress,
    CheckpointTrigger,
    IntervalTrigger,
    MilestoneTrigger,
)
from outlast.log.milestone import Milestone
from outlast.milestones.durable_loop import DurableLoop, ExecutionResult

__all__ = [
    "AllTriggers",
    "AnyTrigger",
    "CallProgress",
    "CheckpointTrigger",
    "DurableLoop",
    "ExecutionResult",
    "IntervalTrigger",
    "Milestone",
    "MilestoneTrigger",
]
