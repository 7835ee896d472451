"""Budgets of tenants, principals and sessions, set while they work: `app.budgets`.

Owns how they are named and checked; the rows are the store's (`store/budget.py`).
"""

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from outlast.agents.budget import Budget, budget_of, checked_budget
from outlast.core.amount import DAILY, NO_LIMITS, Amounts, BudgetKey, BudgetScope
from outlast.core.name import check_id, check_who, is_id
from outlast.errors import BudgetChanged, InvalidInput
from outlast.session.listing import check_limit, check_sought
from outlast.store import BudgetInfo, Store

Per = Literal["total", "day"]


class BudgetStatus(Struct, frozen=True, kw_only=True):
    """A budget: what it allows, and what of it is spent and reserved.

    It belongs to a `principal` or a session if one is named, else to the whole tenant. With
    `per="day"` it begins anew at midnight in UTC. `revision` grows with each change.
    """

    tenant: str
    principal: str = ""
    session_id: str = ""
    per: Per = "total"
    budget: Budget
    spent: Amounts
    reserved: Amounts
    revision: int

    @property
    def free(self) -> Budget:
        """What is neither spent nor reserved."""
        limits = self.budget.terms.limits
        left = limits - self.spent - self.reserved
        pairs = zip(fields_of(limits), fields_of(left), fields_of(NO_LIMITS), strict=True)
        free = Amounts(*(limit if limit == none else max(0, rest) for limit, rest, none in pairs))
        return budget_of(self.budget.terms.__class__(free, self.budget.on_end))


def fields_of(amounts: Amounts) -> list[int]:
    return [getattr(amounts, name) for name in Amounts.__struct_fields__]


class BudgetControl:
    """Budgets of tenants, principals and sessions: `app.budgets`.

    A change holds for calls that begin a second later, in every process; sessions that wait for a
    budget go on when it is raised.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def set(
        self,
        budget: Budget | None,
        *,
        tenant: str = "default",
        principal: str = "",
        session_id: str = "",
        per: Per = "total",
        expected: int | None = None,
    ) -> BudgetStatus | None:
        """Set what a tenant, a principal of it or a session may use; None removes the budget.

        It counts calls that begin after it was set. With the revision `expected` (0: it was never
        set) BudgetChanged is raised if somebody else changed it meanwhile.
        """
        key = key_of(principal, session_id, per)
        terms = found.terms if (found := checked_budget("budget", budget)) else None
        if expected is not None and (type(expected) is not int or not 0 <= expected < 2**63):
            raise InvalidInput(f"expected is a revision, 0 or more, not {expected!r}")
        info = await self._store.budget.set_budget(
            check_id("tenant", tenant), key, terms, expected=expected
        )
        if info is None:
            raise BudgetChanged(
                f"{key.text} was changed meanwhile; look at it and set it again", tenant=tenant
            )
        return status_of(info) if info.terms else None

    async def get(
        self,
        *,
        tenant: str = "default",
        principal: str = "",
        session_id: str = "",
        per: Per = "total",
    ) -> BudgetStatus | None:
        """Return a budget as it stands; None if none is set."""
        key = key_of(principal, session_id, per)
        last: BudgetInfo | None = None
        check_id("tenant", tenant)
        while page := await self._store.budget.list_budgets(tenant, after=last, limit=500):
            for info in page:
                if info.key == key:
                    return status_of(info)
            last = page[-1]
        return None

    async def list(
        self,
        *,
        tenant: str | None = None,
        after: BudgetStatus | None = None,
        limit: int = 50,
    ) -> Sequence[BudgetStatus]:
        """List the budgets that were set, by tenant; `after` is the one to go on behind."""
        check_sought("tenant", tenant)
        last = None
        if after is not None:
            key = key_of(after.principal, after.session_id, after.per)
            last = BudgetInfo(tenant=after.tenant, key=key, terms=None, revision=after.revision)
        found = await self._store.budget.list_budgets(tenant, after=last, limit=check_limit(limit))
        return tuple(status_of(info) for info in found)


def key_of(principal: str, session_id: str, per: Any) -> BudgetKey:
    """Return the key of a budget, if these name one."""
    if per not in ("total", "day"):
        raise InvalidInput(f'per is "total" or "day", not {per!r}')
    if session_id and (principal or per == "day"):
        raise InvalidInput("a session's budget has no principal, and is for all of its days")
    if session_id and not is_id(session_id):
        raise InvalidInput(f"there is no session {session_id!r}")
    scope: BudgetScope = "session" if session_id else "principal" if principal else "tenant"
    who = session_id or check_who("principal", principal)
    return BudgetKey(scope, who, DAILY if per == "day" else 0)


def status_of(info: BudgetInfo) -> BudgetStatus:
    key = info.key
    assert info.terms is not None
    return BudgetStatus(
        tenant=info.tenant,
        principal=key.who if key.scope == "principal" else "",
        session_id=key.who if key.scope == "session" else "",
        per="day" if key.day else "total",
        budget=budget_of(info.terms),
        spent=info.spent,
        reserved=info.reserved,
        revision=info.revision,
    )
