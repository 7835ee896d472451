"""How far a plan is, in words: for the model, behind everything else that it is sent.

A provider caches the beginning of a request. What changes with every step that is ticked therefore
stands at the end of it, after the conversation, and is no part of the conversation.
"""

from typing import Any, Protocol, TypeVar

from msgspec import Struct

from outlast.agents.planning.plan import Plan, PlanStep
from outlast.agents.runtime.context import InstructionContext
from outlast.agents.state.stored_value import Slice

T = TypeVar("T")

NO_PLAN = "No progress yet. Create a plan to get started."


class QueriedSession(Protocol):
    """Anything that can be asked for what a session keeps of a type."""

    def query(self, kind: type[T]) -> Slice[T]: ...


class ProgressSection(Struct, frozen=True):
    """The part of a prompt that says how far the session's plan is.

    The same for a fresh start and for one that goes on: it is made of the session's state alone.
    """

    title: str = "Progress"
    key: str = "progress"

    def render(self, session: QueriedSession) -> str:
        """Return the objective, what is done, and what remains with its status."""
        return describe(session.query(Plan).latest())

    def __call__(self, ctx: InstructionContext[Any]) -> str:
        """Be instructions, or a part of them."""
        return f"## {self.title}\n\n{self.render(ctx.session)}"


def describe(plan: Plan | None) -> str:
    if plan is None:
        return NO_PLAN
    parts = [f"**Objective**: {plan.objective}"]
    if plan.done:
        parts.append("\n".join(["**Completed:**", *map(done_line, plan.done)]))
    if plan.remaining:
        parts.append("\n".join(["**Remaining:**", *map(open_line, plan.remaining)]))
    elif plan.steps:
        parts.append("All steps are done.")
    else:
        parts.append("The plan has no steps yet: add some with planning_add_step.")
    return "\n\n".join(parts)


def done_line(step: PlanStep) -> str:
    return f"- ✓ {step.id}. {step.title}"


def open_line(step: PlanStep) -> str:
    return f"- {step.id}. {step.title} ({step.status})"
