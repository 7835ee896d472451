"""Checks each setting of an agent's definition, so that a wrong one fails where the agent is made.

Owns what a name, a model, a list of tools or a plan may be, and the sentences of the errors about
them. Refuses to know what the parts are for: `agent.py` puts them together, and `runtime/` uses
them. What a tool says of itself is checked in `tool.py`, a list of rules in `rule_set.py`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from inspect import formatannotation
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from outlast.agents.milestone import MilestoneTrigger
from outlast.agents.model.client import ToolSpec
from outlast.agents.planning.planning import Planning
from outlast.agents.prompt.template import PromptTemplate
from outlast.agents.schema import no_schema
from outlast.agents.subscription import Subscription
from outlast.agents.tool import Function, Tool
from outlast.core.policy import Resume
from outlast.errors import InvalidDefinition

OUTPUT_TOOL = "final_result"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def checked_name(name: Any) -> str:
    """Return a name, if an agent can have it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidDefinition(
            f"{name!r} cannot be an agent's name: begin with a letter, then letters, digits,"
            " _ and -, at most 64"
        )
    return name


def tools_by_name(
    agent: str, tools: Sequence[Tool | Function], others: Sequence[Tool]
) -> dict[str, Tool]:
    """Return tools by name, with those by which other agents are asked."""
    given: list[Tool | Function] = [*checked_list(agent, "tools", tools), *others]
    found: dict[str, Tool] = {}
    for item in given:
        made = item if isinstance(item, Tool) else Tool(item)
        if made.name in found or made.name == OUTPUT_TOOL:
            raise InvalidDefinition(
                f"agent {agent} has two tools named {made.name}: give one another name", agent=agent
            )
        found[made.name] = made
    return found


def alias_names(agent: str, tools: Mapping[str, Tool]) -> dict[str, str]:
    """Return the names of tools by their aliases, if each alias means one tool."""
    found: dict[str, str] = {}
    for name, tool in tools.items():
        for alias in tool.aliases:
            if alias != name and (alias in tools or alias in found or alias == OUTPUT_TOOL):
                other = found.get(alias, alias)
                raise InvalidDefinition(
                    f"{alias}, an alias of the tool {name} of agent {agent}, also means {other}:"
                    " leave it to one of them",
                    agent=agent,
                    tool=name,
                )
            if alias != name:
                found[alias] = name
    return found


def checked_list(agent: str, what: str, given: Any) -> list[Any]:
    """Return what an agent has any number of."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidDefinition(f"{what} of agent {agent} have to be given in a list", agent=agent)
    return list(given)


def checked_models(agent: str, given: Any) -> tuple[Any, ...]:
    """Return an agent's models in the order of preference, if each can be told from the others."""
    models = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not models:
        raise InvalidDefinition(
            f"the list of models of agent {agent} is empty: give at least one", agent=agent
        )
    if any(isinstance(each, list | tuple) for each in models):
        raise InvalidDefinition(
            f"a model of agent {agent} is a list itself: give all of them in one list, the"
            " preferred one first",
            agent=agent,
        )
    names = [model_name(checked_model(agent, each)) for each in models]
    if len(models) > 1 and (unclear := next((n for n in names if names.count(n) > 1), None)):
        raise InvalidDefinition(
            f"agent {agent} has two models named {unclear!r}: a model that cannot be had is left"
            " for one of another name",
            agent=agent,
        )
    return models


def model_name(model: Any) -> str:
    """Return a model's name in records and listings; a client that says none has its class's."""
    if isinstance(model, str):
        return model
    name = getattr(model, "name" if hasattr(model, "classify") else "model_id", None)
    return name if isinstance(name, str) and name else type(model).__name__


def checked_model(agent: str, model: Any) -> Any:
    """Return a model by its name, or one that can be asked."""
    if not (isinstance(model, str) and model) and not callable(getattr(model, "request", None)):
        raise InvalidDefinition(
            f'the model of agent {agent} is a name such as "openai:gpt-5.2", a pydantic-ai Model or'
            f" a ModelClient, or a list of these, not {model!r}",
            agent=agent,
        )
    return model


def checked_settings(agent: str, given: Any) -> dict[str, Any]:
    """Return what a model is set to; it may hold secrets, which are not repeated."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidDefinition(
            f'the settings of agent {agent} are values by name: {{"temperature": 0.2}}',
            agent=agent,
        )
    return dict(given)


def checked_instructions(agent: str, given: Any) -> Any:
    """Return instructions: a text, a function that makes it, or a template of sections."""
    if not isinstance(given, str | PromptTemplate) and not callable(given):
        raise InvalidDefinition(
            f"the instructions of agent {agent} are a text, a function that returns one, or a"
            f" PromptTemplate, not {given!r}",
            agent=agent,
        )
    return given


def checked_planning(agent: str, given: Any) -> Planning | None:
    """Return how an agent plans, if it does."""
    if given is not None and not isinstance(given, Planning):
        raise InvalidDefinition(
            f'planning of agent {agent} is a Planning("plan-act-reflect"), not {given!r}',
            agent=agent,
        )
    return given


def checked_milestones(
    agent: str, given: Any, planning: Planning | None, resume: Resume
) -> MilestoneTrigger | None:
    """Return what says of a call that it is a milestone, if the agent can have any."""
    if given is not None and not isinstance(given, MilestoneTrigger):
        raise InvalidDefinition(
            f"milestones of agent {agent} are told by a trigger such as CheckpointTrigger(…), not"
            f" by {given!r}",
            agent=agent,
        )
    if resume == "milestone" and given is None and planning is None:
        raise InvalidDefinition(
            f"agent {agent} resumes from a milestone and can have none: give it"
            " planning=Planning(…), or milestones=CheckpointTrigger(…)",
            agent=agent,
        )
    return given


def subagent_tools(agent: str, subagents: Sequence[Any]) -> list[Tool]:
    """Return the tools by which other agents are asked."""
    for each in checked_list(agent, "subagents", subagents):
        if not callable(getattr(each, "as_tool", None)):
            raise InvalidDefinition(
                f"a {type(each).__name__} is no agent that agent {agent} can ask", agent=agent
            )
    return [each.as_tool() for each in subagents]


def output_spec(agent: str, kind: type | None) -> tuple[ToolSpec | None, bool]:
    """Return the tool by which the model gives a typed answer, and whether it wraps a value."""
    if kind is None:
        return None, False
    try:
        schema = TypeAdapter(kind).json_schema()
    except PydanticUserError as error:
        raise InvalidDefinition(
            f"the output_type of agent {agent}, {formatannotation(kind)}, {no_schema(error)}",
            agent=agent,
        ) from error
    wraps = schema.get("type") != "object"
    if wraps:
        schema = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
    return ToolSpec(OUTPUT_TOOL, "Give the final answer.", schema), wraps


def checked_subscriptions(agent: str, given: Sequence[Subscription]) -> tuple[Subscription, ...]:
    """Return subscriptions, if each can be told from the others."""
    for each in checked_list(agent, "subscriptions", given):
        if not isinstance(each, Subscription):
            raise InvalidDefinition(
                f"a {type(each).__name__} of agent {agent} is no Subscription", agent=agent
            )
    names = [each.name for each in given]
    if len(set(names)) < len(names):
        raise InvalidDefinition(
            f"{agent} has several subscriptions of the same name: name each for its receiver",
            agent=agent,
        )
    return tuple(given)
