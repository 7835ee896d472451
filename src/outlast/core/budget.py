"""Budgets: whose there are, how they stand, and how that is said.

Owns what can be told of a lane's budgets without a database. The turn's is a part of the lane's
fold; those that sessions and tenants share are rows, which change in the same commits as the log.
What becomes of a call that needs something of them is in `budget_admission.py`, how that is written
down in `budget_charge.py`, and what the records come to in `budget_fold.py`.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import asdict, astuple, replace

from outlast.core import record as r
from outlast.core.amount import (
    DAILY,
    NANO,
    NO_LIMITS,
    NOTHING,
    UNLIMITED,
    Amounts,
    BudgetKey,
    BudgetScope,
    BudgetState,
    BudgetTerms,
    least_of,
    raised,
)
from outlast.core.lane import Lane
from outlast.core.policy import Policy
from outlast.core.record import UsageSum
from outlast.core.usage import DAY, day_of, next_payer, payer

WARN_AT = 4, 5
"""The share of a budget of which it is told that it is spent."""
TURN = BudgetKey("turn")


def session_terms(lane: Lane, code: BudgetTerms | None) -> BudgetTerms | None:
    """Return what the session may use: its own budget, or its agent's, whichever is less of each.

    What humans have allowed beyond that is in it.
    """
    own = lane.budget
    if (terms := own or code) is None:
        return None
    if own and code:
        terms = replace(own, limits=least_of(own.limits, code.limits))
    return replace(terms, limits=raised(terms.limits, lane.extended)) if lane.extended else terms


def turn_state(lane: Lane, policy: Policy) -> BudgetState | None:
    """Return how the turn's budget stands, or the next turn's."""
    if (terms := policy.turn_budget) is None:
        return None
    turn = lane.turn
    if turn is None:
        return BudgetState(TURN, terms)
    if turn.extended:
        terms = replace(terms, limits=raised(terms.limits, turn.extended))
    held = [hold.amounts for hold in lane.holds.values() if hold.turn == turn.id]
    return BudgetState(TURN, terms, sum(held, NOTHING), turn.charged)


def keys_of(lane: Lane, delivery: str = "", *, retries: bool = False) -> tuple[BudgetKey, ...]:
    """Return the budgets beside the turn's that a lane's calls may be counted in, as terms.

    The call that begins a turn with a `delivery` counts for who sent that.
    """
    who = next_payer(lane, delivery, retries=retries) if delivery else payer(lane)
    own = BudgetKey("session", lane.session)
    shared = (own, BudgetKey("tenant"), BudgetKey("tenant", day=DAILY))
    if not who:
        return shared
    return (*shared, BudgetKey("principal", who), BudgetKey("principal", who, day=DAILY))


def on_day(key: BudgetKey, now: int) -> BudgetKey:
    """Return the budget of today in the place of a daily one."""
    return replace(key, day=day_of(now)) if key.day == DAILY else key


def next_day(keys: Iterable[BudgetKey]) -> int:
    """Return when the first of some budgets of a day ends; 0: none does."""
    return min(((key.day + 1) * DAY for key in keys if key.day), default=0)


def in_order(states: Iterable[BudgetState]) -> list[BudgetState]:
    """Return budgets with the narrowest first: the first that has ended decides what comes next."""
    scopes: tuple[BudgetScope, ...] = ("turn", "session", "principal", "tenant")
    return sorted(states, key=lambda state: (scopes.index(state.key.scope), -state.key.day))


def lacking(room: Amounts, wanted: Amounts) -> str:
    """Return of what there is too little for something that is wanted; nothing, if it fits."""
    pairs = zip(Amounts.__struct_fields__, astuple(room), astuple(wanted), strict=True)
    return next((name for name, free, more in pairs if more > 0 and more > free), "")


def nearly_taken(state: BudgetState) -> str:
    """Return of what the least is free, as a share, of a budget that is spent and reserved."""
    limits = asdict(state.terms.limits)
    taken = asdict(state.spent + state.reserved)
    shares = {name: taken[name] / most for name, most in limits.items() if most != UNLIMITED}
    return max(shares, key=shares.__getitem__, default="")


def nearly_spent(state: BudgetState) -> str:
    """Return of what four fifths of a budget are spent, if that is so."""
    spent, limits = astuple(state.spent), astuple(state.terms.limits)
    part, whole = WARN_AT
    for name, used, limit in zip(Amounts.__struct_fields__, spent, limits, strict=True):
        if limit != UNLIMITED and used * whole >= limit * part and used:
            return name
    return ""


def uncounted_time(lane: Lane, now: int) -> int:
    """Return the turn's active time in milliseconds that no charge has counted."""
    return max(0, active_time(lane, now) - lane.turn.active) if lane.turn else 0


