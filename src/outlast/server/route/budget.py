"""Budgets: what the caller's tenant, its principals and its sessions may use."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query

from outlast.agents.budget import Budget
from outlast.core.amount import NOTHING
from outlast.server.body import JsonRoute
from outlast.server.dependency import Admin, Reader, Served, answers
from outlast.server.error import invalid_cursor
from outlast.server.model.budget import (
    BudgetChangedOut,
    BudgetPage,
    SetBudgetIn,
    status_out,
)
from outlast.server.model.shape import Id
from outlast.server.route.session import Limit
from outlast.session.budget import BudgetStatus, Per

router = APIRouter(tags=["budgets"], route_class=JsonRoute)


@router.get("/budgets", responses=answers(400))
async def list_budgets(
    caller: Reader,
    backend: Served,
    cursor: Annotated[Id | None, Query(description="From where the last page ended.")] = None,
    limit: Limit = 50,
) -> BudgetPage:
    """List the budgets that were set, with what is spent and reserved of them."""
    after = None if cursor is None else behind(cursor, caller.tenant)
    found = await backend.app.budgets.list(tenant=caller.tenant, after=after, limit=limit)
    return BudgetPage(
        budgets=[status_out(each) for each in found],
        next_cursor=cursor_of(found[-1]) if len(found) == limit else None,
    )


@router.put("/budgets", responses=answers(404, 409, body=True))
async def set_budget(caller: Admin, backend: Served, body: SetBudgetIn) -> BudgetChangedOut:
    """Set what the tenant, a principal or a session may use, or take that budget away.

    It holds for the calls that begin a second later. Sessions that wait for it go on when it is
    raised.
    """
    if body.session_id:
        await backend.handle(caller, body.session_id)  # it is the caller's to see, or unknown
    status = await backend.app.budgets.set(
        body.budget.value() if body.budget else None,
        tenant=caller.tenant,
        principal=body.principal,
        session_id=body.session_id or "",
        per=body.per,
        expected=body.expected,
    )
    return BudgetChangedOut(budget=status_out(status) if status else None)


def cursor_of(status: BudgetStatus) -> str:
    """Return the cursor that stands behind a budget."""
    key = [status.principal, status.session_id, status.per]
    return "b" + urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def behind(cursor: str, tenant: str) -> BudgetStatus:
    """Return the budget that a cursor stands behind, as far as it has to be known."""
    text = cursor[1:]
    try:
        if not cursor.startswith("b"):
            raise ValueError(cursor)
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        principal, session_id, per = msgspec.json.decode(raw, type=tuple[str, str, Per])
    except (ValueError, msgspec.MsgspecError):
        raise invalid_cursor("cursor") from None
    if "\0" in principal + session_id:
        raise invalid_cursor("cursor")
    return BudgetStatus(
        tenant=tenant,
        principal=principal,
        session_id=session_id,
        per=per,
        budget=Budget(),
        spent=NOTHING,
        reserved=NOTHING,
        revision=0,
    )
