"""Triggers: which tool calls are milestones, points of progress that are worth keeping.

A trigger looks at the typed value that a tool returned, at the calls and the time since the last
milestone, or at several of these. It is users' code, run in the worker when a call has returned;
what it came to is in the log (`milestone.reached`), with the call's outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from outlast.agents.planning.plan import Plan, UpdateStep, WritePlan
from outlast.agents.planning.progress import QueriedSession
from outlast.agents.rule import Every
from outlast.core.instant import Span
from outlast.core.result import PossibleMilestone
from outlast.core.setting import seconds_of
from outlast.errors import InvalidDefinition
from outlast.log_context import get_logger

log = get_logger("outlast.agents")

PLAN_EVENTS: frozenset[type] = frozenset({UpdateStep, WritePlan})
"""The events by which a step of a plan is marked done."""


class CallProgress(Struct, frozen=True):
    """A call that has returned a `value`, the last of so many since the last milestone.

    `seconds` are those since the last milestone, or since the turn began.
    """

    value: object = None
    calls: int = 1
    seconds: float = 0.0


class MilestoneTrigger(Struct, frozen=True):
    """Decides whether a call that has returned is a milestone; combine with `a | b` and `a & b`."""

    def is_reached(self, progress: CallProgress) -> bool:
        raise NotImplementedError

    def __or__(self, other: MilestoneTrigger) -> AnyTrigger:
        return AnyTrigger((self, other))

    def __and__(self, other: MilestoneTrigger) -> AllTriggers:
        return AllTriggers((self, other))


class CheckpointTrigger(MilestoneTrigger, frozen=True):
    """A milestone is an event of one of these types for which the predicate is true.

    By default that is a step of a plan that is marked done. Without a predicate an event that
    updates a step counts only if it marks it done, whatever other types are named.
    """

    event_types: Collection[type] = PLAN_EVENTS
    predicate: Callable[[Any], bool] | None = None

    def __post_init__(self) -> None:
        check_types(self.event_types)
        if self.predicate is not None and not callable(self.predicate):
            raise InvalidDefinition("the predicate of CheckpointTrigger is a function of an event")

    def should_checkpoint(self, event: object) -> bool:
        """Say whether an event is a milestone."""
        if not isinstance(event, tuple(self.event_types)):
            return False
        return marks_done(event) if self.predicate is None else bool(self.predicate(event))

    def is_reached(self, progress: CallProgress) -> bool:
        return self.should_checkpoint(progress.value)


class IntervalTrigger(MilestoneTrigger, frozen=True):
    """A milestone is the first call to return after so many calls, or so much time.

    With both, whichever is first; both count from the last milestone.
    """

    calls: int = 0
    seconds: Span = 0.0

    def __post_init__(self) -> None:
        Every(self.calls, self.seconds)  # which says what is wrong with them

    def is_reached(self, progress: CallProgress) -> bool:
        if 0 < self.calls <= progress.calls:
            return True
        span = seconds_of("seconds of IntervalTrigger", self.seconds, or_none=True)
        return 0 < span <= progress.seconds


class AnyTrigger(MilestoneTrigger, frozen=True):
    """A milestone is what one of the triggers says is one."""

    triggers: tuple[MilestoneTrigger, ...]

    def __post_init__(self) -> None:
        check_triggers("AnyTrigger", self.triggers)

    def is_reached(self, progress: CallProgress) -> bool:
        return any(trigger.is_reached(progress) for trigger in self.triggers)


class AllTriggers(MilestoneTrigger, frozen=True):
    """A milestone is what every one of the triggers says is one."""

    triggers: tuple[MilestoneTrigger, ...]

    def __post_init__(self) -> None:
        check_triggers("AllTriggers", self.triggers)

    def is_reached(self, progress: CallProgress) -> bool:
        return all(trigger.is_reached(progress) for trigger in self.triggers)


def check_types(given: Any) -> None:
    are_classes = isinstance(given, Collection) and all(isinstance(each, type) for each in given)
    if not (are_classes and given):
        raise InvalidDefinition(
            f"event_types of CheckpointTrigger are classes, in a list or a set, not {given!r}"
        )


def check_triggers(what: str, given: Any) -> None:
    if not given or not all(isinstance(each, MilestoneTrigger) for each in given):
        raise InvalidDefinition(f"{what} is made of triggers, in a tuple, and of at least one")


def marks_done(event: object) -> bool:
    match event:
        case UpdateStep():
            return event.status == "done"
        case WritePlan():
            return bool(event.finishes)
    return True


def title_of(value: object, session: QueriedSession) -> str:
    """Return what a milestone is about, where it is about steps of a plan."""
    match value:
        case UpdateStep():
            plan = session.query(Plan).latest()
            steps = plan.steps if plan else ()
            return next((step.title for step in steps if step.id == value.step_id), "")
        case WritePlan():
            return ", ".join(value.finishes)
    return ""


ABOUT_STEPS = (UpdateStep, WritePlan)
STEP_DONE = CheckpointTrigger()
"""The default: a step of a plan is marked done."""


# While an agent runs


def possible_milestone(
    trigger: MilestoneTrigger, values: Sequence[object], session: QueriedSession
) -> PossibleMilestone | None:
    """Return what asks a trigger about a call that has returned; None where it cannot be one.

    `values` are the one that the tool returned, and the events that it dispatched.
    """
    about = [each for each in values if isinstance(each, ABOUT_STEPS)]
    if trigger is STEP_DONE and not about:
        return None
    title = next((said for each in about if (said := title_of(each, session))), "")
    return PossibleMilestone(partial(is_reached, trigger, values), title)


def is_reached(
    trigger: MilestoneTrigger, values: Sequence[object], calls: int, seconds: float
) -> bool:
    """Ask a trigger about each value. The tool has run: one that fails says no."""
    try:
        return any(trigger.is_reached(CallProgress(each, calls, seconds)) for each in values)
    except (Exception, SystemExit):
        log.exception("a trigger of milestones failed; the call is taken for none")
        return False
