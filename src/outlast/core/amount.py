"""What budgets count: amounts, the names of budgets, and their terms.

Owns the plain types that records, rows and decisions share. How a budget is kept to is in
`budget.py`. All sums are of whole numbers: money is counted in billionths of a US dollar.
"""

from typing import Literal, Self

from msgspec import Struct
from msgspec.structs import astuple

UNLIMITED = 2**62
"""The limit of what a budget does not limit."""

BudgetScope = Literal["turn", "session", "principal", "tenant"]
OnBudgetEnd = Literal["ask", "fail", "hand_back"]
"""What happens at the end of a budget: a human is asked for more, the turn fails, or the model is
asked a last time, without tools, for what it has."""
OnUnpriced = Literal["refuse", "allow"]
"""Whether a call of unknown price is made under a budget in dollars, which does not count it."""

NANO = 10**9
"""So many of them are a US dollar."""
DAILY = -1
"""In the place of a day: the terms of a budget that begins anew each day."""


class Amounts(Struct, frozen=True, gc=False, omit_defaults=True):
    """So much of everything that a budget may limit."""

    tokens: int = 0
    nano_usd: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    wall_ms: int = 0
    steps: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(int.__add__, astuple(self), astuple(other)))

    def __sub__(self, other: Self) -> Self:
        return type(self)(*map(int.__sub__, astuple(self), astuple(other)))

    def __bool__(self) -> bool:
        return any(astuple(self))


NOTHING = Amounts()
NO_LIMITS = Amounts(*(UNLIMITED for _ in Amounts.__struct_fields__))


def least_of(one: Amounts, other: Amounts) -> Amounts:
    """Return the smaller of each."""
    return Amounts(*map(min, astuple(one), astuple(other)))


def raised(limits: Amounts, by: Amounts) -> Amounts:
    """Return limits after they were raised; what is not limited stays so."""
    pairs = zip(astuple(limits), astuple(by), strict=True)
    return Amounts(*(UNLIMITED if old == UNLIMITED else old + more for old, more in pairs))


class BudgetTerms(Struct, frozen=True, gc=False, omit_defaults=True):
    """What a budget limits, and what happens at its end."""

    limits: Amounts = NO_LIMITS
    on_end: OnBudgetEnd = "ask"
    unpriced: OnUnpriced = "refuse"


class BudgetKey(Struct, frozen=True, gc=False, order=True, omit_defaults=True):
    """The name of a budget within its tenant.

    `who` is the session or the principal that it belongs to. A daily one has the `day` since 1970
    in UTC, or DAILY where its terms are meant; 0 is one without an end.
    """

    scope: BudgetScope
    who: str = ""
    day: int = 0

    @property
    def text(self) -> str:
        """What people call it: "the tenant's budget of the day"."""
        names = {
            "turn": "the turn's budget",
            "session": "the session's budget",
            "principal": f"the budget of {self.who}",
            "tenant": "the tenant's budget",
        }
        return names[self.scope] + (" of the day" if self.day else "")


class BudgetChange(Struct, frozen=True, gc=False, omit_defaults=True):
    """What a commit changes in one budget: what is reserved, spent, and allowed.

    A change that takes nothing back is refused where it would pass a limit. `terms` are those of
    a session's budget that may have no row yet.
    """

    key: BudgetKey
    reserved: Amounts = NOTHING
    spent: Amounts = NOTHING
    raised: Amounts = NOTHING
    terms: BudgetTerms | None = None

    @property
    def is_asking(self) -> bool:
        """Whether it asks for something, and so can be refused."""
        return min(astuple(self.reserved)) >= 0 and not self.raised


class BudgetState(Struct, frozen=True, gc=False):
    """A budget as it stands. `returns` grows whenever something in it becomes free."""

    key: BudgetKey
    terms: BudgetTerms
    reserved: Amounts = NOTHING
    spent: Amounts = NOTHING
    returns: int = 0

    @property
    def left(self) -> Amounts:
        """What is not spent yet, reserved or not."""
        return self.terms.limits - self.spent

    @property
    def free(self) -> Amounts:
        """What is neither spent nor reserved."""
        return self.terms.limits - self.spent - self.reserved


class BudgetHold(Struct, frozen=True, gc=False, omit_defaults=True):
    """What a call has reserved, and in which budgets: the turn's counts it in any case.

    The request of a model call has about `input_tokens`; its answer has `max_tokens` at most, if
    that is not 0. It was made in a `turn`.
    """

    amounts: Amounts
    turn: str = ""
    budgets: tuple[BudgetKey, ...] = ()
    input_tokens: int = 0
    max_tokens: int = 0

    @property
    def has_rows(self) -> bool:
        """Whether others can reserve of some of its budgets: the turn's is its lane's alone."""
        return any(key.scope != "turn" for key in self.budgets)
