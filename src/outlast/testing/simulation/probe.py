"""Notes each time that an agent's model is asked and each time that one of its tools runs."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from copy import copy
from functools import wraps
from hashlib import blake2b
from typing import Any

import msgspec

from outlast.agents.agent import Agent
from outlast.agents.model.client import ModelClient
from outlast.agents.runtime.environment import Environment
from outlast.agents.runtime.executor import AgentExecutor
from outlast.agents.runtime.thread import ToolThreads
from outlast.agents.tool import Tool
from outlast.clock import Clock
from outlast.core.action import CallModel, CompactContext, Start
from outlast.core.lane import Lane, OpenCall
from outlast.core.result import (
    Answered,
    Compacted,
    ModelFailed,
    Raised,
    Returned,
    SummaryLost,
    ToolEnd,
)
from outlast.core.slice import Slices
from outlast.core.view import View
from outlast.engine.executor import CallJournal, Hear
from outlast.testing.simulation.history import EffectBegan, EffectEnded, History

AT_WORK: ContextVar[dict[str, Any]] = ContextVar("at_work")
"""The call in which the current code runs: its session, id and attempt."""


class ProbedExecutor(AgentExecutor):
    """An agent at work, watched."""

    def __init__(
        self,
        agent: Agent[Any, Any],
        clients: Sequence[ModelClient],
        threads: ToolThreads,
        clock: Clock,
        history: History,
        environment: Environment,
    ) -> None:
        super().__init__(agent, clients, None, threads, clock, environment)
        self._history = history

    async def call_model(
        self, lane: Lane, slices: Slices, view: View, action: CallModel, hear: Hear
    ) -> Answered | ModelFailed:
        call = facts("model", lane.session, action.call_id, action.attempt)
        self._history.note(EffectBegan, **call, shown=digest_of(view))
        result = await super().call_model(lane, slices, view, action, hear)
        how = "answered" if isinstance(result, Answered) else result.kind
        self._history.note(EffectEnded, **call, how=how)
        return result

    async def sum_up(
        self, lane: Lane, slices: Slices, view: View, action: CompactContext, hear: Hear
    ) -> Compacted | SummaryLost:
        self._history.note(
            EffectBegan, **facts("summary", lane.session, action.call_id, action.attempt)
        )
        return await super().sum_up(lane, slices, view, action, hear)

    async def run_tool(self, call: OpenCall, start: Start, journal: CallJournal) -> ToolEnd | None:
        work = facts("tool", journal.lane.session, call.call_id, start.attempt)
        AT_WORK.set(work)
        end = await super().run_tool(call, start, journal)
        how, value = type(end).__name__.lower() if end else "concluded", ""
        if isinstance(end, Returned):
            value = end.value
        elif isinstance(end, Raised):
            value = end.error.message
        self._history.note(EffectEnded, **work, how=how, value=value)
        return end


def digest_of(view: View) -> str:
    """Return a digest of all that a model is shown of its session."""
    shown = msgspec.json.encode(view.messages, order="deterministic")
    return blake2b(shown, digest_size=8).hexdigest()


def facts(kind: str, session_id: str, call_id: str, attempt: int) -> dict[str, Any]:
    return {"kind": kind, "session_id": session_id, "call_id": call_id, "attempt": attempt}


def watch(agent: Agent[Any, Any], history: History) -> Agent[Any, Any]:
    """Return the agent with tools that note when they begin."""
    watched = copy(agent)
    watched.tools = {name: watch_tool(tool, history) for name, tool in agent.tools.items()}
    watched.subagents = tuple(
        watch(each, history) if isinstance(each, Agent) else each for each in agent.subagents
    )
    return watched


def watch_tool(tool: Tool, history: History) -> Tool:
    watched = copy(tool)
    watched.function = noted(tool, history)
    return watched


def noted(tool: Tool, history: History) -> Callable[..., Any]:
    @wraps(tool.function)
    async def run_async(*args: Any, **kwargs: Any) -> Any:
        history.note(EffectBegan, **AT_WORK.get(), name=tool.name)
        return await tool.function(*args, **kwargs)

    @wraps(tool.function)
    def run(*args: Any, **kwargs: Any) -> Any:
        history.note(EffectBegan, **AT_WORK.get(), name=tool.name)
        return tool.function(*args, **kwargs)

    return run_async if tool.is_async else run


def note_step(history: History, name: str) -> None:
    """Note that a step of the current call is being run."""
    history.note(EffectBegan, **{**AT_WORK.get(), "kind": "step"}, name=name)
