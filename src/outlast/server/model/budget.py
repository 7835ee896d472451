"""Budgets over the wire: what is allowed, spent and reserved."""

from decimal import Decimal
from typing import Annotated, Any

from msgspec.structs import asdict
from pydantic import Field

from outlast.agents.budget import Budget, checked_budget
from outlast.core.amount import NANO, Amounts, OnBudgetEnd, OnUnpriced
from outlast.errors import InvalidDefinition, InvalidInput
from outlast.server.model.shape import Id, In, Out, example
from outlast.session.budget import BudgetStatus, Per

AMOUNTS = {
    "tokens": 12_000,
    "usd": "0.25",
    "model_calls": 9,
    "tool_calls": 4,
    "wall_time": 30.5,
    "steps": 9,
}
LIMITS = {**dict.fromkeys(AMOUNTS), "usd": "2"}
A_BUDGET = {**LIMITS, "on_end": "ask", "unpriced": "refuse"}
A_STATUS = {
    "principal": "",
    "session_id": "",
    "per": "day",
    "budget": A_BUDGET,
    "spent": AMOUNTS,
    "reserved": dict.fromkeys(AMOUNTS, 0) | {"usd": "0"},
    "revision": 3,
}

Dollars = Annotated[str, Field(max_length=30, description="US dollars.", examples=["2.50"])]


class BudgetIn(In):
    """How much may be used; what is left out is not limited."""

    model_config = example({"usd": "2.50", "on_end": "ask"})

    tokens: int | None = None
    usd: Dollars | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    wall_time: float | None = Field(None, description="Seconds of active time.")
    steps: int | None = None
    on_end: OnBudgetEnd = Field("ask", description="What happens at its end.")
    unpriced: OnUnpriced = Field("refuse", description="What happens to calls of unknown price.")

    def value(self) -> Budget:
        """Return the budget, or refuse one that cannot be kept."""
        found = Budget(**self.model_dump())
        try:
            checked_budget("budget", found)
        except InvalidDefinition as error:
            raise InvalidInput(error.message) from None
        return found


class SetBudgetIn(In):
    """A budget to set, or to take away."""

    model_config = example({"per": "day", "budget": {"usd": "2.50"}})

    principal: str = Field("", max_length=512, description="Whose; empty: the whole tenant's.")
    session_id: Id | None = Field(None, description="Of one session instead.")
    per: Per = Field("total", description="`day`: it begins anew at midnight in UTC.")
    budget: BudgetIn | None = Field(description="null takes the budget away.")
    expected: int | None = Field(
        None, ge=0, description="The revision that you know; 0: it was never set."
    )


class BudgetOut(Out):
    """What a budget allows; what is null is not limited."""

    model_config = example(A_BUDGET)

    tokens: int | None
    usd: str | None
    model_calls: int | None
    tool_calls: int | None
    wall_time: float | None
    steps: int | None
    on_end: OnBudgetEnd
    unpriced: OnUnpriced


class AmountsOut(Out):
    """So much of each; `wall_time` is in seconds."""

    model_config = example(AMOUNTS)

    tokens: int
    usd: str
    model_calls: int
    tool_calls: int
    wall_time: float
    steps: int


class BudgetStatusOut(Out):
    """A budget as it stands."""

    model_config = example(A_STATUS)

    principal: str
    session_id: str
    per: Per
    budget: BudgetOut
    spent: AmountsOut
    reserved: AmountsOut
    revision: int


class BudgetChangedOut(Out):
    """The budget as it stands now; null: it was taken away."""

    model_config = example({"budget": A_STATUS})

    budget: BudgetStatusOut | None


class BudgetPage(Out):
    """Budgets that were set, in an order of their own."""

    model_config = example({"budgets": [A_STATUS], "next_cursor": None})

    budgets: list[BudgetStatusOut]
    next_cursor: str | None = Field(description="Where the next page begins, if there is one.")


def status_out(status: BudgetStatus) -> BudgetStatusOut:
    return BudgetStatusOut(
        principal=status.principal,
        session_id=status.session_id,
        per=status.per,
        budget=BudgetOut(**plain_budget(status.budget)),
        spent=AmountsOut(**plain_amounts(status.spent)),
        reserved=AmountsOut(**plain_amounts(status.reserved)),
        revision=status.revision,
    )


def plain_budget(budget: Budget) -> dict[str, Any]:
    """Return a budget as JSON has it."""
    usd = budget.usd
    plain = asdict(budget) | {"usd": None if usd is None else dollars(Decimal(str(usd)))}
    if budget.wall_time is not None:
        plain["wall_time"] = budget.terms.limits.wall_ms / 1000
    return plain


def plain_amounts(amounts: Amounts) -> dict[str, Any]:
    """Return amounts as JSON has them."""
    plain = asdict(amounts)
    usd = dollars(Decimal(plain.pop("nano_usd")) / NANO)
    seconds = plain.pop("wall_ms") / 1000
    return {**plain, "usd": usd, "wall_time": seconds}


def dollars(usd: Decimal) -> str:
    return f"{usd.normalize():f}"
