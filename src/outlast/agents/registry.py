"""The agents of an app by name: those that it was given, and all that these may ask."""

from collections.abc import Mapping, Sequence
from typing import Any

from outlast.agents.agent import Agent
from outlast.agents.subagent import AgentHost, with_subagents
from outlast.core.setting import listed
from outlast.errors import InvalidDefinition, UnknownAgent

Agents = Mapping[str, Agent[Any, Any]]


def agents_by_name(agents: Sequence[Agent[Any, Any]]) -> dict[str, Agent[Any, Any]]:
    """Return agents with all that they may hand work to, if no two have the same name."""
    agents = listed("agents", agents)
    for agent in agents:
        if not isinstance(agent, Agent):
            raise InvalidDefinition(f"a {type(agent).__name__} is not an Agent")
    names = [agent.name for agent in agents]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidDefinition(f"two agents are named {twice}", agent=twice)
    return with_subagents(agents)


def remotes_of(agents: Agents) -> dict[str, AgentHost]:
    """Return the remote agents that every tool can ask, by name.

    A name that an agent of this app has, or several remote agents, is none of theirs.
    """
    remotes = [remote for agent in agents.values() for remote in agent.elsewhere.values()]
    return {
        remote.name: remote
        for remote in remotes
        if remote.name not in agents
        and all(each is remote for each in remotes if each.name == remote.name)
    }


def find_remote(agents: Agents, agent: str, name: str) -> AgentHost | None:
    """Return the remote agent that sessions of an agent mean by a name, in the code of today."""
    own = agents[agent].elsewhere if agent in agents else {}
    return own.get(name) or remotes_of(agents).get(name)


def name_of(agent: Agent[Any, Any] | str, known: Agents) -> str:
    """Return the name of an agent, if it is among those that are known."""
    name = agent if isinstance(agent, str) else getattr(agent, "name", "")
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise UnknownAgent(f"this app has no agent {name!r}; it has: {names}", agent=name)
    if isinstance(agent, Agent) and agent is not known[name]:
        raise UnknownAgent(
            f"this app has an agent named {name}, and it is not this one: give its name, or the"
            " agent that the app was made with",
            agent=name,
        )
    return str(name)
