"""The connections that read: queries go out as they come, answers come in their order.

Nothing is written here, so a query may go out twice; NOTIFY is the one exception (`notify.py`).
"""

from collections.abc import Mapping, Sequence

from outlast.stores.postgres.pipeline import Rows
from outlast.stores.postgres.reconnect import ReconnectingConnection
from outlast.stores.postgres.statement import Query, Statement


class Readers:
    """Asks on the connection with the fewest queries under way."""

    def __init__(
        self, connections: Sequence[ReconnectingConnection], queries: Mapping[str, Query]
    ) -> None:
        self._connections = connections
        self._blobs = queries["blobs"]
        self._heads = queries["heads_of_blobs"]

    async def ask(self, statement: Statement) -> Rows:
        least = min(self._connections, key=lambda connection: connection.load)
        return await least.ask(statement)

    async def blobs(self, tenant: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return large values by their names, as they are stored."""
        return await self._by_name(self._blobs, tenant, names)

    async def heads(self, tenant: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return the first bytes of large values by their names, which tell their size."""
        return await self._by_name(self._heads, tenant, names)

    async def _by_name(self, query: Query, tenant: str, names: Sequence[str]) -> dict[str, bytes]:
        hashes = "[" + ",".join(f'"{name}"' for name in names) + "]"
        return dict(await self.ask(query.bind({"tenant": tenant, "hashes": hashes})))

    async def close(self) -> None:
        """Finish what was asked, then close."""
        # The answer on one connection may lead to a query on another.
        while any(connection.is_asked for connection in self._connections):
            for connection in self._connections:
                await connection.until_idle()
        for connection in self._connections:
            connection.close()
