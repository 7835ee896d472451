"""Executes one agent's model calls and tool calls in one worker, for the engine.

Owns which model is asked, and which functions of the users' are asked about a call: it is the
engine's `Executor`. Refuses to know the log. Asking a model is in `model_call.py`, running a tool
in `tool_call.py`, running a rule in `rule_run.py`.
"""

import asyncio
import inspect
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any

from outlast.agents.agent import Agent
from outlast.agents.context.compact import Compaction
from outlast.agents.decision import LONGEST_DECISION
from outlast.agents.model.client import (
    ModelClient,
)
from outlast.agents.prompt.render import PromptRenderer
from outlast.agents.runtime.environment import ALONE, Environment
from outlast.agents.runtime.json_value import to_json
from outlast.agents.runtime.loop_watch import LoopWatch, noted
from outlast.agents.runtime.model_call import ModelCaller, output_of
from outlast.agents.runtime.rule_run import RuleRunner, last_words
from outlast.agents.runtime.thread import ToolThreads
from outlast.agents.runtime.tool_call import ToolRunner, dedupe_of
from outlast.agents.state.change_request import make
from outlast.agents.tool import Tool, may_approve
from outlast.clock import Clock
from outlast.core.action import CallModel, CheckCompletion, CompactContext, GiveFeedback, Start
from outlast.core.breaker import Provider
from outlast.core.budget_admission import CallEstimate
from outlast.core.lane import ArrivedReply, Lane, OpenCall, OpenRequest
from outlast.core.limit import Bound
from outlast.core.record import IdempotencyKey, StateChanged, StateChangeRequested
from outlast.core.request import requesters
from outlast.core.result import (
    Answered,
    CallPrice,
    ChildContact,
    Compacted,
    CompletionChecked,
    FeedbackCollected,
    ModelFailed,
    SummaryLost,
    ToolEnd,
    Usage,
)
from outlast.core.slice import Slices, StateRecord
from outlast.core.view import View
from outlast.engine.call_tasks import CallTimeouts
from outlast.engine.executor import CallJournal, CallSlot, Hear, LaneModel
from outlast.errors import OutputChanged
from outlast.log_context import get_logger

log = get_logger("outlast.agents")

A_MINUTE = CallTimeouts(60.0)


