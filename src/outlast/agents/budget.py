"""Budgets as an author or an operator states them: `Budget(usd=2, on_end="ask")`.

Owns the check of what is stated, and its translation into the terms that are recorded
(`core/amount.py`) and back. What is reserved, spent and refused is decided in `core/budget.py` and
`core/budget_admission.py`.
"""

from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from outlast.core.amount import (
    NANO,
    UNLIMITED,
    Amounts,
    BudgetTerms,
    OnBudgetEnd,
    OnUnpriced,
)
from outlast.core.instant import Span
from outlast.core.setting import count_of, one_of, seconds_of
from outlast.errors import InvalidDefinition

MOST_USD = 10**8
LEAST_USD = Decimal("0.000000001")
MOST_TOKENS = 10**15
LEAST_SECONDS = 0.001
COUNTS = ("tokens", "model_calls", "tool_calls", "steps")


class Budget(Struct, frozen=True, kw_only=True):
    """How much may be used; what is None is not limited.

    A call is reserved before it is made: a model call by its estimated input and its maximum
    output.

    Attributes:
        tokens: Tokens of input and output.
        usd: US dollars.
        model_calls: Model calls.
        tool_calls: Tool calls.
        wall_time: Active time; waiting for people, children or a provider does not count.
        steps: Steps: model calls with the tool calls that they ask for.
        on_end: What happens when too little is left: a human is asked for more ("ask"), the turn
            fails ("fail"), or the model is asked a last time, without tools, for what it has
            ("hand_back").
        unpriced: Whether a call of unknown price is refused ("refuse") or made without counting in
            dollars ("allow").
    """

    tokens: int | None = None
    usd: Decimal | float | str | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    wall_time: Span | None = None
    steps: int | None = None
    on_end: OnBudgetEnd = "ask"
    unpriced: OnUnpriced = "refuse"

    @property
    def terms(self) -> BudgetTerms:
        """These as they are kept: whole numbers."""
        time = self.wall_time
        seconds = time.total_seconds() if isinstance(time, timedelta) else time
        given = {
            **{name: getattr(self, name) for name in COUNTS},
            "nano_usd": None if self.usd is None else int(Decimal(str(self.usd)) * NANO),
            "wall_ms": None if seconds is None else int(seconds * 1000),
        }
        limits = {name: UNLIMITED if each is None else each for name, each in given.items()}
        return BudgetTerms(Amounts(**limits), self.on_end, self.unpriced)


def budget_of(terms: BudgetTerms) -> Budget:
    """Return terms as people state them."""
    known = {name: limit for name, limit in asdict(terms.limits).items() if limit != UNLIMITED}
    nano, time = known.pop("nano_usd", None), known.pop("wall_ms", None)
    return Budget(
        **known,
        usd=None if nano is None else Decimal(nano) / NANO,
        wall_time=None if time is None else time / 1000,
        on_end=terms.on_end,
        unpriced=terms.unpriced,
    )


def checked_budget(what: str, given: Any) -> Budget | None:
    """Return a budget that limits something, or none where there is none."""
    if given is None:
        return None
    if not isinstance(given, Budget):
        raise InvalidDefinition(f"{what} is a Budget(usd=…, tokens=…), not {given!r}")
    if all(getattr(given, name) is None for name in (*COUNTS, "usd", "wall_time")):
        raise InvalidDefinition(
            f"{what} limits nothing: give it tokens, usd, model_calls, tool_calls, wall_time or"
            " steps"
        )
    for name in COUNTS[1:]:
        if getattr(given, name) is not None:
            count_of(f"{name} of {what}", getattr(given, name))
    tokens: Any = given.tokens
    if tokens is not None and (type(tokens) is not int or not 1 <= tokens <= MOST_TOKENS):
        raise InvalidDefinition(
            f"tokens of {what} is a whole number from 1 to {MOST_TOKENS:,}, not {tokens!r}"
        )
    if given.wall_time is not None:
        seconds = seconds_of(f"wall_time of {what}", given.wall_time)
        # Kept in whole milliseconds: less would be a budget that never allows anything.
        if seconds < LEAST_SECONDS:
            raise InvalidDefinition(
                f"wall_time of {what} is at least {LEAST_SECONDS} seconds, not {given.wall_time!r}"
            )
    if given.usd is not None:
        check_usd(what, given.usd)
    one_of(OnBudgetEnd, f"on_end of {what}", given.on_end)
    one_of(OnUnpriced, f"unpriced of {what}", given.unpriced)
    return given


def check_usd(what: str, usd: Any) -> None:
    try:
        value = Decimal(str(usd))
    except InvalidOperation:
        value = Decimal("NaN")
    if isinstance(usd, bool) or not value.is_finite() or not LEAST_USD <= value <= MOST_USD:
        raise InvalidDefinition(
            f"usd of {what} is US dollars, from {LEAST_USD:f} to {MOST_USD:,}, not {usd!r}"
        )
