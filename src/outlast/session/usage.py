"""What models were used for, and what that has cost: `app.usage`.

Owns how usage is asked for; the rows are the store's (`store/usage.py`).
"""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, cast, get_args

from outlast.core.usage import day_number
from outlast.errors import InvalidInput
from outlast.session.listing import check_limit, check_sought
from outlast.store import Store, UsageFilter, UsageKey, UsageLine

KEYS = get_args(UsageKey)
NOTHING = UsageLine(key="")


class UsageControl:
    """The usage of all sessions, erased ones included: `app.usage`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def by(
        self,
        key: UsageKey,
        *,
        tenant: str | None = None,
        session_id: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        principal: str | None = None,
        since: date | None = None,
        until: date | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Sequence[UsageLine]:
        """Add up usage by session, agent, model, tenant, principal or day, in the key's order.

        `since` and `until` are the first and the last day, in UTC. `after` is the key of the line
        to go on behind.
        """
        wanted = usage_filter(tenant, session_id, agent, model, principal, since, until)
        key = check_key(key)
        limit = check_limit(limit)
        return tuple(await self._store.usage.by(key, wanted, after=after, limit=limit))

    async def total(
        self,
        *,
        tenant: str | None = None,
        session_id: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        principal: str | None = None,
        since: date | None = None,
        until: date | None = None,
    ) -> UsageLine:
        """Add up all usage, or what is asked for."""
        wanted = usage_filter(tenant, session_id, agent, model, principal, since, until)
        found = await self._store.usage.by(None, wanted, limit=1)
        return found[0] if found else NOTHING


def usage_filter(
    tenant: str | None,
    session_id: str | None,
    agent: str | None,
    model: str | None,
    principal: str | None,
    since: date | None,
    until: date | None,
) -> UsageFilter:
    return UsageFilter(
        tenant=check_sought("tenant", tenant),
        session_id=check_sought("session_id", session_id),
        agent=check_sought("agent", agent),
        model=check_sought("model", model),
        principal=check_sought("principal", principal),
        since=check_day("since", since),
        until=check_day("until", until),
    )


def check_key(key: Any) -> UsageKey:
    if key not in KEYS:
        raise InvalidInput(f"usage is added up by one of {', '.join(KEYS)}, not by {key!r}")
    return cast("UsageKey", key)


def check_day(what: str, day: Any) -> int | None:
    """Return a day's number; an instant is no day, as it has another one elsewhere."""
    if day is None:
        return None
    # A datetime is a date in Python, and would be taken for its day in whatever zone it has.
    if not isinstance(day, date) or isinstance(day, datetime):
        raise InvalidInput(f"{what} is a date, a whole day in UTC: date(2099, 1, 31)")
    return day_number(day)
