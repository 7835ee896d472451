"""The topic `usage` in PostgreSQL. See `outlast.store.usage` for the promises.

Reads sums only; commits add to the rows (functions/usage.sql).
"""

from collections.abc import Sequence

from msgspec.structs import asdict

from outlast.core.record import UsageSum
from outlast.core.usage import TreeUsage, UsageRow
from outlast.store import UsageFilter, UsageKey, UsageLine
from outlast.stores.postgres.access import PostgresAccess
from outlast.stores.postgres.pipeline import Row

SUMS = len(UsageSum.__struct_fields__)


class PostgresUsage:
    """See `outlast.store.UsageStore`."""

    def __init__(self, access: PostgresAccess) -> None:
        self._access = access

    async def by(
        self,
        key: UsageKey | None,
        wanted: UsageFilter,
        *,
        after: str | None = None,
        limit: int = 50,
    ) -> Sequence[UsageLine]:
        sought = {"by": key, **asdict(wanted), "after": after, "limit": limit}
        return [line(row) for row in await self._access.ask("usage_by", sought)]

    async def tree(self, session_id: str) -> TreeUsage:
        (row,) = await self._access.ask("usage_of_tree", {"session_id": session_id})
        return TreeUsage(UsageSum(*row[:SUMS]), UsageSum(*row[SUMS:]))

    async def rows(self, session_id: str) -> Sequence[UsageRow]:
        found = await self._access.ask("usage_of_session", {"session_id": session_id})
        return [stored(row) for row in found]


def line(row: Row) -> UsageLine:
    return UsageLine(
        key=row[0], own=UsageSum(*row[1 : 1 + SUMS]), remote=UsageSum(*row[1 + SUMS :])
    )


def stored(row: Row) -> UsageRow:
    tenant, agent, model, principal, remote, day, *used = row
    return UsageRow(tenant, agent, model, principal, remote, day, UsageSum(*used))
