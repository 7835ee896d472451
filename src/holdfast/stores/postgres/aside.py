"""A connection for what is neither read nor written with a group.

Each statement is a transaction of its own, so that it holds nothing while it waits: a group
holds much, and a question should wait for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.stores.postgres.line import Line
from holdfast.stores.postgres.link import Rows
from holdfast.stores.postgres.statement import Statement


class Aside:
    """A line, and how many wait for it."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._waiting = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def do(self, statement: Statement, doubt: Callable[[], None] | None = None) -> Rows:
        """Run a statement; `doubt` is called if it may have been done and is done again."""
        self._waiting += 1
        self._is_idle.clear()
        try:
            return await self._line.ask(statement, doubt)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._is_idle.set()

    async def close(self) -> None:
        """Finish what is under way, then let go."""
        await self._is_idle.wait()
        self._line.close()
