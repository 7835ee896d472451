"""Budgets: what a call reserves, whether it may begin, and what it has spent in the end.

Owns all of it that can be decided without a database: `admit` says what becomes of an action that
needs something of budgets, given how they stand (`BudgetState`). The turn's budget is a part of the
lane's fold; those that sessions and tenants share are rows, which change in the same commits as the
log, and which the engine looks up (`engine/budget_gate.py`). Refuses to know prices: the executor
estimates what a call may cost.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, astuple, replace

from outlast.core import record as r
from outlast.core.action import (
    AnyAction,
    AskForBudget,
    CallModel,
    CompactContext,
    FailTurn,
    HandBack,
    Park,
    RunTools,
)
from outlast.core.amount import (
    DAILY,
    NANO,
    NO_LIMITS,
    NOTHING,
    UNLIMITED,
    Amounts,
    BudgetChange,
    BudgetHold,
    BudgetKey,
    BudgetScope,
    BudgetState,
    BudgetTerms,
    least_of,
    raised,
)
from outlast.core.lane import BUDGET, RUNNING, Lane, ModelCall
from outlast.core.policy import Policy
from outlast.core.record import NO_USAGE, AnyRecord, Failure, UsageSum
from outlast.core.result import CallPrice
from outlast.core.usage import DAY, day_of, payer, used_by

LEAST_OUTPUT = 64
"""Fewer tokens than these are no answer: a budget with less room than this is at its end."""
LAST_OUTPUT = 1024
"""What is kept for the last answer, where a turn hands back what it has."""
WARN_AT = 4, 5
"""The share of a budget of which it is told that it is spent."""
TURN = BudgetKey("turn")


class CallEstimate(Struct, frozen=True, gc=False):
    """What a model call may use: its input was counted, its output is the most that it may have.

    `input_nano` is what the input costs and `output_nano` what a million tokens of output do;
    None where no price is known.
    """

    input_tokens: int
    most_output: int
    input_nano: int | None = None
    output_nano: int | None = None

    def with_output(self, output: int, *, step: bool) -> Amounts:
        """Return what the call reserves if its answer has so many tokens."""
        cost = (self.input_nano or 0) + -(-output * (self.output_nano or 0) // 1_000_000)
        return Amounts(
            tokens=self.input_tokens + output, nano_usd=cost, model_calls=1, steps=int(step)
        )

    def output_within(self, free: Amounts) -> int:
        """Return how many tokens the answer may have, so that the call fits."""
        found = min(self.most_output, free.tokens - self.input_tokens)
        if self.output_nano and free.nano_usd < UNLIMITED // 2:
            found = min(
                found, (free.nano_usd - (self.input_nano or 0)) * 1_000_000 // self.output_nano
            )
        return found


# How budgets stand


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


def keys_of(lane: Lane) -> tuple[BudgetKey, ...]:
    """Return the budgets beside the turn's that a lane's calls may be counted in, as terms."""
    who = payer(lane)
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


# What becomes of an action


class Verdict(Struct, frozen=True):
    """The budget that stands against something, of what it has too little, and whether for good.

    So much is `needed` of it.
    """

    state: BudgetState
    what: str
    is_over: bool
    needed: Amounts


def verdict_on(
    states: Sequence[BudgetState], wanted: Callable[[BudgetState], Amounts]
) -> Verdict | None:
    """Say which budget has no room for what is wanted of it: one that is over, else one that waits.

    What only others have reserved may come back.
    """
    waits: Verdict | None = None
    for state in states:
        needed = wanted(state)
        if what := lacking(state.left, needed):
            return Verdict(state, what, is_over=True, needed=needed)
        if waits is None and (what := lacking(state.free, needed)):
            waits = Verdict(state, what, is_over=False, needed=needed)
    return waits


def admit_call(
    lane: Lane,
    action: CallModel,
    states: Sequence[BudgetState],
    estimate: CallEstimate,
    now: int,
) -> AnyAction:
    """Let a model call begin with what it reserves; or say what comes in its place."""
    is_last = lane.turn is not None and 0 < lane.turn.last_step <= action.step
    if is_last:
        estimate = replace(estimate, most_output=min(estimate.most_output, LAST_OUTPUT))
    if unpriced := next((s for s in states if refuses(s, estimate)), None):
        return FailTurn(**_turn_of(action), error=price_unknown(unpriced))
    needed = estimate.with_output(min(LEAST_OUTPUT, estimate.most_output), step=True)
    last = estimate.with_output(min(LAST_OUTPUT, estimate.most_output), step=True)

    def wanted(state: BudgetState) -> Amounts:
        keeps = state.terms.on_end == "hand_back" and not is_last
        return with_time(needed + last if keeps else needed, lane, now)

    verdict = verdict_on(states, wanted)
    if verdict and verdict.is_over and verdict.state.terms.on_end == "hand_back" and not is_last:
        return hand_back_or_fail(lane, action, states, estimate, verdict)
    if verdict:
        return instead(lane, verdict, states, _turn_of(action), action.step, now)
    room = NO_LIMITS
    for state in states:
        kept = last if state.terms.on_end == "hand_back" and not is_last else NOTHING
        room = least_of(room, state.free - kept)
    output = estimate.output_within(room)
    bounds = room.tokens < UNLIMITED // 2 or room.nano_usd < UNLIMITED // 2
    hold = BudgetHold(
        estimate.with_output(output, step=True),
        action.turn,
        tuple(state.key for state in states if state.key.scope != "turn"),
        estimate.input_tokens,
        output if bounds else 0,
    )
    return replace(action, hold=hold, is_last=is_last, warns=warnings(lane, states))


def hand_back_or_fail(
    lane: Lane,
    action: CallModel,
    states: Sequence[BudgetState],
    estimate: CallEstimate,
    verdict: Verdict,
) -> AnyAction:
    """Make this step the turn's last, if there is enough left for it."""
    last = estimate.with_output(min(LEAST_OUTPUT, estimate.most_output), step=True)
    if any(lacking(state.left, last) for state in states):
        return FailTurn(**_turn_of(action), error=exhausted(verdict))
    return HandBack(**_turn_of(action), step=action.step, ended=told(verdict))


