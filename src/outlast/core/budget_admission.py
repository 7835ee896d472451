"""Whether a call may begin, given how budgets stand (`BudgetState`), and what comes in its place.

Owns the verdicts: a call reserves what it may use, waits for what only others have reserved, or a
budget is at its end. Refuses to know prices: the executor estimates what a call may cost. The
engine looks up how budgets stand (`engine/budget_gate.py`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple, replace

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
    NO_LIMITS,
    NOTHING,
    UNLIMITED,
    Amounts,
    BudgetHold,
    BudgetState,
    least_of,
)
from outlast.core.budget import TURN, in_words, lacking, next_day, uncounted_time, warnings
from outlast.core.lane import BUDGET, Lane
from outlast.core.record import Failure

LEAST_OUTPUT = 64
"""Fewer tokens than these are no answer: a budget with less room than this is at its end."""
LAST_OUTPUT = 1024
"""What is kept for the last answer, where a turn hands back what it has."""


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
