"""`outlast budgets`: what tenants, principals and sessions may use, and what of it is spent."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast

import typer

from outlast.agents.budget import Budget
from outlast.cli.terminal.option import DEFAULT_STORE, AsJson, StoreUrl, open_place, span_of
from outlast.cli.terminal.output import json_out, out, table
from outlast.cli.terminal.run import command
from outlast.core.amount import Amounts, OnBudgetEnd, OnUnpriced
from outlast.core.budget import figure, limited
from outlast.session.budget import BudgetStatus, Per

HEADERS = ("TENANT", "WHOSE", "PER", "ALLOWED", "SPENT", "RESERVED", "AT THE END")

Tenant = Annotated[str, typer.Option(help="Of this tenant.")]
Principal = Annotated[str, typer.Option(help="Of this principal of the tenant.")]
OfSession = Annotated[str, typer.Option("--session", help="Of this session instead.")]
PerDay = Annotated[str, typer.Option(help="total, or day: it begins anew at midnight in UTC.")]


@command
async def show(
    tenant: Annotated[str | None, typer.Option(help="Only those of this tenant.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List the budgets that were set, with what is spent and reserved of them.

    Example: outlast budgets show --tenant acme
    """
    async with open_place(store) as app:
        found = await app.budgets.list(tenant=tenant, limit=limit)
    if as_json:
        json_out([plain(each) for each in found])
    elif found:
        table(HEADERS, [row for each in found for row in rows(each)])
    else:
        out("no budgets")


@command
async def set_one(
    tenant: Tenant = "default",
    principal: Principal = "",
    session: OfSession = "",
    per: PerDay = "total",
    tokens: Annotated[int | None, typer.Option(help="So many tokens.")] = None,
    usd: Annotated[str | None, typer.Option(help="So many US dollars.")] = None,
    model_calls: Annotated[int | None, typer.Option(help="So many model calls.")] = None,
    tool_calls: Annotated[int | None, typer.Option(help="So many tool calls.")] = None,
    wall_time: Annotated[
        str | None, typer.Option(metavar="SPAN", help="So much active time: 90s, 5m, 2h.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="So many steps.")] = None,
    on_end: Annotated[str, typer.Option(help="ask, fail or hand_back.")] = "ask",
    unpriced: Annotated[
        str, typer.Option(help="refuse or allow calls whose price is not known.")
    ] = "refuse",
    expected: Annotated[
        int | None, typer.Option(help="Only if its revision is this; 0: it was never set.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Set what a tenant, a principal or a session may use, also while sessions work.

    Example: outlast budgets set --tenant acme --per day --usd 20
    """
    budget = Budget(
        tokens=tokens,
        usd=usd,
        model_calls=model_calls,
        tool_calls=tool_calls,
        wall_time=span_of(wall_time, "--wall-time"),
        steps=steps,
        on_end=cast("OnBudgetEnd", on_end),
        unpriced=cast("OnUnpriced", unpriced),
    )
    await change(budget, store, as_json, tenant, principal, session, per, expected)


@command
async def remove(
    tenant: Tenant = "default",
    principal: Principal = "",
    session: OfSession = "",
    per: PerDay = "total",
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Take a budget away: nothing is limited by it any more.

    Example: outlast budgets remove --tenant acme --per day
    """
    await change(None, store, as_json, tenant, principal, session, per, None)


async def change(
    budget: Budget | None,
    store: str,
    as_json: bool,
    tenant: str,
    principal: str,
    session: str,
    per: str,
    expected: int | None,
) -> None:
    async with open_place(store) as app:
        if session:
            await app.session(session)  # it has to exist
        status = await app.budgets.set(
            budget,
            tenant=tenant,
            principal=principal,
            session_id=session,
            per=cast("Per", per),
            expected=expected,
        )
    if as_json:
        json_out(plain(status) if status else None)
    elif status:
        table(HEADERS, rows(status))
    else:
        out("the budget was taken away")


def rows(status: BudgetStatus) -> list[tuple[str, ...]]:
    """Return a line for each that a budget limits."""
    whose = status.session_id or status.principal or "(all)"
    terms = status.budget.terms
    return [
        (
            status.tenant,
            whose,
            status.per,
            figure(name, limit),
            figure(name, amount(status.spent, name)),
            figure(name, amount(status.reserved, name)),
            terms.on_end,
        )
        for name, limit in limited(terms).items()
    ]


def amount(amounts: Amounts, name: str) -> int:
    return int(getattr(amounts, name))


def plain(status: BudgetStatus) -> dict[str, Any]:
    terms = status.budget.terms
    names = limited(terms)
    return {
        "tenant": status.tenant,
        "principal": status.principal,
        "session_id": status.session_id,
        "per": status.per,
        "limits": names,
        "spent": {name: amount(status.spent, name) for name in Amounts.__struct_fields__},
        "reserved": {name: amount(status.reserved, name) for name in Amounts.__struct_fields__},
        "on_end": terms.on_end,
        "unpriced": terms.unpriced,
        "revision": status.revision,
    }


COMMANDS: Mapping[str, Callable[..., None]] = {"show": show, "set": set_one, "remove": remove}
