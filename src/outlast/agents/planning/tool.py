"""The tools by which a model keeps its plan.

Each looks at the plan as it is now and tells the model at once what is wrong with a call; the
event that it returns changes the plan when the outcome is recorded, against the newest values.
They do nothing else, so one that a crash cut off is simply run again.
"""

from typing import Any

from outlast.agents.planning.plan import (
    AddStep,
    Plan,
    PlanEvent,
    SetupPlan,
    StepStatus,
    UpdateStep,
    WritePlan,
    WrittenStep,
    changed,
    finished_by,
)
from outlast.agents.planning.progress import describe
from outlast.agents.runtime.context import Context
from outlast.agents.tool import Tool, ToolResult


async def planning_setup_plan(
    ctx: Context[Any], objective: str, initial_steps: list[str] | None = None
) -> ToolResult[SetupPlan]:
    """Make a plan, before any other work on a task of several steps.

    Args:
        objective: What is to be achieved, in a sentence or two.
        initial_steps: The titles of the steps, in their order.
    """
    event = SetupPlan(objective, tuple(initial_steps or ()))
    plan = would_be(ctx, event)
    return ToolResult(f"The plan is set up. {counted(plan)}", event)


async def planning_add_step(ctx: Context[Any], steps: list[str]) -> ToolResult[AddStep]:
    """Add steps at the end of the plan.

    Args:
        steps: The titles of the new steps, in their order.
    """
    event = AddStep(tuple(steps))
    plan = would_be(ctx, event)
    added = ", ".join(str(step.id) for step in plan.steps[-len(steps) :])
    return ToolResult(f"Added as {added}. {counted(plan)}", event)


async def planning_update_step(
    ctx: Context[Any],
    step_id: int,
    title: str | None = None,
    status: StepStatus | None = None,
) -> ToolResult[UpdateStep | None]:
    """Say that a step is in progress or done, or give it another title.

    Mark a step as done as soon as it is: progress is saved with it.

    Args:
        step_id: The number of the step.
        title: Its new title, if it changes.
        status: How it stands now: pending, in_progress or done.
    """
    event = UpdateStep(step_id, title, status)
    plan = would_be(ctx, event)
    if plan == ctx.session.query(Plan).latest():
        return ToolResult(f"Step {step_id} is so already. {counted(plan)}", None)
    step = plan.step(step_id)
    return ToolResult(f"Step {step_id} ({step.title}) is {step.status}. {counted(plan)}", event)


async def planning_read_plan(ctx: Context[Any]) -> str:
    """Read the plan: its objective, what is done, and what remains."""
    return describe(ctx.session.query(Plan).latest())


async def planning_write_plan(
    ctx: Context[Any], objective: str, steps: list[WrittenStep]
) -> ToolResult[WritePlan]:
    """Write the whole plan anew, where it changes in several places.

    Steps that are done stay in it. For one or two changes there are the other tools.

    Args:
        objective: What is to be achieved, in a sentence or two.
        steps: All steps in their order; a step that is in the plan already has its step_id.
    """
    plan = would_be(ctx, WritePlan(objective, tuple(steps)))
    finishes = finished_by(ctx.session.query(Plan).latest(), plan)
    return ToolResult(
        f"The plan is written. {counted(plan)}", WritePlan(objective, tuple(steps), finishes)
    )


def would_be(ctx: Context[Any], event: PlanEvent) -> Plan:
    """Return what an event makes of the plan. Raises InvalidPlan, which the model sees."""
    return changed(ctx.session.query(Plan).latest(), event)


def counted(plan: Plan) -> str:
    """Say how many steps are done, and which is next."""
    if not plan.steps:
        return "It has no steps yet."
    told = f"{len(plan.done)} of {len(plan.steps)} steps are done"
    following = next(iter(plan.remaining), None)
    return f"{told}; next: {following.id}. {following.title}" if following else f"{told}."


def planning_tools() -> list[Tool]:
    """Return the tools of an agent that plans."""
    return [
        Tool(planning_setup_plan, idempotent=True),
        Tool(planning_add_step, idempotent=True),
        Tool(planning_update_step, idempotent=True),
        Tool(planning_read_plan, readonly=True),
        Tool(planning_write_plan, idempotent=True),
    ]
