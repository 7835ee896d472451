"""A plan as a slice of the session's state, and the events that change it.

Owns what a plan may become of an event: `changed` is the one place that says so, for the model's
tools and for the reducers that record it. Ids of steps are never used twice in a plan, so that a
call which names one always means the same. The tools are in `tool.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from outlast.agents.state.reducer import replace_latest
from outlast.agents.state.slice_type import reducer, slice_type
from outlast.core.visible import visible_line
from outlast.errors import InvalidPlan

StepStatus = Literal["pending", "in_progress", "done"]

MAX_STEPS = 200
MAX_TITLE = 500
MAX_OBJECTIVE = 4_000


@dataclass(frozen=True)
class PlanStep:
    """A step of a plan."""

    id: int
    title: str
    status: StepStatus = "pending"


@slice_type("outlast.plan", reducer=replace_latest)
@dataclass(frozen=True)
class Plan:
    """A goal, and the steps to it in their order.

    `next_id` is the id of the step that is added next.
    """

    objective: str
    steps: tuple[PlanStep, ...] = ()
    next_id: int = 1

    @property
    def done(self) -> tuple[PlanStep, ...]:
        return tuple(step for step in self.steps if step.status == "done")

    @property
    def remaining(self) -> tuple[PlanStep, ...]:
        return tuple(step for step in self.steps if step.status != "done")

    def step(self, step_id: int) -> PlanStep:
        """Return the step with an id. Raises InvalidPlan if there is none."""
        for step in self.steps:
            if step.id == step_id:
                return step
        ids = ", ".join(str(step.id) for step in self.steps) or "none yet"
        raise InvalidPlan(f"the plan has no step {step_id}; its steps are: {ids}", step=step_id)


# Events


@dataclass(frozen=True)
class SetupPlan:
    """A plan is made, where there is none or all steps of the one before are done."""

    objective: str
    initial_steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class AddStep:
    """Steps are added at the end of the plan, by their titles."""

    steps: tuple[str, ...]


@dataclass(frozen=True)
class UpdateStep:
    """A step has another title or another status. One that is marked done is a milestone."""

    step_id: int
    title: str | None = None
    status: StepStatus | None = None


@dataclass(frozen=True)
class WrittenStep:
    """A step of a plan that is written as a whole; one without a `step_id` is new."""

    title: str
    status: StepStatus = "pending"
    step_id: int | None = None


@dataclass(frozen=True)
class WritePlan:
    """The whole plan is written anew; `finishes` are the steps that become done with it."""

    objective: str
    steps: tuple[WrittenStep, ...]
    finishes: tuple[str, ...] = ()


PlanEvent = SetupPlan | AddStep | UpdateStep | WritePlan


# The changes of a plan


def changed(plan: Plan | None, event: PlanEvent) -> Plan:
    """Return the plan after an event. Raises InvalidPlan, which says what to do instead."""
    if isinstance(event, SetupPlan):
        return set_up(plan, event)
    if isinstance(event, WritePlan):
        return written(plan, event)
    if plan is None:
        raise InvalidPlan("there is no plan yet: make one with planning_setup_plan")
    return with_steps(plan, event.steps) if isinstance(event, AddStep) else updated(plan, event)


def set_up(before: Plan | None, event: SetupPlan) -> Plan:
    if before and before.remaining:
        raise InvalidPlan(
            f"there is a plan already, with {len(before.remaining)} of {len(before.steps)} steps"
            " left: change it with planning_update_step and planning_add_step, or write it anew"
            " with planning_write_plan"
        )
    plan = Plan(checked_objective(event.objective))
    return with_steps(plan, event.initial_steps) if event.initial_steps else plan


def with_steps(plan: Plan, titles: Sequence[str]) -> Plan:
    if not titles:
        raise InvalidPlan("no step was given: name at least one")
    first = plan.next_id
    new = tuple(PlanStep(first + n, checked_title(title)) for n, title in enumerate(titles))
    return checked_length(replace(plan, steps=(*plan.steps, *new), next_id=first + len(new)))


def updated(plan: Plan, event: UpdateStep) -> Plan:
    step = plan.step(event.step_id)
    if event.title is None and event.status is None:
        raise InvalidPlan(
            f"nothing was said about step {step.id}: give its title, its status, or both"
        )
    if event.title is not None:
        step = replace(step, title=checked_title(event.title))
    if event.status is not None:
        step = replace(step, status=event.status)
    return replace(plan, steps=tuple(step if each.id == step.id else each for each in plan.steps))


def written(before: Plan | None, event: WritePlan) -> Plan:
    plan = replace(before or Plan(""), objective=checked_objective(event.objective))
    if not event.steps:
        raise InvalidPlan("a plan that is written as a whole has at least one step")
    given = [step.step_id for step in event.steps if step.step_id is not None]
    if twice := next((each for each in given if given.count(each) > 1), None):
        raise InvalidPlan(f"step {twice} is in the plan twice: leave one out", step=twice)
    steps, next_id = [], plan.next_id
    for each in event.steps:
        if each.step_id is None:
            steps.append(PlanStep(next_id, checked_title(each.title), each.status))
            next_id += 1
        else:
            known = plan.step(each.step_id)
            check_kept(known, each.status)
            steps.append(replace(known, title=checked_title(each.title), status=each.status))
    if lost := next((each for each in plan.done if each.id not in given), None):
        check_kept(lost, None)
    return checked_length(replace(plan, steps=tuple(steps), next_id=next_id))


def check_kept(step: PlanStep, status: StepStatus | None) -> None:
    """Refuse to lose by a plan that is written anew what was done: it would be done again."""
    if step.status == "done" and status != "done":
        raise InvalidPlan(
            f"step {step.id} ({step.title}) is done: keep it in the plan with its step_id and the"
            " status done; planning_update_step can open it again",
            step=step.id,
        )


def finished_by(before: Plan | None, after: Plan) -> tuple[str, ...]:
    """Return the titles of the steps that are done now, and were not before."""
    done = {step.id for step in before.done} if before else set()
    return tuple(step.title for step in after.done if step.id not in done)


def checked_title(title: str) -> str:
    return checked_text("the title of a step", title, MAX_TITLE)


def checked_objective(objective: str) -> str:
    return checked_text("the objective of a plan", objective, MAX_OBJECTIVE)


def checked_text(what: str, text: str, most: int) -> str:
    """Return a text on one line, all of it visible.

    A plan is told to the model line by line, behind the conversation. A title may come from a page
    that the model has read: it must not look like lines of the plan, or hold what no person sees.
    """
    text = visible_line(" ".join(text.split()))
    if not text:
        raise InvalidPlan(f"{what} is empty: say what is to be done")
    if len(text) > most:
        raise InvalidPlan(f"{what} has {len(text):,} characters: {most:,} is the most")
    return text


def checked_length(plan: Plan) -> Plan:
    if len(plan.steps) > MAX_STEPS:
        raise InvalidPlan(
            f"the plan would have {len(plan.steps)} steps, and {MAX_STEPS} is the most: make each"
            " step a larger piece of work"
        )
    return plan


# How it is recorded


def latest(plans: Sequence[Plan]) -> Plan | None:
    return plans[-1] if plans else None


def reducer_of(kind: type[Any]) -> Callable[[Sequence[Plan], Any], Sequence[Plan]]:
    def reduce(plans: Sequence[Plan], event: Any) -> Sequence[Plan]:
        return [changed(latest(plans), event)]

    return reducer(Plan, kind)(reduce)


for _kind in (SetupPlan, AddStep, UpdateStep, WritePlan):
    reducer_of(_kind)
