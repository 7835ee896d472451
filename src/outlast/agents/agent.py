"""An agent: a model, instructions and tools, and how it should behave; and the agents of an app.

Owns what an agent is made of and the finding of agents by name. What each setting may be is checked
in `validation.py`; a call's way through an agent begins in `runtime/executor.py`.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Generic

import msgspec
from typing_extensions import TypeVar

from outlast.agents.budget import Budget, checked_budget
from outlast.agents.context.policy import ON_OVERFLOW, ContextPolicy, checked_context
from outlast.agents.context.tool import reading_tool
from outlast.agents.limit import checked_limit
from outlast.agents.milestone import STEP_DONE, MilestoneTrigger
from outlast.agents.model.client import ModelClient
from outlast.agents.model.price import checked_prices
from outlast.agents.options import DEFAULT_LIMITS, DEFAULT_MODEL_OPTIONS, Limits, ModelOptions
from outlast.agents.planning.planning import Planning
from outlast.agents.planning.tool import planning_tools
from outlast.agents.prompt.template import PromptTemplate, with_guidance
from outlast.agents.rule import Rule
from outlast.agents.rule_set import checked_rules
from outlast.agents.runtime.context import InstructionContext
from outlast.agents.skill.skill import SkillSource, read_skills
from outlast.agents.skill.tool import guidance_of, skill_tools
from outlast.agents.subagent import (
    AgentHost,
    AskableAgent,
    RemotelyHosted,
    tool_for,
    with_subagents,
)
from outlast.agents.subscription import Subscription
from outlast.agents.tool import Function, Tool
from outlast.agents.validation import (
    alias_names,
    checked_instructions,
    checked_list,
    checked_milestones,
    checked_models,
    checked_name,
    checked_planning,
    checked_settings,
    checked_subscriptions,
    model_name,
    output_spec,
    subagent_tools,
    tools_by_name,
)
from outlast.core.policy import OnBusy, OnPartial, Policy, Resume
from outlast.core.queue import check_queue
from outlast.core.setting import count_of, group_of, listed, one_of, seconds_of
from outlast.errors import InvalidDefinition, UnknownAgent


def digest_of(seen: Any) -> str:
    """Return a digest of what somebody sees; the order of names says nothing."""
    text = json.dumps(msgspec.to_builtins(seen), sort_keys=True)
    return blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


Deps = TypeVar("Deps", default=Any)
Out = TypeVar("Out", default=str)

Instructions = str | Callable[[InstructionContext[Any]], str | Awaitable[str]] | PromptTemplate


class Agent(Generic[Deps, Out]):
    """A model, instructions and tools: what a session runs.

    Args:
        name: Unique in the app. Sessions are bound to it, so keep it.
        model: A pydantic-ai model name such as "openai:gpt-5.2", a pydantic-ai Model or a
            ModelClient; or a list of these: if one is not available, the turn goes on with the
            next.
        instructions: A text, a function of a context with `session` and `deps`, or a
            `PromptTemplate` (`outlast.prompts`).
        tools: Functions, or the results of `@tool`. With `outlast.ask_question` the model can ask
            the human.
        output_type: The type of the final answer; text if it is None.
        description: What other agents' models are told about this agent.
        subagents: Agents that the model may hand work to.
        on_busy: What a message does that arrives during a turn: "queue", "join" or "interrupt".
        subscriptions: URLs to which events of its sessions are posted.
        rules: Policies about tool calls, feedback for the model, and checks before a turn may end
            (`outlast.rules`).
        planning: Gives the model tools to keep a plan (`outlast.planning`).
        milestones: Says which calls are milestones (`outlast.milestones`); by default those that
            mark a step of a plan as done.
        resume: How the model goes on after a crash or a retry: in the conversation ("transcript"),
            or from the last "milestone" with a new prompt.
        skills: A folder of instructions that the model loads when a task needs them
            (`outlast.skills`), or several.
        context: How much of a long session the model is sent.
        budget: What a session may use, with all that it starts.
        model_options: How the model is called.
        limits: How much a session may use of steps, time and crashes.
    """

    def __init__(
        self,
        name: str,
        model: str | ModelClient | Sequence[str | ModelClient | Any] | Any,
        *,
        instructions: Instructions = "",
        tools: Sequence[Tool | Function] = (),
        output_type: type[Out] | None = None,
        description: str = "",
        subagents: Sequence[AskableAgent] = (),
        on_busy: OnBusy = "queue",
        subscriptions: Sequence[Subscription] = (),
        rules: Sequence[Rule] = (),
        planning: Planning | None = None,
        milestones: MilestoneTrigger | None = None,
        resume: Resume = "transcript",
        skills: SkillSource | None = None,
        context: ContextPolicy | None = None,
        budget: Budget | None = None,
        model_options: ModelOptions = DEFAULT_MODEL_OPTIONS,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        model_options = group_of(ModelOptions, "model_options", model_options)
        limits = group_of(Limits, "limits", limits)
        self.name = checked_name(name)
        self.planning = checked_planning(name, planning)
        self.instructions: Instructions = checked_instructions(name, instructions)
        self.skills = read_skills(name, skills)
        self.context = checked_context(name, context)
        bounds = self.context or ON_OVERFLOW
        guidance = guidance_of(self.skills)
        self.prompt = (
            with_guidance(instructions, self.planning, guidance)
            if isinstance(instructions, PromptTemplate)
            else None
        )
        own = [*checked_list(name, "tools", tools), *(self.prompt.tools if self.prompt else ())]
        others = [
            *subagent_tools(name, subagents),
            *(planning_tools() if self.planning else ()),
            *skill_tools(self.skills),
            *([reading_tool(self.context)] if self.context else ()),
        ]
        self.tools = tools_by_name(name, own, others)
        self.aliases = alias_names(name, self.tools)
        texts = [self.planning.instructions if self.planning else "", guidance]
        self.guidance = "\n\n".join(filter(None, texts))
        self.specs = tuple(tool.spec for tool in self.tools.values())
        self.output, self.wraps_output = output_spec(name, output_type)
        self.subscriptions = checked_subscriptions(name, subscriptions)
        remote = [each.host for each in subagents if isinstance(each, RemotelyHosted)]
        self.elsewhere = {each.name: each for each in remote}
        self.rules = checked_rules(name, rules, self.tools)
        resume = one_of(Resume, "resume", resume)
        self.milestones = checked_milestones(name, milestones, self.planning, resume) or STEP_DONE
        self.limit = checked_limit("limits.turns", limits.turns)
        self.queue = check_queue(limits.queue) if limits.queue else ""
        self.model, self.models = model, checked_models(name, model)
        self.budget = checked_budget("budget", budget)
        turn_budget = checked_budget("limits.turn_budget", limits.turn_budget)
        self.policy = Policy(
            on_busy=one_of(OnBusy, "on_busy", on_busy),
            on_partial=one_of(OnPartial, "on_partial", model_options.on_partial),
            max_steps=count_of("max_steps", limits.max_steps),
            max_crashes=count_of("max_crashes", limits.max_crashes),
            max_corrections=count_of("max_corrections", limits.max_corrections, least=0),
            turn_timeout=int(seconds_of("turn_timeout", limits.turn_timeout) * 1000),
            max_attempts=count_of("max_attempts", model_options.max_attempts),
            provider_patience=int(
                seconds_of("provider_patience", model_options.provider_patience, or_none=True)
                * 1000
            ),
            models=tuple(model_name(each) for each in self.models),
            typed=output_type is not None,
            at_once=self.limit.concurrency if self.limit else 0,
            tools={
                known: tool.policy
                for tool in self.tools.values()
                for known in (tool.name, *tool.aliases)
            },
            feedback=self.rules.triggers,
            checkers=self.rules.checker_names,
            max_refusals=count_of("max_refusals", limits.max_refusals, least=0),
            resume=resume,
            most_tokens=bounds.most_tokens,
            longest_result=bounds.longest_result,
            summarizes=bounds.summarize,
            turn_budget=turn_budget.terms if turn_budget else None,
            session_budget=self.budget.terms if self.budget else None,
        )
        self.model_timeout = seconds_of("timeout", model_options.timeout)
        self.idle_timeout = seconds_of("idle_timeout", model_options.idle_timeout)
        self.model_settings = checked_settings(name, model_options.settings)
        self.prices = checked_prices(model_options.prices)
        self.model_limit = checked_limit("model_options.limit", model_options.limit)
        self.stream = model_options.stream
        self.output_type = output_type
        self.description = description
        self.subagents = tuple(subagents)
        self.max_depth = count_of("max_depth", limits.max_depth, least=0)

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    def digests(self) -> dict[str, str]:
        """Return digests of what its model and its callers see, by what they are of."""
        parts = {f"{self.name}.tool.{spec.name}": digest_of(spec) for spec in self.specs}
        parts[f"{self.name}.output"] = digest_of(self.output.schema if self.output else "text")
        return {**parts, self.name: digest_of([self.description, sorted(parts.items())])}

    def find_tool(self, name: str) -> Tool | None:
        """Return the tool with a name, or the one that had the name before."""
        return self.tools.get(name) or self.tools.get(self.aliases.get(name, ""))

    def as_tool(self) -> Tool:
        """Return the tool by which another agent's model hands work to this one."""
        return tool_for(self)


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