def admit_tools(
    lane: Lane, action: RunTools, states: Sequence[BudgetState], now: int
) -> AnyAction | None:
    """Let as many tool calls begin as budgets allow; or say what comes in their place.

    None: nothing can begin before a human has answered who is asked for more.
    """
    assert lane.turn is not None
    if lane.turn.requests and lane.turn.asks_for_budget:
        again = tuple(start for start in action.start if start.attempt > 1)
        goes_on = again or action.report or action.running or action.contact or action.gone
        return replace(action, start=again) if goes_on else None
    new = [start for start in action.start if start.attempt == 1]
    room = min((state.free.tool_calls for state in states), default=UNLIMITED)
    keys = tuple(state.key for state in states if state.key.scope != "turn")
    if room >= len(new):
        return replace(action, spends=len(new), budgets=keys) if new else action
    let_in = new[: max(0, room)]
    start = tuple(each for each in action.start if each.attempt > 1 or each in let_in)
    if start or action.report or action.running or action.contact or action.gone:
        return replace(action, start=start, spends=len(let_in), budgets=keys)
    verdict = verdict_on(states, lambda _: Amounts(tool_calls=1))
    assert verdict is not None
    turn = {"turn": lane.turn.id}
    if verdict.is_over and verdict.state.terms.on_end == "hand_back":
        denied = tuple(each.call_id for each in new)
        return HandBack(**turn, step=lane.turn.step + 1, ended=told(verdict), denies=denied)
    return instead(lane, verdict, states, turn, lane.turn.step, now)


def admit_summary(
    action: CompactContext, states: Sequence[BudgetState], estimate: CallEstimate
) -> CompactContext:
    """Let a summary be made, if there is enough for it; old results are cleared otherwise."""
    whole = estimate.with_output(estimate.most_output, step=False)
    last = estimate.with_output(min(LAST_OUTPUT, estimate.most_output), step=True)
    for state in states:
        kept = last if state.terms.on_end == "hand_back" else NOTHING
        if refuses(state, estimate) or lacking(state.free, whole + kept):
            return replace(action, sums_up=False, may_sum_up=False)
    keys = tuple(state.key for state in states if state.key.scope != "turn")
    return replace(action, hold=BudgetHold(whole, action.turn, keys, estimate.input_tokens))


def with_time(needed: Amounts, lane: Lane, now: int) -> Amounts:
    """Return what is needed, with the active time that is not counted yet; a call takes some."""
    return replace(needed, wall_ms=uncounted_time(lane, now) + 1)


def uncounted_time(lane: Lane, now: int) -> int:
    """Return the turn's active time in milliseconds that no charge has counted."""
    return max(0, active_time(lane, now) - lane.turn.active) if lane.turn else 0


def active_time(lane: Lane, now: int) -> int:
    """Return how long the open turn has been at work."""
    turn = lane.turn
    if turn is None or lane.waiting:
        return turn.spent if turn else 0
    return turn.spent + max(0, now - turn.since)


def instead(
    lane: Lane,
    verdict: Verdict,
    states: Sequence[BudgetState],
    turn: dict[str, Any],
    step: int,
    now: int,
) -> AnyAction:
    """Say what a lane does for which a budget has no room."""
    state = verdict.state
    if not verdict.is_over:
        return wait_for(lane, [state], now)
    can_be_asked = lane.can_ask and state.key.scope in ("turn", "session")
    match state.terms.on_end:
        case "ask" if can_be_asked:
            allowed = lane.turn.extended if lane.turn else NOTHING
            by = more_of(verdict, allowed if state.key == TURN else lane.extended)
            return AskForBudget(**turn, step=step, ended=told(verdict), by=by)
        case "ask" if state.key.scope in ("tenant", "principal"):
            return wait_for(lane, [state], now, told(verdict))
    return FailTurn(**turn, error=exhausted(verdict))


