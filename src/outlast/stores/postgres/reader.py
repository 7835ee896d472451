"""The connections that read: questions go out as they come, answers in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlast.stores.postgres.pipeline import Rows
from outlast.stores.postgres.reconnect import ReconnectingConnection
from outlast.stores.postgres.statement import Query, Statement


class Readers:
    """Asks on the line with the fewest questions under way; any question may be asked twice."""

    def __init__(
        self, lines: Sequence[ReconnectingConnection], queries: Mapping[str, Query]
    ) -> None:
        self._lines = lines
        self._blobs = queries["blobs"]
        self._heads = queries["heads_of_blobs"]

    async def ask(self, statement: Statement) -> Rows:
        line = min(self._lines, key=lambda line: line.load)
        return await line.ask(statement)

    async def blobs(self, tenant: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return large values by their names, as they are stored."""
        return await self._by_name(self._blobs, tenant, names)

    async def heads(self, tenant: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return of large values by their names what says how large they are."""
        return await self._by_name(self._heads, tenant, names)

    async def _by_name(self, query: Query, tenant: str, names: Sequence[str]) -> dict[str, bytes]:
        hashes = "[" + ",".join(f'"{name}"' for name in names) + "]"
        return dict(await self.ask(query.bind({"tenant": tenant, "hashes": hashes})))

    async def close(self) -> None:
        """Answer what was asked, then let go."""
        while any(line.is_asked for line in self._lines):  # the next may be asked on another
            for line in self._lines:
                await line.until_idle()
        for line in self._lines:
            line.close()