class AgentExecutor:
    """One agent at work in one worker."""

    def __init__(
        self,
        agent: Agent[Any, Any],
        clients: Sequence[ModelClient],
        deps: Any,
        threads: ToolThreads,
        clock: Clock,
        environment: Environment = ALONE,
        watch: LoopWatch | None = None,
    ) -> None:
        self.policy = agent.policy
        self._agent = agent
        self._environment = environment
        self._threads = threads
        self._watch = watch
        self._rules = RuleRunner(agent, deps, threads, watch)
        # One for all models: what a section says does not depend on which of them is asked.
        renderer = PromptRenderer(agent.prompt, deps, watch) if agent.prompt else None
        self._callers = {
            name: ModelCaller(
                agent, number, client, deps, clock, environment, self._rules, renderer, watch
            )
            for number, (name, client) in enumerate(zip(agent.policy.models, clients, strict=True))
        }
        self._first_caller = next(iter(self._callers.values()))
        self._runner = ToolRunner(agent, deps, clock, environment, watch)

    # The model

    def _caller(self, lane: Lane) -> ModelCaller:
        """Return what asks the model that a lane asks next: the first, or that of its fallback."""
        # Looked up in each step, nearly always with this answer.
        if lane.turn is None or not lane.turn.fallback:
            return self._first_caller
        return self._callers[self.policy.model(lane.turn.fallback)]

    def providers(self) -> Collection[Provider]:
        # Nothing waits for a provider then, so there is no line to stand in and no breaker to look
        # at.
        if self.policy.provider_patience <= 0:
            return ()
        return [caller.provider for caller in self._callers.values()]

    def provider_of(self, lane: Lane, model: str = "") -> Provider | None:
        caller = self._callers[model] if model else self._caller(lane)
        return caller.provider if self.policy.provider_patience > 0 else None

    def model_of(self, lane: Lane) -> LaneModel:
        return self._caller(lane).model

    def estimate(
        self, lane: Lane, slices: Slices, view: View, joins: Sequence[str]
    ) -> Coroutine[Any, Any, CallEstimate]:
        return self._caller(lane).estimate(lane, slices, view, joins)

    def price(self, lane: Lane, input_tokens: int, output_tokens: int) -> CallPrice | None:
        return self._caller(lane).pricing.price_of(Usage(input_tokens, output_tokens))

    def model_timeouts(self, lane: Lane) -> CallTimeouts:
        return self._caller(lane).timeouts

    def bounds_of_model(self, lane: Lane, *, starts_turn: bool) -> tuple[Bound, ...]:
        caller = self._caller(lane)
        return caller.bounds_of_turn if starts_turn else caller.bounds_of_call

    def call_model(
        self, lane: Lane, slices: Slices, view: View, action: CallModel, hear: Hear
    ) -> Coroutine[Any, Any, Answered | ModelFailed]:
        return self._caller(lane).call_model(lane, slices, view, action, hear)

    def timed_out(self, lane: Lane) -> ModelFailed:
        return self._caller(lane).timed_out(lane)

    def change_state(self, change: StateChangeRequested, slices: Slices) -> list[StateRecord]:
        with noted(self._watch, reducer=change.slice or change.event):
            return make(change, slices)

    def cut_off(self, lane: Lane) -> ModelFailed:
        return self._caller(lane).cut_off(lane)

    def output_of(self, text: str, output: str | None) -> str:
        return to_json(output_of(text, output, self._agent))

    # The tools

    def run_tool(
        self, call: OpenCall, start: Start, journal: CallJournal
    ) -> Coroutine[Any, Any, ToolEnd | None]:
        return self._runner.run_tool(call, start, journal)

    async def contact_child(self, lane: Lane, child: OpenRequest) -> ChildContact:
        """Contact a remote child's server. Whatever keeps it from that, it is tried again."""
        assert child.remote is not None
        name, away = child.remote.agent, ChildContact(request_id=child.request_id)
        # In the code of now, not of when the child was started: its address and its key may have
        # been mended.
        remote = self._agent.elsewhere.get(name) or self._environment.remotes.get(name)
        if remote is None:
            log.warning("a remote agent is not known here any more", extra={"remote": name})
            return away
        try:
            return await remote.contact(lane, child, self._environment.public_url)
        except Exception:  # what another server says can be anything
            log.exception("a remote agent could not be contacted", extra={"remote": name})
            return away

    def tool_timeouts(self, tool: str) -> CallTimeouts:
        known = self._agent.find_tool(tool)
        return CallTimeouts(known.timeout) if known else A_MINUTE

    def bounds_of_tool(self, call: OpenCall, lane: Lane) -> tuple[Bound, ...]:
        tool = self._agent.find_tool(call.tool)
        if tool is None or (tool.mutex is None and tool.limit is None):
            return ()
        try:
            return tool.bounds(tool.arguments.parse(call.args), lane.tenant)
        except Exception:  # noqa: BLE001 - running it says what is wrong with its arguments or lane
            return ()

    def key_of_tool(self, call: OpenCall, lane: Lane) -> IdempotencyKey | None:
        tool = self._agent.find_tool(call.tool)
        try:
            return dedupe_of(tool, tool.arguments.parse(call.args), lane) if tool else None
        except Exception:  # noqa: BLE001 - running it says what is wrong with its arguments or key
            return None

    def note_of_tool(self, call: OpenCall, lane: Lane, slices: Slices) -> StateChanged | None:
        tool = self._agent.find_tool(call.tool)
        if tool is None or self._agent.rules.is_empty:
            return None
        try:
            args = tool.arguments.parse(call.args)
            return self._agent.rules.note(tool, args, lane, slices)
        except Exception:  # noqa: BLE001 - the arguments', or the user's own functions'
            return None

    def slot_for(
        self, call: OpenCall, start: Start, tenant: str, tell: Callable[[], None]
    ) -> CallSlot | None:
        tool = self._agent.find_tool(call.tool)
        return self._threads.place(tell, tenant) if tool and needs_thread(tool, start) else None

    async def may_answer(self, lane: Lane, reply: ArrivedReply) -> bool:
        """Ask the tool; what it cannot say in time is a no."""
        tool = self._tool_asked_about(lane, reply)
        if tool is None:
            return True
        try:
            # The lane stands still meanwhile: the answer is taken, or not, by its own loop.
            async with asyncio.timeout(LONGEST_DECISION):
                return await may_approve(tool, reply.principal, requesters(lane), self._watch)
        except Exception:  # the user's own function
            log.exception("approvers failed; the answer is refused", extra={"tool": tool.name})
            return False

    def digests(self) -> dict[str, str]:
        return self._agent.digests()

    def misfit(self, call: OpenCall) -> str:
        tool = self._agent.find_tool(call.tool)
        return tool.misfit(call.tool, call.args) if tool else ""

    def _tool_asked_about(self, lane: Lane, reply: ArrivedReply) -> Tool | None:
        """Return the tool whose call waits for this answer to run; other waits have no tool."""
        request = lane.turn.requests.get(reply.request_id) if lane.turn else None
        if not (lane.turn and request and request.is_question) or request.name or request.origin:
            return None
        call = lane.turn.calls.get(request.call_id)
        return self._agent.find_tool(call.tool) if call else None  # a budget's is about none

    # The context

    def needs_summary(self, slices: Slices, view: View, action: CompactContext) -> bool:
        return Compaction(self._agent, slices, view, action).needs_summary

    def compact(self, slices: Slices, view: View, action: CompactContext) -> Compacted:
        return Compaction(self._agent, slices, view, action).done()

    def sum_up(
        self, lane: Lane, slices: Slices, view: View, action: CompactContext, hear: Hear
    ) -> Coroutine[Any, Any, Compacted | SummaryLost]:
        ask = partial(self._caller(lane).sum_up, lane, action, hear)
        return Compaction(self._agent, slices, view, action).sum_up(ask)

    # The rules

    def give_feedback(
        self, lane: Lane, slices: Slices, view: View, action: GiveFeedback, now: int
    ) -> Coroutine[Any, Any, FeedbackCollected]:
        return self._rules.give_feedback(lane, slices, view, action, now)

    async def check_completion(
        self, lane: Lane, slices: Slices, view: View, action: CheckCompletion, now: int
    ) -> CompletionChecked:
        assert lane.turn is not None
        args = lane.turn.calls[action.output].args if action.output else None
        try:
            output = output_of(last_words(view.messages), args, self._agent)
        except OutputChanged as changed:  # by a deployment: the model has to answer anew
            reasons = {"output_type": changed.message}
            return CompletionChecked(action.turn, action.step, self.policy.checkers, reasons)
        return await self._rules.check_completion(lane, slices, view, action, output, now)


def needs_thread(tool: Tool, start: Start) -> bool:
    """Say whether a run of a tool calls a function that is not async."""
    reconcile = tool.on_interrupt if start.reconciles else None
    return not tool.is_async or (callable(reconcile) and not inspect.iscoroutinefunction(reconcile))
