"""The budgets of the caller's tenant, behind a server: `client.budgets`."""

from decimal import Decimal
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from outlast.agents.budget import Budget, checked_budget
from outlast.client.connection import ServerConnection
from outlast.client.decode import decode
from outlast.client.encode import budget_out, some
from outlast.client.listing import ListPage
from outlast.core.amount import NANO, Amounts, OnBudgetEnd, OnUnpriced
from outlast.session.budget import BudgetStatus, Per, key_of


class WireBudget(Struct):
    tokens: int | None = None
    usd: str | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    wall_time: float | None = None
    steps: int | None = None
    on_end: OnBudgetEnd = "ask"
    unpriced: OnUnpriced = "refuse"

    def value(self) -> Budget:
        usd = None if self.usd is None else Decimal(self.usd)
        return Budget(**{**asdict(self), "usd": usd})


class WireAmounts(Struct):
    tokens: int
    usd: str
    model_calls: int
    tool_calls: int
    wall_time: float
    steps: int

    def value(self) -> Amounts:
        return Amounts(
            self.tokens,
            int(Decimal(self.usd) * NANO),
            self.model_calls,
            self.tool_calls,
            round(self.wall_time * 1000),
            self.steps,
        )


class WireBudgetStatus(Struct):
    principal: str
    session_id: str
    per: Per
    budget: WireBudget
    spent: WireAmounts
    reserved: WireAmounts
    revision: int

    def value(self) -> BudgetStatus:
        return BudgetStatus(
            tenant="",
            principal=self.principal,
            session_id=self.session_id,
            per=self.per,
            budget=self.budget.value(),
            spent=self.spent.value(),
            reserved=self.reserved.value(),
            revision=self.revision,
        )


class WireBudgetChange(Struct):
    budget: WireBudgetStatus | None


class WireBudgets(Struct):
    budgets: tuple[WireBudgetStatus, ...]
    next_cursor: str | None = None


class RemoteBudgets:
    """The budgets of the caller's tenant: `client.budgets`. Their `tenant` is empty here."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def set(
        self,
        budget: Budget | None,
        *,
        principal: str = "",
        session_id: str = "",
        per: Per = "total",
        expected: int | None = None,
    ) -> BudgetStatus | None:
        """Set what the tenant, a principal of it or a session may use; None takes it away.

        It needs a key with the scope `admin`. With the revision `expected` (0: it was never set)
        BudgetChanged is raised if somebody else was quicker.
        """
        key_of(principal, session_id, per)
        checked = checked_budget("budget", budget)
        body: dict[str, Any] = {
            "budget": budget_out(checked) if checked else None,
            **some(session_id=session_id or None, expected=expected),
            "principal": principal,
            "per": per,
        }
        raw = await self._connection.call("PUT", "/budgets", body=body)
        found = decode(raw, WireBudgetChange).budget
        return found.value() if found else None

    async def list(self, *, after: str | None = None, limit: int = 50) -> ListPage[BudgetStatus]:
        """List the budgets that were set; a page's `cursor` says where to go on with `after`."""
        raw = await self._connection.call("GET", "/budgets", query=some(cursor=after, limit=limit))
        found = decode(raw, WireBudgets)
        return ListPage((each.value() for each in found.budgets), found.next_cursor)
