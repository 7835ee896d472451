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

CatchUp = Literal["skip", "one", "all"]
Overlap = Literal["skip", "queue", "cancel"]
Message = Said | Callable[[datetime], Said]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Schedule:
    """Starts a session of an agent, as a task, at every instant that a cron line names.

    Attributes:
        cron: Five fields: minute, hour, day of the month, month, day of the week.
        agent: The agent, or its name.
        message: What the agent is told, or a function of the instant, which has to return the same
            for the same instant.
        timezone: The time zone of the line.
        catch_up: What happens to instants that were missed because no worker ran: none fires
            ("skip"), the latest ("one"), or "all".
        overlap: What an instant does while the session before is not over: it is skipped ("skip"),
            it waits ("queue"), or it ends that session ("cancel").
        name: The store knows the schedule by it; the agent's name if empty.
        tenant: The tenant of the sessions.
        principal: The principal of the sessions.
        tags: Texts to find the sessions by.
    """

    def __init__(
        self,
        cron: str,
        *,
        agent: Agent[Any, Any] | str,
        message: Message,
        timezone: str = "UTC",
        catch_up: CatchUp = "skip",
        overlap: Overlap = "skip",
        name: str = "",
        tenant: str = "default",
        principal: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self.agent = agent if isinstance(agent, str) else agent.name
        self.name = checked_name(name or self.agent)
        self.timetable = CronTimes(cron, timezone)
        self.catch_up = one_of(CatchUp, "catch_up", catch_up)
        self.overlap = one_of(Overlap, "overlap", overlap)
        self.tenant = check_id("tenant", tenant)
        self.principal = check_who("principal", principal)
        self.tags = check_tags(tags)
        self._message = message if callable(message) else content_of(message)

    def message_at(self, at: int) -> Content:
        """Return what the agent is told at an instant."""
        if callable(self._message):
            return content_of(self._message(self.timetable.local(at)))
        return self._message

    def __repr__(self) -> str:
        return f"Schedule({self.timetable.line!r}, name={self.name!r})"


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidDefinition(
            f"{name!r} cannot be a schedule's name: it has letters, digits, _, . and -, at most 64",
            schedule=name,
        )
    return name
