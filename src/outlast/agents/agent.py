"""An agent: a model, instructions and tools, and how it should behave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from outlast.agents.limit import Limit, checked_limit
from outlast.agents.model.client import ModelClient
from outlast.agents.subagent import MAX_DEPTH, AskableAgent, RemotelyHosted, tool_for
from outlast.agents.subscription import Subscription
from outlast.agents.tool import Function, Tool
from outlast.agents.validation import (
    checked_instructions,
    checked_model,
    checked_name,
    checked_settings,
    collect,
    one_of_each_name,
    output_spec,
    tools_of,
)
from outlast.core.policy import HOUR, OnBusy, OnPartial, Policy
from outlast.core.setting import count_of, one_of, seconds_of

Deps = TypeVar("Deps")
Out = TypeVar("Out")

Instructions = str | Callable[[Any], str | Awaitable[str]]


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
        subagents: Sequence[AskableAgent] = (),
        max_depth: int = MAX_DEPTH,
    ) -> None:
        self.name = checked_name(name)
        self.tools = collect(name, tools, tools_of(name, subagents), ask_question)
        self.specs = tuple(tool.spec for tool in self.tools.values())
        self.output, self.wraps_output = output_spec(name, output_type)
        self.subscriptions = one_of_each_name(name, subscriptions)
        self.elsewhere = {each.name: each for each in subagents if isinstance(each, RemotelyHosted)}
        self.limit = checked_limit("limit", limit)
        self.policy = Policy(
            on_busy=one_of(OnBusy, "on_busy", on_busy),
            on_partial=one_of(OnPartial, "on_partial", on_partial),
            max_steps=count_of("max_steps", max_steps),
            max_attempts=count_of("max_attempts", max_attempts),
            max_corrections=count_of("max_corrections", max_corrections, least=0),
            turn_timeout=int(seconds_of("turn_timeout", turn_timeout) * 1000),
            model_tries=count_of("model_tries", model_tries),
            typed=output_type is not None,
            at_once=self.limit.concurrency if self.limit else 0,
            tools={tool.name: tool.policy for tool in self.tools.values()},
        )
        self.model = checked_model(name, model)
        self.model_timeout = seconds_of("model_timeout", model_timeout)
        self.idle_timeout = seconds_of("idle_timeout", idle_timeout)
        self.model_settings = checked_settings(name, model_settings)
        self.model_limit = checked_limit("model_limit", model_limit)
        self.stream = stream
        self.instructions: Instructions = checked_instructions(name, instructions)
        self.output_type = output_type
        self.description = description
        self.subagents = tuple(subagents)
        self.max_depth = count_of("max_depth", max_depth, least=0)

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    def as_tool(self) -> Tool:
        """Return the tool by which another agent's model hands work to this one."""
        return tool_for(self)
