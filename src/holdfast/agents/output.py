"""The typed answer of an agent, from the text or the arguments in which a model gives it."""

from __future__ import annotations

from typing import Any

from holdfast.agents.agent import Agent
from holdfast.agents.model import AnswerCutOff
from holdfast.agents.value import from_json, to_json
from holdfast.errors import Retry, StoreCorrupt


def check_output(args: str, agent: Agent[Any, Any]) -> None:
    try:
        output_value(args, agent)
    except StoreCorrupt as error:
        raise Retry(f"the answer does not fit: {error}") from None


def output_value(args: str, agent: Agent[Any, Any]) -> Any:
    """Return the typed answer that the output tool's arguments hold."""
    if agent.wraps_output:
        args = to_json(from_json(args, dict[str, Any]).get("value"))
    return from_json(args, agent.output_type)


def check_text(text: str, agent: Agent[Any, Any]) -> None:
    """Take a text that is not of the agent's output type for an answer that was cut off."""
    try:
        from_json(text, agent.output_type)
    except StoreCorrupt as error:
        raise AnswerCutOff(f"the answer is not of the output type: {error}") from None
