"""Workflows: async functions that are run durably. See `Outlast.run` for how a run is started."""

from outlast.agents.runtime.step import StepRemedy
from outlast.agents.runtime.subagent_call import StartedChild
from outlast.errors import EventTimeout, RunFailed, StepError, StepInterrupted
from outlast.workflows.body_check import WorkflowWarning
from outlast.workflows.context import WorkflowContext
from outlast.workflows.workflow import Workflow, workflow

__all__ = [
    "EventTimeout",
    "RunFailed",
    "StartedChild",
    "StepError",
    "StepInterrupted",
    "StepRemedy",
    "Workflow",
    "WorkflowContext",
    "WorkflowWarning",
    "workflow",
]