def active_time(lane: Lane, now: int) -> int:
    """Return how long the open turn has been at work."""
    turn = lane.turn
    if turn is None or lane.waiting:
        return turn.spent if turn else 0
    return turn.spent + max(0, now - turn.since)


def warnings(lane: Lane, states: Sequence[BudgetState]) -> tuple[r.BudgetWarned, ...]:
    """Return the warnings that are due: each is given once in a lane."""
    found: list[r.BudgetWarned] = []
    for state in states:
        what = nearly_spent(state)
        is_told = state.key in lane.warned if state.key.scope != "turn" else is_warned(lane)
        if what and not is_told:
            limit, spent = getattr(state.terms.limits, what), getattr(state.spent, what)
            found.append(r.BudgetWarned(budget=state.key, what=what, limit=limit, used=spent))
    return tuple(found)


def is_warned(lane: Lane) -> bool:
    return lane.turn is not None and BudgetKey("turn", lane.turn.id) in lane.warned


WORDS = {
    "tokens": "tokens",
    "nano_usd": "US dollars",
    "model_calls": "model calls",
    "tool_calls": "tool calls",
    "wall_ms": "seconds of active time",
    "steps": "steps",
}


def figure(what: str, amount: int) -> str:
    """Say an amount for people: "$0.25", "12,000 tokens", "90 seconds of active time"."""
    if what == "nano_usd":
        whole, rest = divmod(amount, NANO)
        return f"${whole:,}.{f'{rest:09}'.rstrip('0').ljust(2, '0')}"
    if what == "wall_ms":
        return f"{amount / 1000:,.0f} {WORDS[what]}"
    return f"{amount:,} {WORDS[what]}"


def in_words(ended: r.BudgetExhausted | r.BudgetWarned) -> str:
    """Say how much of a budget is spent."""
    spent, limit = figure(ended.what, ended.used), figure(ended.what, ended.limit)
    return f"{ended.budget.text} allows {limit}, and {spent} are spent"


def more_in_words(by: Amounts) -> str:
    """Say what is allowed beyond a budget: "$2.00 and 10 steps"."""
    each = [figure(name, more) for name, more in asdict(by).items() if more]
    return " and ".join([", ".join(each[:-1]), each[-1]] if len(each) > 1 else each)


def spent_of(used: UsageSum) -> Amounts:
    """Return what usage counts for, of which no more is known."""
    return Amounts(tokens=used.tokens, nano_usd=used.nano_usd, model_calls=used.model_calls)


def share_of(states: Sequence[BudgetState], among: int) -> Amounts:
    """Return the share of a child, where so many others and its parent get one as well."""
    room = NO_LIMITS
    for state in states:
        room = least_of(room, state.free)
    parts = among + 1
    return Amounts(
        *(UNLIMITED if free > UNLIMITED // 2 else max(0, free) // parts for free in astuple(room))
    )


def held_of(share: Amounts) -> Amounts:
    """Return what a share reserves: what is not limited reserves nothing."""
    return Amounts(*(0 if each == UNLIMITED else each for each in astuple(share)))


def limited(terms: BudgetTerms) -> dict[str, int]:
    """Return what terms limit, by name."""
    return {name: limit for name, limit in asdict(terms.limits).items() if limit != UNLIMITED}
