"""Makes one compaction for an agent: plans it, and has the model sum up what is left out.

A summary that fails costs nothing: old results are cleared instead, and more messages go only if
the provider has refused the request. When the model is asked is the engine's affair.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from outlast.agents.agent import Agent
from outlast.agents.context.plan import CompactionPlanner, as_text, told_instead
from outlast.agents.context.policy import ON_OVERFLOW, ContextPolicy
from outlast.core.action import CompactContext
from outlast.core.compaction import BYTES_PER_TOKEN, pinned_calls
from outlast.core.message import ToolCall, storable, text_of
from outlast.core.record import Failure
from outlast.core.result import Answered, Compacted, ModelFailed, SummaryLost
from outlast.core.slice import Slices
from outlast.core.view import View
from outlast.log_context import get_logger

log = get_logger("outlast.agents")

INSTRUCTIONS = """\
You sum up the earlier part of a conversation between a user and an assistant that works with tools.
The assistant goes on with your summary in its place, and sees nothing else of that part.
Keep what it needs to go on: what the user wants and has ruled out, in their own words; decisions
and their reasons; what was done, with names, numbers, ids and paths; what failed; what is open.
If the text has an earlier summary, keep all that is in it. Answer with the summary alone."""

EMPTY = Failure("EMPTY_SUMMARY", "the model gave an empty summary")

Ask = Callable[[str, str], Awaitable[Answered | ModelFailed]]
"""Asks the model by some instructions about a text."""


class Compaction:
    """One compaction of a view, planned as far as it goes without leaving messages out."""

    def __init__(
        self, agent: Agent[Any, Any], slices: Slices, view: View, action: CompactContext
    ) -> None:
        policy = agent.context or ON_OVERFLOW
        self._policy = policy
        self._level = action.level
        self._may_sum_up = action.may_sum_up
        self._planner = planner = CompactionPlanner(
            view,
            policy,
            action.tokens,
            pinned=pinned_calls(slices),
            reads=lambda call: resources_read(agent, call),
            is_readable=agent.context is not None,
        )
        # First and in any case: it costs nothing that the model needs, and may be enough.
        if policy.max_result is not None:
            planner.cap_results(policy.max_result)
        self._target = target_of(policy, action, planner)
        if not action.is_near:
            return
        # From what is missed least to what is missed most: results that were read again, old
        # results, messages.
        if policy.superseded:
            planner.drop_superseded()
        if policy.clear or action.level:
            keep = policy.keep_results if action.level < 2 else 0
            planner.clear_results(self._target, keep)
        if planner.size > self._target:
            self._cut()

    def _cut(self) -> None:
        # Messages are left out only with a summary, or if the provider refuses the request as it
        # is.
        if self._policy.summarize and not (self._may_sum_up or self._level):
            self._planner.clear_results(self._target, 0)  # the summary has failed
            return
        self._planner.cut(self._target)

    @property
    def needs_summary(self) -> bool:
        return self._may_sum_up and bool(self._planner.plan.left_out)

    def done(self, summary: str = "") -> Compacted:
        """Return how the view is made shorter."""
        planner = self._planner
        if self._level and planner.size > self._target:
            planner.shorten_messages(self._target)
        return planner.record(storable(told_instead(planner.plan, summary)))

    async def sum_up(self, ask: Ask) -> Compacted | SummaryLost:
        """Return the same with a summary of what is left out."""
        most = int(self._target * BYTES_PER_TOKEN)
        answer = await ask(INSTRUCTIONS, as_text(self._planner.plan.left_out, 2 * most))
        if isinstance(answer, ModelFailed):
            return lost(SummaryLost(answer))
        if not (text := text_of(answer.parts).strip()):
            failed = ModelFailed(EMPTY, "recoverable")
            return lost(SummaryLost(failed, answer.usage, answer.model, answer.price))
        # Bounded: a model may answer with more than it was to sum up.
        done = self.done(text[: most // 3])
        return replace(done, usage=answer.usage, model=answer.model, price=answer.price)


def lost(summary: SummaryLost) -> SummaryLost:
    error = summary.failed.error
    log.warning(
        "a conversation was not summed up, and old results are cleared instead: %s: %s",
        error.code,
        error.message,
        extra={"code": error.code},
    )
    return summary


def target_of(policy: ContextPolicy, action: CompactContext, planner: CompactionPlanner) -> float:
    """Return how many tokens are to be left: less each time that a provider says it is too long."""
    bounds = [planner.size]
    if policy.max_tokens is not None:
        bounds.append(policy.max_tokens)
    return min(bounds) * policy.target ** max(1, action.level)


def resources_read(agent: Agent[Any, Any], call: ToolCall) -> frozenset[str]:
    """Return what a call has read, where its tool says so."""
    tool = agent.find_tool(call.tool)
    if tool is None or not tool.has_resources:
        return frozenset()
    try:
        return frozenset(map(str, tool.reads(tool.arguments.parse(call.args))))
    # Nothing is known of what it has read, so nothing supersedes it.
    except Exception:  # noqa: BLE001 - the arguments', or the user's own function's
        return frozenset()
