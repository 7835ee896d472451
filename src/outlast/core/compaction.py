"""Compaction: when a lane's view is made shorter, how that is folded and written down.

Owns the core's part: how large the next request is likely to be, and when that is too much. What
is left out is chosen by `agents/context`, of the view; here are only sizes. The count begins at
the usage that the provider reported last, and adds what has come since. What the model sees after
it is made by `view.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.action import AnyAction, CallModel, ChangeContext, CompactContext
from outlast.core.budget_charge import reserves, settled
from outlast.core.lane import ContextSize, Lane, ModelCall, SummaryCall, Turn
from outlast.core.message import (
    File,
    Image,
    Message,
    ProviderPart,
    ToolCall,
    ToolOutputs,
    UserMessage,
)
from outlast.core.name import summary_call_name
from outlast.core.policy import Policy
from outlast.core.record import NO_USAGE, AnyRecord, Failure
from outlast.core.result import Compacted, ModelFailed, SummaryLost
from outlast.core.slice import Slices, values_of
from outlast.core.usage import payer, used_by
from outlast.core.view import View

TOO_LONG = "CONTEXT_WINDOW_EXCEEDED"
BYTES_PER_TOKEN = 4
"""What providers' tokenizers come to for English text, roughly."""
MOST_OVERFLOWS = 4
"""So often a request that the provider finds too long is made again, each time much shorter."""
GROWTH = 1.25
"""A view is not made shorter again before it has grown by so much since the last time."""
MOST_SUMMARY_TRIES = 3
"""A summary that was begun so often, and of which nothing came, is given up: what it is made of may
be what takes its workers down."""
SKILLS = "outlast.skills"
"""The slice of the skills that a model has loaded: each value names the call that gave the text."""

NO_MODEL = Failure("NO_MODEL", "a run of a workflow has no model that could see more or less of it")
TURN_UNKNOWN = Failure(
    "UNKNOWN_TURN",
    "the lane has had no such turn behind which its view could go back",
)


# Sizes


def bytes_of(message: Message) -> int:
    """Return about how much of a request a message takes."""
    match message:
        case UserMessage():
            return sum(part_size(part) for part in message.content)
        case ToolOutputs():
            return sum(len(result.text) + 40 for result in message.results)
    return sum(part_size(part) for part in message.parts)


def part_size(part: Any) -> int:
    match part:
        case ToolCall():
            return len(part.args) + len(part.tool) + 40
        case Image() | File():
            return 4_000 if isinstance(part, Image) else len(part.data) or 400
        case ProviderPart():
            return len(part.data)
    return len(part.text)


class PinnedCall(Struct, frozen=True):
    """A call whose result has instructions that the model goes by."""

    call_id: str = ""


_decode_pinned = msgspec.json.Decoder(PinnedCall).decode


def pinned_calls(slices: Slices) -> frozenset[str]:
    """Return the calls whose results stay in the view, whatever else is left out of it."""
    found: set[str] = set()
    for value in values_of(slices, SKILLS):
        try:
            found.add(_decode_pinned(value.text).call_id)
        except msgspec.MsgspecError:  # it was put there by others, and names no call
            continue
    return frozenset(found)


# What comes next


def size_of(context: ContextSize) -> int:
    """Return about how many tokens the next request has, the answer before it included."""
    return context.tokens + context.added // BYTES_PER_TOKEN


def is_due(lane: Lane, policy: Policy) -> bool:
    """Say whether the view is to be made shorter before the model is asked.

    Seldom and by much: what a provider has cached of a request is lost with it.
    """
    context = lane.context
    # Its size is only an estimate until the model has answered: a second one would be made by a
    # guess.
    if context.is_fresh:
        return False
    if context.overflows or context.largest > policy.longest_result:
        return True
    # A view that could not be made small enough would else be made shorter before every step.
    return size_of(context) >= max(policy.most_tokens, context.floor * GROWTH)


def compacts(lane: Lane, policy: Policy, turn: str, until: int) -> CompactContext:
    """Return the action that makes the view shorter, because it is due."""
    context = lane.context
    # It may be due for one large result alone, which is shortened by itself.
    near = size_of(context) >= max(policy.most_tokens, context.floor * GROWTH)
    action = CompactContext(
        turn=turn,
        until=until,
        tokens=size_of(context),
        level=context.overflows,
        is_near=near or context.overflows > 0,
    )
    return with_summary(lane, policy, action)


def with_summary(lane: Lane, policy: Policy, action: CompactContext) -> CompactContext:
    """Say by which model call what is left out may be summed up, if it may.

    One that failed, or that was begun too often, is made again with the next compaction.
    """
    if not policy.summarizes:
        return action
    # One that a crash cut off is gone on with under its name, so that its attempts are counted.
    if (begun := lane.summary) is None:
        name = summary_call_name(lane.name, action.turn, lane.summaries + 1)
        begun = SummaryCall(name, attempt=0)
    return replace(
        action,
        call_id=begun.call_id,
        attempt=begun.attempt + 1,
        may_sum_up=not begun.failed and begun.attempt < MOST_SUMMARY_TRIES,
    )


def put_view_first(lane: Lane, action: AnyAction, policy: Policy) -> AnyAction:
    """Return the next change of the view that was asked for, if the action leaves room for it.

    It begins a step: what is open is settled before, an approval too.
    """
    # Another attempt at an answer goes on from what was said of it, in the view as it was.
    begins = isinstance(action, CallModel) and action.attempt == 1 and not action.running
    asked = next((each for each in lane.views if each.op == "compact"), None)
    if asked is None or not begins or lane.turn is None:
        return action
    return compacts_as_asked(lane, asked, lane.turn.id, action.until, policy)  # type: ignore[union-attr]


