"""The workflows of an app by name: which there are, and which one is meant.

Owns the sentences for a name that is taken, unknown, or of another workflow than the app's.
Refuses to know what a workflow does (`workflow.py`) and how a run of it is started
(`session/start.py`).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from outlast.core.record import NewOutboxCursor
from outlast.core.setting import listed
from outlast.errors import InvalidDefinition, UnknownWorkflow
from outlast.workflows.workflow import Workflow


class WorkflowRef:
    """A workflow as others of the app run it, and who is told of the events of these runs."""

    def __init__(self, workflow: Workflow[Any, Any], outbox: tuple[NewOutboxCursor, ...]) -> None:
        self.name = workflow.name
        self.queue = workflow.queue
        self.outbox = outbox
        self.input_text = workflow.input_text
        self.output_of = workflow.output_of


Workflows = Mapping[str, Workflow[Any, Any]]


def workflows_by_name(
    workflows: Sequence[Workflow[Any, Any]], agents: Collection[str] = ()
) -> dict[str, Workflow[Any, Any]]:
    """Return workflows by name, if no two have the same, and no agent has one of theirs."""
    found: dict[str, Workflow[Any, Any]] = {}
    for each in listed("workflows", workflows):
        if not isinstance(each, Workflow):
            raise InvalidDefinition(f"a {type(each).__name__} is not a workflow: write @workflow")
        if each.name in found:
            raise InvalidDefinition(f"two workflows are named {each.name}", workflow=each.name)
        if each.name in agents:
            raise InvalidDefinition(
                f"an agent and a workflow are named {each.name}: give one another name",
                workflow=each.name,
            )
        found[each.name] = each
    return found


def find_workflow(workflow: Workflow[Any, Any] | str, known: Workflows) -> Workflow[Any, Any]:
    """Return a workflow, if it is among those that are known."""
    name = workflow if isinstance(workflow, str) else getattr(workflow, "name", "")
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise UnknownWorkflow(
            f"this app has no workflow {name!r}; it has: {names}", workflow=str(name)
        )
    if isinstance(workflow, Workflow) and workflow is not known[name]:
        raise UnknownWorkflow(
            f"this app has a workflow named {name}, and it is not this one: give its name, or the"
            " workflow that the app was made with",
            workflow=name,
        )
    return known[name]
