"""Workflows: async functions that are run durably. See `Outlast.run` for how a run is started."""

from outlast.agents.runtime.step import StepRemedy
from outlast.errors import StepError, StepInterrupted
from outlast.workflows.context import WorkflowContext
from outlast.workflows.workflow import Workflow, workflow

__all__ = [
    "StepError",
    "StepInterrupted",
    "StepRemedy",
    "Workflow",
    "WorkflowContext",
    "workflow",
]
