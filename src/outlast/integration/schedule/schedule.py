"""A schedule as it is written down in code. What the store keeps of it is in `state.py`."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

from outlast.agents.agent import Agent
from outlast.core.message import Content, Said, content_of
from outlast.core.name import check_id, check_who
from outlast.core.setting import one_of
from outlast.core.tag import check_tags
from outlast.errors import InvalidDefinition
from outlast.integration.schedule.cron import CronTimes
from outlast.workflows.workflow import Workflow

CatchUp = Literal["skip", "one", "all"]
Overlap = Literal["skip", "queue", "cancel"]
Message = Said | Callable[[datetime], Said]
RunInput = Any | Callable[[datetime], Any]
"""What a run is given: a value, or a function of the instant."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Schedule:
    """Starts a session of an agent, or a run of a workflow, at every instant of a cron line.

    Attributes:
        cron: Five fields: minute, hour, day of the month, month, day of the week.
        agent: The agent, or its name. Its sessions are tasks that have no human to ask.
        message: What the agent is told, or a function of the instant, which has to return the same
            for the same instant.
        workflow: The workflow, or its name, in place of an agent. Its runs may ask.
        input: What the workflow is given, or a function of the instant, as for `message`.
        timezone: The time zone of the line.
        catch_up: What happens to instants that were missed because no worker ran: none fires
            ("skip"), the latest ("one"), or "all".
        overlap: What an instant does while the session or run before is not over: it is skipped
            ("skip"), it waits ("queue"), or it ends that one ("cancel").
        name: The store knows the schedule by it; the agent's or workflow's name if empty.
        tenant: The tenant of the sessions.
        principal: The principal of the sessions.
        tags: Texts to find the sessions by.
    """

    def __init__(
        self,
        cron: str,
        *,
        agent: Agent[Any, Any] | str | None = None,
        message: Message | None = None,
        workflow: Workflow[Any, Any] | str | None = None,
        input: RunInput = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "skip",
        overlap: Overlap = "skip",
        name: str = "",
        tenant: str = "default",
        principal: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> None:
        check_one(agent, message, workflow, input)
        self.agent = agent.name if isinstance(agent, Agent) else agent or ""
        self.workflow = workflow.name if isinstance(workflow, Workflow) else workflow or ""
        self.name = checked_name(name or self.agent or self.workflow)
        self.timetable = CronTimes(cron, timezone)
        self.catch_up = one_of(CatchUp, "catch_up", catch_up)
        self.overlap = one_of(Overlap, "overlap", overlap)
        self.tenant = check_id("tenant", tenant)
        self.principal = check_who("principal", principal)
        self.tags = check_tags(tags)
        self._message: Content | Callable[[datetime], Said] = ()
        if callable(message):
            self._message = message
        elif not self.workflow:
            self._message = content_of(message)  # type: ignore[arg-type] # None is refused, too
        self._input = input

    def message_at(self, at: int) -> Content:
        """Return what the agent is told at an instant; a run is told nothing."""
        if callable(self._message):
            return content_of(self._message(self.timetable.local(at)))
        return self._message

    def input_at(self, at: int) -> Any:
        """Return what the workflow is given at an instant."""
        return self._input(self.timetable.local(at)) if callable(self._input) else self._input

    def check_input(self, workflow: Workflow[Any, Any]) -> None:
        """Refuse an input that is no function and that the workflow cannot take."""
        if not callable(self._input):
            workflow.input_text(self._input)

    def __repr__(self) -> str:
        return f"Schedule({self.timetable.line!r}, name={self.name!r})"


def check_one(agent: object, message: object, workflow: object, given: object) -> None:
    """Refuse what is neither for an agent nor for a workflow, and what is for both."""
    if (agent is None) == (workflow is None):
        raise InvalidDefinition("a schedule has an agent= with a message=, or a workflow=")
    if workflow is not None and message is not None:
        raise InvalidDefinition("a workflow is told nothing: give it its input=")
    if agent is not None and given is not None:
        raise InvalidDefinition("input= is for a workflow: an agent is told its message=")


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidDefinition(
            f"{name!r} cannot be a schedule's name: it has letters, digits, _, . and -, at most 64",
            schedule=name,
        )
    return name
