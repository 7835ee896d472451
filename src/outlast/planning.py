"""Plans for an agent: `Agent(planning=Planning(…))`.

Only names these for users; docs/how-to/planning.md explains them.
"""

from outlast.agents.planning.plan import (
    AddStep,
    Plan,
    PlanStep,
    SetupPlan,
    StepStatus,
    UpdateStep,
    WritePlan,
    WrittenStep,
)
from outlast.agents.planning.planning import Planning, Strategy
from outlast.agents.planning.progress import ProgressSection, QueriedSession

__all__ = [
    "AddStep",
    "Plan",
    "PlanStep",
    "Planning",
    "ProgressSection",
    "QueriedSession",
    "SetupPlan",
    "StepStatus",
    "Strategy",
    "UpdateStep",
    "WritePlan",
    "WrittenStep",
]
