"""A connection for what is neither read nor written with a group.

Each statement is a transaction of its own, so that it holds nothing while it waits: a group
holds much, and a question should wait for nobody.
"""

from __future__ import annotations

from collections.abc import Callable

from outlast.stores.postgres.pipeline import Rows
from outlast.stores.postgres.reconnect import ReconnectingConnection
from outlast.stores.postgres.statement import Statement


class SideConnection:
    """The line that such statements share."""

    def __init__(self, line: ReconnectingConnection) -> None:
        self._line = line

    async def do(self, statement: Statement, doubt: Callable[[], None] | None = None) -> Rows:
        """Run a statement; `doubt` is called if it may have been done and is done again."""
        return await self._line.ask(statement, doubt)

    async def close(self) -> None:
        """Finish what is under way, then let go."""
        await self._line.until_idle()
        self._line.close()
