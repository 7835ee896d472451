"""The typed answer of an agent, from the text or the arguments in which a model gives it."""

from __future__ import annotations

from typing import Any

from outlast.agents.agent import Agent
from outlast.agents.runtime.json_value import TypeMismatch, fitted, from_json, to_json
from outlast.agents.validation import OUTPUT_TOOL
from outlast.errors import OutputChanged, Retry


def check_output(args: str, agent: Agent[Any, Any]) -> None:
    """Have the model correct an answer that is not of the agent's output type."""
    try:
        value_of(args, agent)
    except TypeMismatch as why:
        raise Retry(f"the answer does not fit: {why}") from None


def misfit_of(text: str, agent: Agent[Any, Any]) -> str:
    """Say why a text is no answer of an agent with an output type; nothing, if it is one."""
    try:
        fitted(text, agent.output_type)
    except TypeMismatch as why:
        return f"{why}; call {OUTPUT_TOOL} with it"
    return ""


def output_of(text: str, output: str | None, agent: Agent[Any, Any]) -> Any:
    """Return what an agent answered, in a text or as the output tool's arguments.

    Raises OutputChanged if that is not of the type which the agent has today.
    """
    if agent.output_type is None:
        return text if output is None else from_json(output)
    try:
        return fitted(text, agent.output_type) if output is None else value_of(output, agent)
    except TypeMismatch as why:
        name = getattr(agent.output_type, "__name__", agent.output_type)
        said = text if output is None else output
        raise OutputChanged(
            f"what {agent.name} had answered is no {name} as that is today: {why}; give new fields"
            " defaults, or take the answer as it was said from this error's details: output",
            agent=agent.name,
            output=said,
        ) from None


def value_of(args: str, agent: Agent[Any, Any]) -> Any:
    """Return the value that the output tool's arguments hold. Raises Misfit."""
    if agent.wraps_output:
        args = to_json(fitted(args, dict[str, Any]).get("value"))
    return fitted(args, agent.output_type)
