"""An agent: a model, instructions and tools, and how it should behave."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from holdfast.agents.context import Context
from holdfast.agents.limit import Limit
from holdfast.agents.model import ModelClient, ToolSpec
from holdfast.agents.subagent import MAX_DEPTH, Askable, Elsewhere, tool_for
from holdfast.agents.tool import Function, Tool, tool
from holdfast.core.policy import HOUR, OnBusy, OnPartial, Policy
from holdfast.core.record import Option
from holdfast.errors import InvalidDefinition
from holdfast.webhook.subscription import Subscription

Deps = TypeVar("Deps")
Out = TypeVar("Out")

Instructions = str | Callable[[Any], str | Awaitable[str]]

OUTPUT_TOOL = "final_result"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class Agent(Generic[Deps, Out]):
    """What a session runs. Durations are seconds.

    `model` is a pydantic-ai model name such as "openai:gpt-5.2", a pydantic-ai Model, or any
    ModelClient. `instructions` may be a function of a context with `session` and `deps`.
    With `output_type` the final answer is a value of that type. `ask_question` gives the model
    a tool to ask the human. `limit` holds for the agent's lanes at work and the turns that they
    start, `model_limit` for the calls of its model by all agents that name the same.
    """

    def __init__(
        self,
        name: str,
        model: str | ModelClient | Any,
        *,
        instructions: Instructions = "",
        tools: Sequence[Tool | Function] = (),
        output_type: type[Out] | None = None,
        on_busy: OnBusy = "queue",
        on_partial: OnPartial = "continue",
        max_steps: int = 50,
        max_attempts: int = 10,
        max_corrections: int = 3,
        turn_timeout: float = HOUR / 1000,
        model_tries: int = 4,
        model_timeout: float = 600.0,
        idle_timeout: float = 120.0,
        model_settings: Mapping[str, Any] | None = None,
        stream: bool = True,
        ask_question: bool = False,
        limit: Limit | None = None,
        model_limit: Limit | None = None,
        subscriptions: Sequence[Subscription] = (),
        description: str = "",
        subagents: Sequence[Askable] = (),
        max_depth: int = MAX_DEPTH,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidDefinition(
                f"{name!r} cannot be an agent's name: begin with a letter, then letters, digits,"
                " _ and -, at most 64"
            )
        self.name = name
        self.model = model
        self.instructions = instructions
        self.description = description
        self.subagents = tuple(subagents)
        self.elsewhere = {each.name: each for each in subagents if isinstance(each, Elsewhere)}
        self.max_depth = max_depth
        self.tools = collect(name, [*tools, *(each.as_tool() for each in subagents)], ask_question)
        self.output_type = output_type
        self.model_timeout = model_timeout
        self.idle_timeout = idle_timeout
        self.model_settings = dict(model_settings or {})
        self.stream = stream
        self.limit = limit
        self.model_limit = model_limit
        self.subscriptions = one_of_each_name(name, subscriptions)
        self.output, self.wraps_output = output_spec(name, output_type)
        self.policy = Policy(
            on_busy=on_busy,
            on_partial=on_partial,
            max_steps=max_steps,
            max_attempts=max_attempts,
            max_corrections=max_corrections,
            turn_timeout=int(turn_timeout * 1000),
            model_tries=model_tries,
            typed=output_type is not None,
            at_once=limit.concurrency if limit else 0,
            tools={tool.name: tool.policy for tool in self.tools.values()},
        )
        self.specs = tuple(tool.spec for tool in self.tools.values())

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    def as_tool(self) -> Tool:
        """Return the tool by which another agent's model hands work to this one."""
        return tool_for(self)


def collect(agent: str, tools: Sequence[Tool | Function], ask: bool) -> dict[str, Tool]:
    given: list[Tool | Function] = [*tools, *([ask_question] if ask else [])]
    found: dict[str, Tool] = {}
    for item in given:
        made = item if isinstance(item, Tool) else Tool(item)
        if made.name in found or made.name == OUTPUT_TOOL:
            raise InvalidDefinition(
                f"agent {agent} has two tools named {made.name}: give one another name", agent=agent
            )
        found[made.name] = made
    return found


def output_spec(agent: str, kind: type | None) -> tuple[ToolSpec | None, bool]:
    """Return the tool by which the model gives a typed answer, and whether it wraps a value."""
    if kind is None:
        return None, False
    try:
        schema = TypeAdapter(kind).json_schema()
    except PydanticUserError as error:
        raise InvalidDefinition(
            f"the output_type of agent {agent} has no schema: {error}", agent=agent
        ) from error
    wraps = schema.get("type") != "object"
    if wraps:
        schema = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
    return ToolSpec(OUTPUT_TOOL, "Give the final answer.", schema), wraps


@tool(name="ask_question", idempotent=True)
async def ask_question(ctx: Context[Any], question: str, options: list[str] | None = None) -> str:
    """Ask the human a question and wait for the answer.

    Args:
        question: What you want to know.
        options: Answers to choose from, if there are only a few.
    """
    answer = await ctx.ask(question, [Option(o, o) for o in options or ()])
    return answer.text or answer.option


def one_of_each_name(agent: str, given: Sequence[Subscription]) -> tuple[Subscription, ...]:
    names = [each.name for each in given]
    if len(set(names)) < len(names):
        raise InvalidDefinition(
            f"{agent} has several subscriptions of the same name: name each for its receiver",
            agent=agent,
        )
    return tuple(given)
