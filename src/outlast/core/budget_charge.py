"""What calls reserve of budgets and give back, as records.

Owns each way in which a reservation ends: what was used is told by the provider, estimated where
a call was cut off, or what a child says. Refuses to decide whether a call may begin
(`budget_admission.py`).
"""

from collections.abc import Callable, Iterator

import msgspec

from outlast.core import record as r
from outlast.core.amount import NOTHING, Amounts, BudgetHold
from outlast.core.budget import TURN, uncounted_time
from outlast.core.lane import RUNNING, Lane, ModelCall, RelayedRequest
from outlast.core.record import NO_USAGE, AnyRecord, UsageSum
from outlast.core.result import CallPrice, ShareReturned
from outlast.core.usage import payer, used_by


def reserves(lane: Lane, call_id: str, hold: BudgetHold, now: int) -> r.BudgetCharged:
    """Record what a call reserves, and the active time up to now."""
    time = uncounted_time(lane, now)
    return r.BudgetCharged(
        call_id=call_id,
        budgets=hold.budgets,
        reserved=hold.amounts,
        spent=Amounts(wall_ms=time),
        active=lane.turn.active + time if lane.turn else 0,
        hold=hold,
    )


def settled(
    lane: Lane, call_id: str, used: UsageSum = NO_USAGE, now: int = 0, *, step: bool = False
) -> Iterator[AnyRecord]:
    """Give back what a call has reserved, if anything, and say what it has spent."""
    if (hold := lane.holds.get(call_id)) is None:
        return
    time = uncounted_time(lane, now) if now else 0
    yield r.BudgetCharged(
        call_id=call_id,
        budgets=hold.budgets,
        reserved=NOTHING - hold.amounts,
        spent=Amounts(
            tokens=used.tokens,
            nano_usd=used.nano_usd,
            model_calls=used.model_calls,
            wall_ms=time,
            steps=int(step),
        ),
        active=lane.turn.active + time if lane.turn and time else 0,
    )


def share_settled(lane: Lane, relay: RelayedRequest) -> Iterator[AnyRecord]:
    """Take back what a child has left of its share, as it told at its end."""
    if (hold := lane.holds.get(relay.request_id)) is None:
        return
    told = msgspec.json.decode(relay.asked, type=ShareReturned)
    is_open = lane.turn is not None and lane.turn.id == hold.turn
    for key in hold.budgets if told.extended else ():
        if is_open or key != TURN:
            yield r.BudgetExtended(budget=key, by=told.extended)
    yield hold_settled(relay.request_id, hold, told.spent)


def all_settled(lane: Lane) -> Iterator[AnyRecord]:
    """Settle all that is still reserved in a lane when its session ends.

    A child may have told by now what it has used. What others use is told to no one any more, so
    all that they may use counts as spent.
    """
    told = {relay.request_id: relay for relay in lane.relays if relay.how == "settled"}
    for call_id, hold in lane.holds.items():
        if call_id in told:
            yield from share_settled(lane, told[call_id])
        else:
            yield hold_settled(call_id, hold, hold.amounts)


def hold_settled(call_id: str, hold: BudgetHold, spent: Amounts) -> r.BudgetCharged:
    return r.BudgetCharged(
        call_id=call_id,
        budgets=hold.budgets,
        reserved=NOTHING - hold.amounts,
        spent=spent,
    )


def cut_off(
    lane: Lane, call_id: str, output: int, price: Callable[[int, int], CallPrice | None]
) -> r.UsageRecorded:
    """Estimate the usage of a model call that was cut off after so many bytes of its answer.

    The provider may charge for what it was asked and for what it has said, and tells nobody.
    """
    hold, model = lane.holds.get(call_id), lane.turn.model if lane.turn else None
    tokens = hold.input_tokens if hold else lane.context.tokens + lane.context.added // 4
    said = -(-output // 4)
    found = price(tokens, said)
    is_open = model is not None and model.call_id == call_id
    summary = lane.summary
    return r.UsageRecorded(
        call_id=call_id,
        attempt=model.attempt if model and is_open else summary.attempt if summary else 1,
        input_tokens=tokens,
        output_tokens=said,
        model=model.asked if model and is_open else summary.model if summary else "",
        principal=payer(lane),
        nano_usd=found.nano_usd if found else 0,
        prices=found.prices if found else "",
        unpriced_calls=0 if found else 1,
        estimated=True,
    )


def call_under_way(lane: Lane) -> ModelCall | None:
    """Return the model call that has neither an answer nor an error yet, if there is one."""
    turn = lane.turn
    if turn is None or turn.model is None or turn.model.status != RUNNING or turn.failure:
        return None  # that of a step that has failed stays in its turn
    return turn.model


def calls_cut_off(lane: Lane, price: Callable[[int, int], CallPrice | None]) -> Iterator[AnyRecord]:
    """Settle the model calls that an owner had under way when it gave the lane up, or was gone."""
    if model := call_under_way(lane):
        yield (used := cut_off(lane, model.call_id, model.heard, price))
        yield from settled(lane, model.call_id, used_by(used))
    yield from summary_cut_off(lane, price)


def summary_cut_off(
    lane: Lane, price: Callable[[int, int], CallPrice | None]
) -> Iterator[AnyRecord]:
    """Settle a summary that was being made."""
    if lane.summary and lane.summary.is_under_way:
        yield (used := cut_off(lane, lane.summary.call_id, 0, price))
        yield from settled(lane, used.call_id, used_by(used))
