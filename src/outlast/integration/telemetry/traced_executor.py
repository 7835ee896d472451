"""An executor with a span and a measurement for each model call and each tool call.

Also logs what failed, with the ids of the session, turn and call.
"""

from __future__ import annotations

from typing import Any

from outlast.agents.agent import Agent
from outlast.clock import Clock
from outlast.core.action import CallModel, Start
from outlast.core.lane import Lane, OpenCall
from outlast.core.result import (
    Answered,
    Interrupted,
    ModelFailed,
    Raised,
    Returned,
    ToolEnd,
    ToolWaits,
)
from outlast.core.slices import Slices
from outlast.core.view import View
from outlast.engine.executor import CallJournal, Executor, Hear
from outlast.integration.telemetry import content
from outlast.integration.telemetry.instrument import Instruments
from outlast.log_context import enter, get_logger

log = get_logger("outlast.engine")

PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "grok": "x_ai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""The conventions' names for providers, where they differ from ours."""


class TracedExecutor:
    """Wraps another executor. `model` is the name of its model."""

    def __init__(
        self,
        executor: Executor,
        agent: Agent[Any, Any],
        model: str,
        clock: Clock,
        instruments: Instruments | None,
    ) -> None:
        self._executor = executor
        self._agent = agent
        self._clock = clock
        self._to = instruments
        self._facts = model_facts(model)
        # Not worth a span: passed through without a further call.
        self.policy = executor.policy
        self.model_timeouts = executor.model_timeouts
        self.tool_timeouts = executor.tool_timeouts
        self.bounds_of_model = executor.bounds_of_model
        self.bounds_of_tool = executor.bounds_of_tool
        self.key_of_tool = executor.key_of_tool
        self.slot_for = executor.slot_for
        self.may_answer = executor.may_answer
        self.cut_off = executor.cut_off
        self.timed_out = executor.timed_out
        self.output_of = executor.output_of

    # The model

    async def call_model(
        self, lane: Lane, slices: Slices, view: View, action: CallModel, hear: Hear
    ) -> Answered | ModelFailed:
        enter(turn=action.turn, step=action.step, call=action.call_id, attempt=action.attempt)
        if self._to is None or not self._to.is_heard:
            result = await self._executor.call_model(lane, slices, view, action, hear)
        else:
            result = await self._trace_model(self._to, lane, slices, view, action, hear)
        if isinstance(result, ModelFailed):
            log.info("a model call failed", extra={"code": result.error.code, "kind": result.kind})
        return result

    async def _trace_model(
        self,
        to: Instruments,
        lane: Lane,
        slices: Slices,
        view: View,
        action: CallModel,
        hear: Hear,
    ) -> Answered | ModelFailed:
        name = f"chat {self._facts['gen_ai.request.model']}"
        facts = {**self._facts, "gen_ai.conversation.id": lane.session}
        began = self._clock.monotonic()
        with to.span(name, lane.session, action.turn, facts, client=True) as span:
            if span.is_recording():
                self._before(to, span, view)
            result = await self._executor.call_model(lane, slices, view, action, hear)
            if span.is_recording():
                self._after(to, span, result)
        self._measure(to, result, self._clock.monotonic() - began)
        return result

    def _before(self, to: Instruments, span: Any, view: View) -> None:
        span.set_attribute("gen_ai.agent.name", self._agent.name)
        span.set_attribute("gen_ai.request.stream", self._agent.stream)
        if to.telemetry.content:
            span.set_attribute("gen_ai.input.messages", content.messages(view.messages))
            if isinstance(self._agent.instructions, str) and self._agent.instructions:
                told = [{"type": "text", "content": self._agent.instructions}]
                span.set_attribute("gen_ai.system_instructions", content.to_json(told))

    def _after(self, to: Instruments, span: Any, result: Answered | ModelFailed) -> None:
        if isinstance(result, ModelFailed):
            to.fail(span, result.error.code, result.error.message)
            return
        usage = result.usage
        span.set_attributes(
            {
                "gen_ai.response.model": result.model,
                "gen_ai.response.finish_reasons": [result.finish],
                "gen_ai.usage.input_tokens": usage.input_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
                "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
            }
        )
        if to.telemetry.content:
            told = content.answer(result.parts, result.finish)
            span.set_attribute("gen_ai.output.messages", told)

    def _measure(self, to: Instruments, result: Answered | ModelFailed, seconds: float) -> None:
        if isinstance(result, ModelFailed):
            to.model_calls.record(seconds, {**self._facts, "error.type": result.error.code})
            return
        facts = {**self._facts, "gen_ai.response.model": result.model}
        to.model_calls.record(seconds, facts)
        to.tokens.record(result.usage.input_tokens, {**facts, "gen_ai.token.type": "input"})
        to.tokens.record(result.usage.output_tokens, {**facts, "gen_ai.token.type": "output"})

    # The tools

    async def run_tool(self, call: OpenCall, start: Start, journal: CallJournal) -> ToolEnd | None:
        assert journal.lane.turn is not None
        turn = journal.lane.turn.id
        enter(turn=turn, step=journal.lane.turn.step, call=call.call_id, attempt=start.attempt)
        if call.request:
            enter(request=call.request)
        if self._to is None or not self._to.is_heard:
            end = await self._executor.run_tool(call, start, journal)
        else:
            end = await self._trace_tool(self._to, turn, call, start, journal)
        if isinstance(end, Raised):
            log.info("a tool failed", extra={"tool": call.tool, "code": end.error.code})
        return end

    async def _trace_tool(
        self, to: Instruments, turn: str, call: OpenCall, start: Start, journal: CallJournal
    ) -> ToolEnd | None:
        session = journal.lane.session
        facts = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call.tool}
        began = self._clock.monotonic()
        name = f"execute_tool {call.tool}"
        with to.span(name, session, turn, facts, client=False) as span:
            end = await self._executor.run_tool(call, start, journal)
            if span.is_recording():
                self._describe(to, span, call, session, end)
        outcome = {"gen_ai.tool.name": call.tool, "outlast.outcome": outcome_of(end)}
        to.tools.record(self._clock.monotonic() - began, outcome)
        return end

    def _describe(
        self, to: Instruments, span: Any, call: OpenCall, session: str, end: ToolEnd | None
    ) -> None:
        span.set_attributes(
            {
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": call.call_id,
                "gen_ai.agent.name": self._agent.name,
                "gen_ai.conversation.id": session,
                "outlast.outcome": outcome_of(end),
            }
        )
        match end:
            case Raised(error=error):
                to.fail(span, error.code, error.message)
            case Interrupted(reason=reason):
                to.fail(span, "INTERRUPTED", reason)
        if to.telemetry.content:
            span.set_attribute("gen_ai.tool.call.arguments", call.args)
            if isinstance(end, Returned):
                span.set_attribute("gen_ai.tool.call.result", end.value)


def outcome_of(end: ToolEnd | None) -> str:
    """Name how a tool call ended; `recorded` if its end was written in its own transaction."""
    match end:
        case Returned():
            return "returned"
        case Raised():
            return "raised"
        case Interrupted():
            return "interrupted"
        case ToolWaits():
            return "waits"
        case None:
            return "recorded"


def model_facts(name: str) -> dict[str, str]:
    """Return the attributes of a model by the conventions, from its name: `openai:gpt-5.2`."""
    provider, _, model = name.rpartition(":")
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDERS.get(provider, provider or "unknown"),
        "gen_ai.request.model": model,
    }
