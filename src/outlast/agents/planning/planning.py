"""`Agent(planning=Planning(…))`: what an agent that plans is told, and how.

Owns the texts: when to plan, what is lost without a plan, and one text for each strategy. They are
part of the instructions and never change in a session; how far the plan is stands behind the
conversation (`progress.py`).
"""

from typing import Literal, get_args

from msgspec import Struct

from outlast.agents.planning.progress import ProgressSection, QueriedSession
from outlast.errors import InvalidDefinition

Strategy = Literal["react", "plan-act-reflect", "goal-decompose-route-synthesise"]

GUIDANCE = """\
## Planning

For a task with several steps, or of any complexity:
1. Before anything else, call `planning_setup_plan` with the objective and its steps.
2. Break the work into steps that are meaningful (real progress, worth keeping), resumable (the next
   step needs only what is kept in the session or can be looked up) and atomic (done or not done).
3. Mark a step `in_progress` when you begin it, and `done` as soon as it is.
4. Change the plan when you learn something: `planning_add_step`, `planning_update_step`, or
   `planning_write_plan` for all of it.

Progress is saved whenever a step is done. Work without a plan has no such points: after an
interruption you may have to find out again how far you were. Answer a simple question without a
plan. Never do a step again that is marked as done."""

STRATEGIES: dict[Strategy, str] = {
    "react": """\
Work in turns of reasoning and acting: say what you want to know or change next, make one call for
it, look at what came of it, and decide the next one from that. Keep the plan in step with what you
find out.""",
    "plan-act-reflect": """\
Work in rounds. Plan: name the next step of the plan and what will show that it is done. Act: do
that step and nothing else. Reflect: compare what came of it with what you expected; mark the step
as done, or say what is missing, and mend the rest of the plan before the next round.""",
    "goal-decompose-route-synthesise": """\
Goal: put the objective into one sentence that can be checked. Decompose: break it into steps that
do not depend on each other where that is possible. Route: give each step to the tool or agent that
is best at it. Synthesise: when all steps are done, put their results together into one answer, and
check it against the goal.""",
}

TAIL = """\
<progress>
(The application adds this, not the user: it is your plan as it is now.)

{progress}
</progress>"""


class Planning(Struct, frozen=True):
    """How an agent plans: by one of the strategies, as a text in its instructions.

    `guidance` takes the place of what it is told about when and how to plan.
    """

    strategy: Strategy = "react"
    guidance: str = GUIDANCE
    progress: ProgressSection = ProgressSection()

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            known = ", ".join(repr(each) for each in get_args(Strategy))
            raise InvalidDefinition(
                f"the strategy of Planning is one of {known}: {self.strategy!r}"
            )
        if not isinstance(self.progress, ProgressSection):
            raise InvalidDefinition(f"progress is a ProgressSection, not {self.progress!r}")

    @property
    def instructions(self) -> str:
        """The guidance about planning that the model is given, the same at all times."""
        return f"{self.guidance}\n\n{STRATEGIES[self.strategy]}".strip()

    def tail(self, session: QueriedSession) -> str:
        """Return what the model is told behind the conversation: how far the plan is."""
        return TAIL.format(progress=self.progress.render(session))
