"""The topic `budget` in PostgreSQL. See `outlast.store.budget` for the promises.

Sets and lists budgets. What commits reserve and spend of them is written with the commit
(`commit.py`, functions/budget.sql).
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import astuple

from outlast.core.amount import Amounts, BudgetKey, BudgetState, BudgetTerms
from outlast.core.usage import day_of
from outlast.store import BudgetInfo, BudgetMismatch, BudgetUse
from outlast.stores.postgres.access import PostgresAccess
from outlast.stores.postgres.pipeline import Row


class PostgresBudget:
    """See `outlast.store.BudgetStore`."""

    def __init__(self, access: PostgresAccess) -> None:
        self._access = access

    async def newest_budget(self) -> int:
        ((newest,),) = await self._access.ask("newest_budget", {})
        return int(newest)

    async def find_budgets(self, tenant: str, keys: Sequence[BudgetKey]) -> Sequence[BudgetState]:
        wanted = [{"scope": key.scope, "who": key.who, "day": key.day} for key in keys]
        params = {"tenant": tenant, "keys": msgspec.json.encode(wanted).decode()}
        return [state_of(row) for row in await self._access.ask("find_budgets", params)]

    async def set_budget(
        self, tenant: str, key: BudgetKey, terms: BudgetTerms | None, *, expected: int | None
    ) -> BudgetInfo | None:
        place = {"tenant": tenant, "scope": key.scope, "who": key.who, "day": key.day}
        limits = astuple(terms.limits) if terms else None
        texts = {
            "terms": msgspec.json.encode(terms).decode(),
            "limits": msgspec.json.encode(limits).decode(),
        }
        today = day_of(self._access.server_clock.date())
        statement = self._access.queries["set_budget"].bind(
            {**place, **texts, "expected": expected, "today": today}
        )
        doubts: list[bool] = []
        rows = await self._access.parts().ungrouped.ask(statement, lambda: doubts.append(True))
        (info,) = map(info_of, await self._access.ask("budget_info", {**place, "today": today}))
        is_set = rows != [(None,)]
        # The first try may have landed: then the budget has these terms already.
        return info if is_set or (doubts and info.terms == terms) else None

    async def list_budgets(
        self, tenant: str | None = None, *, after: BudgetInfo | None = None, limit: int = 100
    ) -> Sequence[BudgetInfo]:
        wanted = {
            "tenant": tenant,
            "after_tenant": after.tenant if after else None,
            "after_scope": after.key.scope if after else None,
            "after_who": after.key.who if after else None,
            "after_day": after.key.day if after else None,
            "limit": limit,
            "today": day_of(self._access.server_clock.date()),
        }
        return [info_of(row) for row in await self._access.ask("list_budgets", wanted)]

    async def budget_uses(self, session_id: str) -> Sequence[BudgetUse]:
        found = await self._access.ask("budget_uses", {"session_id": session_id})
        return [
            BudgetUse(BudgetKey(scope, who, day), amounts(reserved), amounts(spent))
            for scope, who, day, reserved, spent in found
        ]

    async def budget_mismatches(self) -> Sequence[BudgetMismatch]:
        return [mismatch_of(row) for row in await self._access.ask("budget_mismatches", {})]

    async def balance_budgets(self) -> int:
        found = await self.budget_mismatches()
        for each in found:
            key = each.key
            place = {"tenant": each.tenant, "scope": key.scope, "who": key.who, "day": key.day}
            statement = self._access.queries["balance_budget"].bind(place)
            # Whether an earlier try has landed does not matter: the sum is the same.
            await self._access.parts().ungrouped.ask(statement, lambda: None)
        return len(found)


def amounts(text: str) -> Amounts:
    """Return amounts as an array of the database writes them."""
    return Amounts(*map(int, text.strip("{}").split(",")))


def terms_of(text: str | None) -> BudgetTerms | None:
    return msgspec.json.decode(text, type=BudgetTerms) if text else None


def state_of(row: Row) -> BudgetState:
    scope, who, day, terms, reserved, spent, returns = row
    key = BudgetKey(scope, who, day)
    # Without terms: a budget that was taken from its session.
    return BudgetState(
        key, terms_of(terms) or BudgetTerms(), amounts(reserved), amounts(spent), returns
    )


def mismatch_of(row: Row) -> BudgetMismatch:
    tenant, scope, who, day, reserved, spent, used_reserved, used_spent = row
    key = BudgetKey(scope, who, day)
    used = BudgetUse(key, amounts(used_reserved), amounts(used_spent))
    return BudgetMismatch(tenant, key, amounts(reserved), amounts(spent), used)


def info_of(row: Row) -> BudgetInfo:
    tenant, scope, who, day, terms, revision, reserved, spent = row
    return BudgetInfo(
        tenant=tenant,
        key=BudgetKey(scope, who, day),
        terms=terms_of(terms),
        revision=revision,
        reserved=amounts(reserved),
        spent=amounts(spent),
    )
