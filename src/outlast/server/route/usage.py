"""Usage: what the models of the caller's tenant were used for."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BeforeValidator

from outlast.server.body import JsonRoute
from outlast.server.dependency import Reader, Served, answers
from outlast.server.error import invalid_cursor
from outlast.server.model.shape import Id
from outlast.server.model.usage import UsageLineOut, UsagePage, line_out
from outlast.server.route.session import Limit
from outlast.store import UsageKey

DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)

router = APIRouter(tags=["usage"], route_class=JsonRoute)

Key = Annotated[UsageKey, Query(description="By what it is added up.")]
SessionFilter = Annotated[Id | None, Query(description="Only that of this session.")]
AgentFilter = Annotated[Id | None, Query(description="Only that of this agent.")]
ModelFilter = Annotated[Id | None, Query(description="Only that of this model.")]
PrincipalFilter = Annotated[Id | None, Query(description="Only what was used for this principal.")]


def plain_day(text: Any) -> Any:
    """Refuse a number, which would be taken for seconds."""
    if isinstance(text, str) and not DAY.fullmatch(text):
        raise ValueError("a day is told as 2099-01-31")
    return text


Since = Annotated[
    date | None, BeforeValidator(plain_day), Query(description="The first day, in UTC.")
]
Until = Annotated[
    date | None, BeforeValidator(plain_day), Query(description="The last day, in UTC.")
]


@router.get("/usage", responses=answers(400))
async def list_usage(
    caller: Reader,
    backend: Served,
    by: Key = "agent",
    session_id: SessionFilter = None,
    agent: AgentFilter = None,
    model: ModelFilter = None,
    principal: PrincipalFilter = None,
    since: Since = None,
    until: Until = None,
    cursor: Annotated[Id | None, Query(description="From where the last page ended.")] = None,
    limit: Limit = 50,
) -> UsagePage:
    """Add up the usage of models, and what it has cost, in the order of the keys."""
    found = await backend.app.usage.by(
        by,
        tenant=caller.tenant,
        session_id=session_id,
        agent=agent,
        model=model,
        principal=principal,
        since=since,
        until=until,
        after=None if cursor is None else key_of(cursor),
        limit=limit,
    )
    is_more = len(found) == limit
    return UsagePage(
        by=by,
        lines=[line_out(line) for line in found],
        next_cursor=cursor_of(found[-1].key) if is_more else None,
    )


@router.get("/usage/total", responses=answers())
async def total_usage(
    caller: Reader,
    backend: Served,
    session_id: SessionFilter = None,
    agent: AgentFilter = None,
    model: ModelFilter = None,
    principal: PrincipalFilter = None,
    since: Since = None,
    until: Until = None,
) -> UsageLineOut:
    """Add up all of it in one line."""
    return line_out(
        await backend.app.usage.total(
            tenant=caller.tenant,
            session_id=session_id,
            agent=agent,
            model=model,
            principal=principal,
            since=since,
            until=until,
        )
    )


def cursor_of(key: str) -> str:
    """Return the cursor that stands behind a key, which may be empty."""
    return "k" + urlsafe_b64encode(key.encode()).decode().rstrip("=")


def key_of(cursor: str) -> str:
    """Return the key that a cursor stands behind."""
    text = cursor[1:]
    try:
        if not cursor.startswith("k"):
            raise ValueError(cursor)
        key = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        raise invalid_cursor("cursor") from None
    if "\0" in key:
        raise invalid_cursor("cursor")
    return key