def more_of(verdict: Verdict, extended: Amounts) -> Amounts:
    """Return how much more of a budget to ask for: as much again as it had, and at least enough.

    A child's share may be nothing, and a budget may have been lowered since it was `extended`.
    """
    limits = verdict.state.terms.limits
    had, missing = limits - extended, verdict.needed - verdict.state.left
    each = zip(astuple(limits), astuple(had), astuple(missing), strict=True)
    return Amounts(
        *(0 if limit == UNLIMITED else max(before, lack, 0) for limit, before, lack in each)
    )


def wait_for(
    lane: Lane, states: Sequence[BudgetState], now: int, ended: r.BudgetExhausted | None = None
) -> Park:
    """Rest until something comes back to a budget, it is raised, or its day is over."""
    rows = [state for state in states if state.key.scope != "turn"]
    until = next_day(state.key for state in rows)
    due = (at for at in (until, lane.deadline, lane.turn.deadline if lane.turn else 0) if at)
    return Park(
        wait=(BUDGET,),
        until=min(due, default=0),
        budgets=tuple((state.key, state.returns) for state in rows),
        ended=ended if ended and lane.waiting != ("budget",) else None,
    )


def _turn_of(action: CallModel) -> dict[str, Any]:
    return {"turn": action.turn, "delivery": action.delivery, "retries": action.retries}


def refuses(state: BudgetState, estimate: CallEstimate) -> bool:
    """Say whether a budget in dollars refuses a call, because nobody knows what it costs."""
    is_unknown = estimate.input_nano is None and state.terms.limits.nano_usd != UNLIMITED
    return is_unknown and state.terms.unpriced == "refuse"


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


# Words


WORDS = {
    "tokens": "tokens",
    "nano_usd": "US dollars",
    "model_calls": "model calls",
    "tool_calls": "tool calls",
    "wall_ms": "seconds of active time",
    "steps": "steps",
}


def told(verdict: Verdict) -> r.BudgetExhausted:
    state, what = verdict.state, verdict.what
    return r.BudgetExhausted(
        turn="",
        budget=state.key,
        what=what,
        limit=getattr(state.terms.limits, what),
        used=getattr(state.spent, what),
        on_end=state.terms.on_end,
    )


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


def exhausted(verdict: Verdict) -> Failure:
    ended = told(verdict)
    hint = "allow more, and retry the turn"
    if verdict.state.key.scope in ("tenant", "principal"):
        hint = "raise it with `outlast budgets set`, and retry the turn"
    return Failure("BUDGET_EXHAUSTED", in_words(ended), hint)


def price_unknown(state: BudgetState) -> Failure:
    return Failure(
        "PRICE_UNKNOWN",
        f"{state.key.text} is in US dollars, and the model's price is not known",
        'give it with ModelOptions(prices=Prices(known={…})), or say Budget(unpriced="allow")',
    )


# How it is written down


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


def share_settled(
    lane: Lane, request_id: str, spent: Amounts, extended: Amounts
) -> Iterator[AnyRecord]:
    """Take back what is left of a child's share."""
    if (hold := lane.holds.get(request_id)) is None:
        return
    is_open = lane.turn is not None and lane.turn.id == hold.turn
    for key in hold.budgets if extended else ():
        if is_open or key != TURN:
            yield r.BudgetExtended(budget=key, by=extended)
    yield r.BudgetCharged(
        call_id=request_id,
        budgets=hold.budgets,
        reserved=NOTHING - hold.amounts,
        spent=spent,
    )


def all_settled(lane: Lane) -> Iterator[AnyRecord]:
    """Count as spent what is still reserved when a session ends: nobody will tell what it was."""
    for call_id, hold in lane.holds.items():
        yield r.BudgetCharged(
            call_id=call_id,
            budgets=hold.budgets,
            reserved=NOTHING - hold.amounts,
            spent=hold.amounts,
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
    attempt = lane.summary.attempt if lane.summary else 1
    return r.UsageRecorded(
        call_id=call_id,
        attempt=model.attempt if model and is_open else attempt,
        input_tokens=tokens,
        output_tokens=said,
        model=model.asked if model and is_open else "",
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
    """Settle a summary that was being made, if it had reserved something."""
    if lane.summary and lane.summary.call_id in lane.holds:
        yield (used := cut_off(lane, lane.summary.call_id, 0, price))
        yield from settled(lane, used.call_id, used_by(used))


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


# The fold


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


# The rows beside the log


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


def limited(terms: BudgetTerms) -> dict[str, int]:
    """Return what terms limit, by name."""
    return {name: limit for name, limit in asdict(terms.limits).items() if limit != UNLIMITED}
