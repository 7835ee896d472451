"""Makes one compaction for an agent: plans it, and has the model sum up what is left out.

A summary that fails costs nothing: the results are cleared instead, and more messages go only if
the provider has refused the request.
"""

import asyncio
from typing import Any

import msgspec
from msgspec.structs import replace

from outlast.agents.agent import Agent
from outlast.agents.context.plan import CompactionPlanner, as_text, told_instead
from outlast.agents.context.policy import ON_OVERFLOW
from outlast.agents.model.client import ModelClient, ModelRequest
from outlast.agents.model.price import ModelPricing
from outlast.agents.skill.tool import SKILLS
from outlast.core.action import CompactContext
from outlast.core.compaction import BYTES_PER_TOKEN, COMPACTION
from outlast.core.message import Message, Text, ToolCall, UserMessage, storable, text_of
from outlast.core.result import Compacted
from outlast.core.slice import Slices, values_of
from outlast.core.view import View
from outlast.log_context import get_logger

log = get_logger("outlast.agents")

INSTRUCTIONS = """\
You sum up the earlier part of a conversation between a user and an assistant that works with tools.
The assistant goes on with your summary in its place, and sees nothing else of that part.
Keep what it needs to go on: what the user wants and has ruled out, in their own words; decisions
and their reasons; what was done, with names, numbers, ids and paths; what failed; what is open.
If the text has an earlier summary, keep all that is in it. Answer with the summary alone."""


class Summarizer:
    """Sums up messages by the model that a lane asks."""

    def __init__(
        self, agent: Agent[Any, Any], client: ModelClient, pricing: ModelPricing, model: str
    ) -> None:
        self._agent = agent
        self._client = client
        self._pricing = pricing
        self._model = model

    async def sum_up(self, messages: tuple[Message, ...], most: int) -> tuple[str, Compacted]:
        """Return what the model makes of messages in a few words, and what that has cost."""
        view = View()
        view.messages.append(UserMessage((Text(as_text(messages, most)),)))
        view.offsets.append(0)
        answer = await self._client.request(
            ModelRequest(
                view=view,
                call_id=COMPACTION,
                attempt=1,
                instructions=INSTRUCTIONS,
                settings=self._agent.model_settings,
            )
        )
        if not (text := text_of(answer.parts).strip()):
            raise ValueError("the model gave an empty summary")
        price = self._pricing.price(answer)
        return text, Compacted(0, usage=answer.usage, model=self._model, price=price)


async def compact(
    agent: Agent[Any, Any],
    summarizer: Summarizer,
    slices: Slices,
    view: View,
    action: CompactContext,
) -> Compacted:
    """Return how the view is made shorter."""
    policy = agent.context or ON_OVERFLOW
    planner = CompactionPlanner(
        view,
        policy,
        action.tokens,
        pinned=skill_calls(slices),
        reads=lambda call: resources_read(agent, call),
        is_readable=agent.context is not None,
    )
    if policy.max_result is not None:
        planner.cap_results(policy.max_result)
    if not action.is_near:
        return planner.record()
    target = target_of(agent, action, planner)
    if policy.superseded:
        planner.drop_superseded()
    if policy.clear or action.level:
        planner.clear_results(target, policy.keep_results if action.level < 2 else 0)
    if planner.size > target:
        return await cut(agent, summarizer, action, planner, target)
    return planner.record()


def target_of(agent: Agent[Any, Any], action: CompactContext, planner: CompactionPlanner) -> float:
    """Return how many tokens are to be left: less each time that a provider says it is too long."""
    policy = agent.context or ON_OVERFLOW
    bounds = [planner.size]
    if policy.max_tokens is not None:
        bounds.append(policy.max_tokens)
    return min(bounds) * policy.target ** max(1, action.level)


async def cut(
    agent: Agent[Any, Any],
    summarizer: Summarizer,
    action: CompactContext,
    planner: CompactionPlanner,
    target: float,
) -> Compacted:
    policy, summary, paid = agent.context or ON_OVERFLOW, "", Compacted(0)
    before = replace(planner.plan)
    planner.cut(target)
    if policy.summarize and planner.plan.left_out:
        most = int(target * BYTES_PER_TOKEN)
        try:
            async with asyncio.timeout(agent.model_timeout):
                summary, paid = await summarizer.sum_up(planner.plan.left_out, 2 * most)
            summary = summary[: most // 3]
        except Exception:  # the provider's: the next model call says what is wrong with it
            log.exception("a conversation was not summed up: old results are cleared instead")
            if not action.level:
                planner.plan = before
                planner.clear_results(target, 0)
                return planner.record()
    if action.level and planner.size > target:
        planner.shorten_messages(target)
    done = planner.record(storable(told_instead(planner.plan, summary)))
    return replace(done, usage=paid.usage, model=paid.model, price=paid.price)


def resources_read(agent: Agent[Any, Any], call: ToolCall) -> frozenset[str]:
    """Return what a call has read, where its tool says so."""
    tool = agent.find_tool(call.tool)
    if tool is None or not tool.has_resources:
        return frozenset()
    try:
        return frozenset(map(str, tool.reads(tool.arguments.parse(call.args))))
    except Exception:  # noqa: BLE001 - the arguments', or the user's own function's
        return frozenset()


class _Loaded(msgspec.Struct, frozen=True):
    call_id: str


_decode = msgspec.json.Decoder(_Loaded).decode


def skill_calls(slices: Slices) -> frozenset[str]:
    """Return the calls whose results are instructions that the model goes by."""
    return frozenset(_decode(value.text).call_id for value in values_of(slices, SKILLS))
