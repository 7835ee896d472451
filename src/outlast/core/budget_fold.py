"""What records about budgets come to: in a lane, and in the rows that sessions share.

Refuses to know why something is reserved or returned: see `budget_charge.py`.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.amount import (
    NOTHING,
    BudgetChange,
    BudgetKey,
    BudgetTerms,
    raised,
)
from outlast.core.budget import TURN
from outlast.core.lane import Lane
from outlast.core.record import AnyRecord


def budget_charged(lane: Lane, e: r.BudgetCharged) -> Lane:
    holds, turn = lane.holds, lane.turn
    before = holds.get(e.call_id)
    if e.hold:
        holds = {**holds, e.call_id: e.hold}
    elif before:
        holds = {name: hold for name, hold in holds.items() if name != e.call_id}
    lane = replace(lane, holds=holds, charged=lane.charged + e.spent)
    if turn is None or (before and not e.hold and before.turn not in ("", turn.id)):
        return lane
    return lane.with_turn(charged=turn.charged + e.spent, active=e.active or turn.active)


def budget_warned(lane: Lane, e: r.BudgetWarned) -> Lane:
    key = e.budget
    if key == TURN and lane.turn:
        key = BudgetKey("turn", lane.turn.id)
    # Only the last day's and turn's matter; a lane lives for years.
    others = tuple(k for k in lane.warned if (k.scope, bool(k.day)) != (key.scope, bool(key.day)))
    return replace(lane, warned=(*others, key))


def budget_extended(lane: Lane, e: r.BudgetExtended) -> Lane:
    if e.budget.scope == "turn":
        return lane.with_turn(extended=lane.turn.extended + e.by) if lane.turn else lane
    return replace(lane, extended=lane.extended + e.by)


def budget_exhausted(lane: Lane, e: r.BudgetExhausted) -> Lane:
    if not (e.step and lane.turn):
        return lane
    return lane.with_turn(exhausted=e.budget.text, last_step=e.step)


LANE_BUDGETS: dict[type, Callable[[Lane, Any], Lane]] = {
    r.BudgetCharged: budget_charged,
    r.BudgetWarned: budget_warned,
    r.BudgetExtended: budget_extended,
    r.BudgetExhausted: budget_exhausted,
}


def changes_of(records: Iterable[AnyRecord]) -> tuple[BudgetChange, ...]:
    """Return what records change in the rows of budgets; nothing, as with most."""
    found: dict[BudgetKey, BudgetChange] = {}
    for e in records:
        if type(e) is r.BudgetCharged:
            for key in e.budgets:
                if key == TURN:
                    continue
                before = found.get(key) or BudgetChange(key)
                found[key] = replace(
                    before, reserved=before.reserved + e.reserved, spent=before.spent + e.spent
                )
        elif type(e) is r.BudgetExtended and e.budget.scope != "turn":
            before = found.get(e.budget) or BudgetChange(e.budget)
            found[e.budget] = replace(before, raised=before.raised + e.by)
    return tuple(found.values())


def with_terms(changes: Iterable[BudgetChange], terms: BudgetTerms) -> tuple[BudgetChange, ...]:
    """Give a session's budget the terms that its log says, where it has no row yet."""

    def before(change: BudgetChange) -> BudgetTerms:
        limits = raised(terms.limits, NOTHING - change.raised)  # the log is ahead of the row
        return replace(terms, limits=limits)

    return tuple(
        replace(change, terms=before(change)) if change.key.scope == "session" else change
        for change in changes
    )
