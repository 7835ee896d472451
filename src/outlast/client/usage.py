"""The usage that a server adds up for the caller's tenant: `client.usage`."""

from datetime import date
from typing import Any

from msgspec import Struct

from outlast.client.connection import ServerConnection
from outlast.client.decode import decode
from outlast.client.encode import some
from outlast.client.listing import ListPage
from outlast.core.record import UsageSum
from outlast.store import UsageKey, UsageLine


class WireUsageLine(Struct):
    key: str
    own: UsageSum = UsageSum()
    remote: UsageSum = UsageSum()

    def value(self) -> UsageLine:
        return UsageLine(key=self.key, own=self.own, remote=self.remote)


class WireUsage(Struct):
    lines: tuple[WireUsageLine, ...]
    next_cursor: str | None = None


class RemoteUsage:
    """The usage of the caller's tenant, that of erased sessions included: `client.usage`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def by(
        self,
        key: UsageKey,
        *,
        session_id: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        principal: str | None = None,
        since: date | None = None,
        until: date | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> ListPage[UsageLine]:
        """Add up usage by session, agent, model, tenant, principal or day, in the key's order.

        `since` and `until` are the first and the last day, in UTC; a page's `cursor` says where to
        go on with `after`.
        """
        query = filters(session_id, agent, model, principal, since, until)
        query |= some(by=key, cursor=after, limit=limit)
        found = decode(await self._connection.call("GET", "/usage", query=query), WireUsage)
        return ListPage((each.value() for each in found.lines), found.next_cursor)

    async def total(
        self,
        *,
        session_id: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        principal: str | None = None,
        since: date | None = None,
        until: date | None = None,
    ) -> UsageLine:
        """Add up all usage, or what is asked for."""
        query = filters(session_id, agent, model, principal, since, until)
        raw = await self._connection.call("GET", "/usage/total", query=query)
        return decode(raw, WireUsageLine).value()


def filters(
    session_id: str | None,
    agent: str | None,
    model: str | None,
    principal: str | None,
    since: date | None,
    until: date | None,
) -> dict[str, Any]:
    return some(
        session_id=session_id,
        agent=agent,
        model=model,
        principal=principal,
        since=since.isoformat() if since else None,
        until=until.isoformat() if until else None,
    )
