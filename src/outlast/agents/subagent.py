"""Subagents: agents that other agents hand work to, each as a tool.

Knows the agents of an app and the protocol of those behind another server, which
`integration/remote` implements. How a call waits for a subagent is in `runtime/subagent_call.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from msgspec import Struct

from outlast.agents.runtime.context import Context
from outlast.agents.runtime.environment import AgentRef, ContactableServer
from outlast.agents.runtime.json_value import from_json
from outlast.agents.tool import Tool
from outlast.core.event import Event
from outlast.core.record import NewOutboxCursor
from outlast.errors import InvalidDefinition

if TYPE_CHECKING:
    from outlast.agents.agent import Agent

MAX_DEPTH = 4
"""The most levels of sessions below the first, unless an agent says otherwise."""

FOR_EVER = 10 * 365 * 86_400.0


class AbandonedChild(Struct, frozen=True, kw_only=True):
    """A session behind another server that its caller no longer waits for.

    Without a `session_id` it is not known whether it was started. Then the rest says what was sent:
    `key` is that of the start, `public_url` is where this app is reached from outside.
    """

    session_id: str = ""
    key: str
    message: str
    can_ask: bool
    depth: int
    public_url: str


class AskableAgent(Protocol):
    """An agent of this app or of another that a model can hand work to."""

    @property
    def name(self) -> str: ...

    def as_tool(self) -> Tool:
        """Return the tool that asks it."""
        ...


class AgentHost(ContactableServer, Protocol):
    """An agent of another Outlast, as the engine speaks to it."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> str:
        """The server; sessions of two of them may have the same id."""
        ...

    def ref(self) -> AgentRef:
        """Return the reference by which tools of the app ask it."""
        ...

    def callback_secret(self, token: str) -> str:
        """Return what its server signs the news with that it posts to an address of ours."""
        ...

    def events(self, session_id: str, after: int | str, *, follow: bool) -> AsyncIterator[Event]:
        """Yield the events of a session there."""
        ...

    async def cancel(self, child: AbandonedChild) -> None:
        """End a session there; raise ServerUnavailable if the server cannot be reached now."""
        ...


@runtime_checkable
class RemotelyHosted(AskableAgent, Protocol):
    """An agent of another Outlast, as users define it."""

    @property
    def host(self) -> AgentHost: ...


def tool_for(agent: Agent[Any, Any]) -> Tool:
    """Return the tool by which a model hands work to an agent."""

    async def ask(ctx: Context[Any], message: str) -> Any:
        return await ctx.agent(agent.name).ask(message)

    return asking_tool(ask, agent.name, agent.description)


def asking_tool(ask: Callable[..., Awaitable[Any]], name: str, description: str) -> Tool:
    """Return the tool of a function that asks an agent and does nothing else."""
    return Tool(
        ask,
        name=name,
        description=description or f"Hand work to {name}; say all that it needs.",
        on_interrupt="rerun",  # nothing happens before the child is started, with the wait
        timeout=FOR_EVER,
    )


def ref_of(agent: Agent[Any, Any], cursors: tuple[NewOutboxCursor, ...]) -> AgentRef:
    """Return the reference by which tools of the app ask an agent."""

    def parse(value: str) -> Any:
        return from_json(value, agent.output_type) if agent.output_type else from_json(value)

    return AgentRef(agent.name, parse, cursors, queue=agent.queue)


def is_local(agent: AskableAgent) -> bool:
    """Say whether an agent is one of this app, and not remote."""
    return hasattr(agent, "subagents")


def with_subagents(agents: Sequence[Agent[Any, Any]]) -> dict[str, Agent[Any, Any]]:
    """Return agents with all agents of this app that they may hand work to, by name."""
    found: dict[str, Agent[Any, Any]] = {}
    waiting = list(agents)
    while waiting:
        agent = waiting.pop(0)
        if agent.name not in found:
            found[agent.name] = agent
            waiting += [cast("Agent[Any, Any]", s) for s in agent.subagents if is_local(s)]
        elif found[agent.name] is not agent:
            raise InvalidDefinition(f"two agents are named {agent.name}", agent=agent.name)
    return found
