"""The topic `usage` in SQLite. See `outlast.store.usage` for the promises.

Owns the rows: `commit.py` has them added to, the topic's methods read their sums.
"""

from collections.abc import Sequence

from msgspec.structs import asdict, astuple

from outlast.core.record import UsageSum
from outlast.core.usage import TreeUsage, UsageChange, UsageRow
from outlast.store import UsageFilter, UsageKey, UsageLine
from outlast.stores.sqlite.access import Access
from outlast.stores.sqlite.database import Database, Row

SUMS = len(UsageSum.__struct_fields__)


class SqliteUsage:
    """See `outlast.store.UsageStore`."""

    def __init__(self, access: Access) -> None:
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
        return await self._access.read(lambda db: [line(row) for row in db.all("usage_by", sought)])

    async def tree(self, session_id: str) -> TreeUsage:
        key = {"session_id": session_id}
        row = await self._access.read(lambda db: db.one("usage_of_tree", key))
        assert row is not None
        return TreeUsage(UsageSum(*row[:SUMS]), UsageSum(*row[SUMS:]))

    async def rows(self, session_id: str) -> Sequence[UsageRow]:
        key = {"session_id": session_id}
        return await self._access.read(
            lambda db: [stored(row) for row in db.all("usage_of_session", key)]
        )


def add_usage(db: Database, sid: int, change: UsageChange, day: int) -> None:
    """Add what a commit tells to the usage of its session."""
    model, principal, remote, used = astuple(change)
    place = {"sid": sid, "model": model, "principal": principal, "remote": remote, "day": day}
    db.run("add_usage", place | asdict(used))


def line(row: Row) -> UsageLine:
    return UsageLine(
        key=row[0], own=UsageSum(*row[1 : 1 + SUMS]), remote=UsageSum(*row[1 + SUMS :])
    )


def stored(row: Row) -> UsageRow:
    tenant, agent, model, principal, remote, day, *used = row
    return UsageRow(tenant, agent, model, principal, remote, day, UsageSum(*used))
