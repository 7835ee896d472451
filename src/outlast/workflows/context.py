"""The context of a workflow's body: that of a tool, and what only a run has."""

from typing import Any, ClassVar

from typing_extensions import TypeVar

from outlast.agents.runtime.context import Context
from outlast.agents.runtime.step import StepRemedy

Deps = TypeVar("Deps", default=Any)


class WorkflowContext(Context[Deps]):
    """The context that the body of a workflow is given.

    The body runs again from its first line after each wait and each crash: what it did through its
    context is known, and is not done again.
    """

    _step_remedy: ClassVar[StepRemedy | None] = "report"

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.session.id
