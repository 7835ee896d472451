"""Compaction: when a lane's view is made shorter, how that is folded and written down.

Owns the core's part: how large the next request is likely to be, and when that is too much. What
is left out is chosen by `agents/context`, of the view; here are only sizes. The count begins at
the usage that the provider reported last, and adds what has come since. What the model sees after
it is made by `view.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.action import AnyAction, CallModel, ChangeContext, CompactContext
from outlast.core.lane import ContextSize, Lane, ModelCall, Turn
from outlast.core.policy import Policy
from outlast.core.record import AnyRecord, Failure
from outlast.core.result import Compacted, ModelFailed
from outlast.core.usage import payer

TOO_LONG = "CONTEXT_WINDOW_EXCEEDED"
BYTES_PER_TOKEN = 4
"""What providers' tokenizers come to for English text, roughly."""
MOST_OVERFLOWS = 4
"""So often a request that the provider finds too long is made again, each time much shorter."""
GROWTH = 1.25
"""A view is not made shorter again before it has grown by so much since the last time."""
COMPACTION = "compaction"
"""The call of a summary, which belongs to no step."""

TURN_UNKNOWN = Failure(
    "UNKNOWN_TURN",
    "the lane has no such turn behind which its view could go back, or what came after it has been"
    " compacted since",
)


# What comes next


def size_of(context: ContextSize) -> int:
    """Return about how many tokens the next request has, the answer before it included."""
    return context.tokens + context.added // BYTES_PER_TOKEN


def is_due(lane: Lane, policy: Policy) -> bool:
    """Say whether the view is to be made shorter before the model is asked.

    Seldom and by much: what a provider has cached of a request is lost with it.
    """
    context = lane.context
    if context.is_fresh:
        return False
    if context.overflows or context.largest > policy.longest_result:
        return True
    return size_of(context) >= max(policy.most_tokens, context.floor * GROWTH)


def compacts(lane: Lane, policy: Policy, turn: str, until: int) -> CompactContext:
    """Return the action that makes the view shorter, because it is due."""
    context = lane.context
    return CompactContext(
        turn=turn,
        until=until,
        tokens=size_of(context),
        level=context.overflows,
        is_near=bool(context.overflows)
        or size_of(context) >= max(policy.most_tokens, context.floor * GROWTH),
    )


def put_view_first(lane: Lane, action: AnyAction) -> AnyAction:
    """Return the next change of the view that was asked for, if the action leaves room for it.

    It begins a step: what is open is settled before, an approval too.
    """
    begins = isinstance(action, CallModel) and action.attempt == 1 and not action.running
    asked = next((each for each in lane.views if each.op == "compact"), None)
    if asked is None or not begins or lane.turn is None:
        return action
    return compacts_as_asked(lane, asked, lane.turn.id, action.until)  # type: ignore[union-attr]


def between_turns(lane: Lane, until: int) -> AnyAction:
    """Return the next change of the view that was asked for, where no turn is open."""
    asked = lane.views[0]
    if asked.op == "rewind":
        return ChangeContext(change=asked)
    return compacts_as_asked(lane, asked, "", until)


def compacts_as_asked(
    lane: Lane, asked: r.ContextChangeRequested, turn: str, until: int
) -> CompactContext:
    return CompactContext(
        turn=turn,
        until=until,
        tokens=size_of(lane.context),
        level=0,
        is_near=True,
        delivery_id=asked.delivery_id,
    )


# The fold


def compaction_completed(lane: Lane, e: r.CompactionCompleted) -> Lane:
    context = replace(
        lane.context, tokens=e.tokens, floor=e.tokens, added=0, largest=0, is_fresh=True
    )
    return replace(lane, context=context)


def context_overflowed(lane: Lane, e: r.ContextOverflowed) -> Lane:
    assert lane.turn is not None
    assert lane.turn.model is not None
    context = replace(lane.context, overflows=lane.context.overflows + 1, is_fresh=False)
    model = replace(lane.turn.model, status="retry", lost=0, not_before=0, partial="")
    return replace(lane, context=context).with_turn(model=model)


def context_rewound(lane: Lane, e: r.ContextRewound) -> Lane:
    """Begin to count anew: how large the view was then is not known any more."""
    return replace(lane, context=ContextSize())


LANE_CONTEXT: dict[type, Callable[[Lane, Any], Lane]] = {
    r.CompactionCompleted: compaction_completed,
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


def compacted(lane: Lane, action: CompactContext, result: Compacted) -> Iterator[AnyRecord]:
    if used := result.usage:
        yield r.UsageRecorded(
            call_id=COMPACTION,
            attempt=1,
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
    yield r.CompactionCompleted(
        until=result.until,
        keep=result.keep,
        text=result.text,
        results=dict(result.results),
        shortened=dict(result.shortened),
        before=action.tokens,
        tokens=result.tokens,
    )
    if action.delivery_id:
        yield r.DeliverySettled(delivery_id=action.delivery_id, outcome="completed")


def rewound(change: r.ContextChangeRequested, until: int | None) -> Iterator[AnyRecord]:
    """Take the view back behind a turn, or say why that cannot be."""
    if until is None:
        yield r.ContextChangeRefused(delivery_id=change.delivery_id, error=TURN_UNKNOWN)
        yield r.DeliverySettled(delivery_id=change.delivery_id, outcome="refused")
        return
    yield r.ContextRewound(to=change.turn, until=until)
    yield r.DeliverySettled(delivery_id=change.delivery_id, outcome="completed")