def between_turns(lane: Lane, until: int, policy: Policy) -> AnyAction:
    """Return the next change of the view that was asked for, where no turn is open."""
    asked = lane.views[0]
    error = NO_MODEL if lane.is_run else lane.blocked
    if asked.op == "rewind" or error:
        return ChangeContext(change=asked, error=error)
    return compacts_as_asked(lane, asked, "", until, policy)


def compacts_as_asked(
    lane: Lane, asked: r.ContextChangeRequested, turn: str, until: int, policy: Policy
) -> CompactContext:
    action = CompactContext(
        turn=turn,
        until=until,
        tokens=size_of(lane.context),
        level=0,
        is_near=True,
        delivery_id=asked.delivery_id,
    )
    return with_summary(lane, policy, action)


# The fold


def compaction_completed(lane: Lane, e: r.CompactionCompleted) -> Lane:
    context = replace(
        lane.context, tokens=e.tokens, floor=e.tokens, added=0, largest=0, is_fresh=True
    )
    return replace(lane, context=context, summary=None, back_to="")


def summary_started(lane: Lane, e: r.SummaryStarted) -> Lane:
    summaries = lane.summaries + (e.attempt == 1)
    return replace(
        lane, summary=SummaryCall(e.call_id, e.attempt, model=e.model), summaries=summaries
    )


def summary_failed(lane: Lane, e: r.SummaryFailed) -> Lane:
    summaries = lane.summaries + (lane.summary is None)
    failed = SummaryCall(e.call_id, e.attempt, failed=True)
    return replace(lane, summary=failed, summaries=summaries)


def context_overflowed(lane: Lane, e: r.ContextOverflowed) -> Lane:
    assert lane.turn is not None
    assert lane.turn.model is not None
    context = replace(lane.context, overflows=lane.context.overflows + 1, is_fresh=False)
    model = replace(lane.turn.model, status="retry", lost=0, not_before=0, partial="")
    return replace(lane, context=context).with_turn(model=model)


def context_rewound(lane: Lane, e: r.ContextRewound) -> Lane:
    # All that was measured is of the view as it was.
    return replace(lane, context=ContextSize(e.tokens), summary=None, back_to=e.to)


LANE_CONTEXT: dict[type, Callable[[Lane, Any], Lane]] = {
    r.CompactionCompleted: compaction_completed,
    r.SummaryStarted: summary_started,
    r.SummaryFailed: summary_failed,
    r.ContextOverflowed: context_overflowed,
    r.ContextRewound: context_rewound,
}


# How it is written down


def overflowed(turn: Turn, model: ModelCall, failed: ModelFailed) -> Iterator[AnyRecord]:
    if model.partial or failed.deltas:
        yield r.MessageAborted(call_id=model.call_id, attempt=model.attempt)
    yield r.ContextOverflowed(
        turn=turn.id, call_id=model.call_id, attempt=model.attempt, error=failed.error
    )


def summary_opens(lane: Lane, action: CompactContext, now: int) -> list[AnyRecord]:
    if not action.sums_up:
        return []
    started = r.SummaryStarted(call_id=action.call_id, attempt=action.attempt, model=action.model)
    if action.hold is None:
        return [started]
    return [started, reserves(lane, action.call_id, action.hold, now)]


def summary_lost(lane: Lane, action: CompactContext, result: SummaryLost) -> Iterator[AnyRecord]:
    yield from summary_usage(lane, action, result)
    yield r.SummaryFailed(
        call_id=action.call_id,
        attempt=action.attempt,
        error=result.failed.error,
        asked=result.failed.is_asked,
    )


def summary_usage(
    lane: Lane, action: CompactContext, result: Compacted | SummaryLost
) -> Iterator[AnyRecord]:
    recorded: r.UsageRecorded | None = None
    if used := result.usage:
        recorded = r.UsageRecorded(
            call_id=action.call_id,
            attempt=action.attempt,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cache_read_tokens=used.cache_read_tokens,
            cache_write_tokens=used.cache_write_tokens,
            details=dict(used.details),
            model=result.model,
            principal=payer(lane),
            nano_usd=result.price.nano_usd if result.price else 0,
            prices=result.price.prices if result.price else "",
            unpriced_calls=0 if result.price else 1,
        )
        yield recorded
    if lane.holds:
        yield from settled(lane, action.call_id, used_by(recorded) if recorded else NO_USAGE)


def compacted(lane: Lane, action: CompactContext, result: Compacted) -> Iterator[AnyRecord]:
    yield from summary_usage(lane, action, result)
    yield r.CompactionCompleted(
        until=result.until,
        keep=result.keep,
        text=result.text,
        results=dict(result.results),
        shortened=dict(result.shortened),
        before=action.tokens,
        tokens=result.tokens,
        call_id=action.call_id if action.sums_up else "",
    )
    # Whoever has asked for one meanwhile wants no second, which would leave out still more.
    asked = (each.delivery_id for each in lane.views if each.op == "compact")
    for delivery_id in asked if action.is_near else ():
        yield r.DeliverySettled(delivery_id=delivery_id, outcome="completed")


def refused(change: r.ContextChangeRequested, error: Failure) -> Iterator[AnyRecord]:
    """Say why the view cannot be changed as somebody asked."""
    yield r.ContextChangeRefused(delivery_id=change.delivery_id, error=error)
    yield r.DeliverySettled(delivery_id=change.delivery_id, outcome="refused")


def rewound(change: r.ContextChangeRequested, until: int, view: View) -> Iterator[AnyRecord]:
    """Take the view back to what it was at the end of a turn."""
    tokens = sum(map(bytes_of, view.messages)) // BYTES_PER_TOKEN
    yield r.ContextRewound(to=change.turn, until=until, tokens=tokens)
    yield r.DeliverySettled(delivery_id=change.delivery_id, outcome="completed")
