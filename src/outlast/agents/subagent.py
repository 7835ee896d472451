"""Agents that hand work to other agents: each of those is a tool of theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from msgspec import Struct

from outlast.agents.runtime.context import Context
from outlast.agents.runtime.environment import AgentRef
from outlast.agents.runtime.json_value import from_json
from outlast.agents.tool import Tool
from outlast.core.event import Event
from outlast.core.record import NewOutboxCursor
from outlast.errors import InvalidDefinition

if TYPE_CHECKING:
    from outlast.agents.agent import Agent

MAX_DEPTH = 4
"""How many sessions may stand below the first, unless an agent says otherwise."""

FOR_EVER = 10 * 365 * 86_400.0


class AbandonedCall(Struct, frozen=True):
    """A call of an agent elsewhere that nobody waits for any more.

    `key` is its idempotency key, `steps` are what it had recorded, `depth` is how deep it was
    asked, `url` is where its app is reached from outside.
    """

    key: str
    args: Mapping[str, Any]
    steps: Mapping[str, Any]
    can_ask: bool
    depth: int = 0
    url: str = ""


class AskableAgent(Protocol):
    """An agent, here or elsewhere, that a model can hand work to."""

    @property
    def name(self) -> str: ...

    def as_tool(self) -> Tool:
        """Return the tool by which it is asked."""
        ...


@runtime_checkable
class RemotelyHosted(AskableAgent, Protocol):
    """An agent of another Outlast."""

    def envoy(self) -> Agent[Any, Any]:
        """Return the agent here whose sessions ask it for tools."""
        ...

    def events(self, session_id: str, after: int, *, follow: bool) -> AsyncIterator[Event]:
        """Give the events of a session there."""
        ...

    async def recall(self, call: AbandonedCall) -> None:
        """End what a call has started there; raise ServerUnavailable if that has to wait."""
        ...


def tool_for(agent: Agent[Any, Any]) -> Tool:
    """Return the tool by which a model hands work to an agent."""

    async def ask(ctx: Context[Any], message: str) -> Any:
        return await ctx.agent(agent.name).ask(message)

    return Tool(
        ask,
        name=agent.name,
        description=agent.description or f"Hand work to {agent.name}; say all that it needs.",
        on_interrupt="rerun",  # nothing happens before the child is started, with the wait
        timeout=FOR_EVER,
    )


def kin_of(agent: Agent[Any, Any], cursors: tuple[NewOutboxCursor, ...]) -> AgentRef:
    """Return an agent as others of the app know it."""

    def parse(value: str) -> Any:
        return from_json(value, agent.output_type) if agent.output_type else from_json(value)

    return AgentRef(agent.name, parse, cursors)


def is_of_the_app(agent: AskableAgent) -> bool:
    """Whether an agent works here, and not elsewhere."""
    return hasattr(agent, "subagents")


def family(agents: Sequence[Agent[Any, Any]]) -> dict[str, Agent[Any, Any]]:
    """Return agents and all that they may hand work to, by name."""
    found: dict[str, Agent[Any, Any]] = {}
    waiting = list(agents)
    while waiting:
        agent = waiting.pop(0)
        if agent.name not in found:
            found[agent.name] = agent
            waiting += [cast("Agent[Any, Any]", s) for s in agent.subagents if is_of_the_app(s)]
        elif found[agent.name] is not agent:
            raise InvalidDefinition(f"two agents are named {agent.name}", agent=agent.name)
    return found
