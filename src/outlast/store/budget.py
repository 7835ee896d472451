"""The topic `budget`: what budgets allow, and what of them is reserved and spent.

A budget is a row, known by its key within its tenant. `log.commit` changes it in the same
transaction as the records that it is about (`Commit.budgets`), and refuses a commit that asks for
more than is free. So sessions that share a budget cannot overspend it together. Rows of budgets are
locked after everything else. What each session has reserved and spent is kept beside that, so that
an erased session leaves nothing reserved, and `outlast verify` can compare it with the log.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from outlast.core.amount import NOTHING, Amounts, BudgetKey, BudgetState, BudgetTerms


class BudgetInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A budget that was set, as it stands. One without `terms` was taken away.

    `revision` grows with every change of its terms, in all of the store.
    """

    tenant: str
    key: BudgetKey
    terms: BudgetTerms | None
    revision: int
    reserved: Amounts = NOTHING
    spent: Amounts = NOTHING


class BudgetUse(Struct, frozen=True, gc=False):
    """What one session has reserved and spent of a budget."""

    key: BudgetKey
    reserved: Amounts = NOTHING
    spent: Amounts = NOTHING


class BudgetMismatch(Struct, frozen=True, gc=False):
    """A budget that stands for something else than its sessions have `used` of it together.

    Calls are let in by what its row says: `reserved` and `spent`, nothing if there is no row.
    """

    tenant: str
    key: BudgetKey
    reserved: Amounts
    spent: Amounts
    used: BudgetUse


class BudgetStore(Protocol):
    """Budgets of tenants, principals and sessions."""

    async def newest_budget(self) -> int:
        """Return the newest revision of all budgets; 0 if none was ever set."""
        ...

    async def find_budgets(self, tenant: str, keys: Sequence[BudgetKey]) -> Sequence[BudgetState]:
        """Return how these budgets stand, in any order; those that do not exist are left out.

        A daily one exists on each day from its terms, also where nothing is spent yet. One that was
        taken from a session exists without limits: the session's log does not bring it back.
        """
        ...

    async def set_budget(
        self, tenant: str, key: BudgetKey, terms: BudgetTerms | None, *, expected: int | None
    ) -> BudgetInfo | None:
        """Set the terms of a budget, or take it away; None if its revision is not as `expected`.

        0 is that of a budget that was never set; None is any. What is reserved and spent stays. A
        change of a daily budget holds for today's at once. Lanes that wait for it are made ready.
        """
        ...

    async def list_budgets(
        self, tenant: str | None = None, *, after: BudgetInfo | None = None, limit: int = 100
    ) -> Sequence[BudgetInfo]:
        """Return budgets that were set, by tenant and key; a daily one as it stands today."""
        ...

    async def budget_uses(self, session_id: str) -> Sequence[BudgetUse]:
        """Return what a session has reserved and spent, by budget."""
        ...

    async def budget_mismatches(self) -> Sequence[BudgetMismatch]:
        """Return all budgets whose rows are not the sums of what sessions have used of them.

        Those that were erased are counted by what they had spent. It may be asked while workers
        commit: each commit changes both or neither.
        """
        ...

    async def balance_budgets(self) -> int:
        """Make such rows the sums again, and return how many there were.

        Lanes that wait for one of them are made ready.
        """
        ...
