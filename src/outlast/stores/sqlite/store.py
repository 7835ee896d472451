"""The SQLite store: eight topics over one file.

One connection writes, two threads read, and each lease has a connection of its own (`file.py`).
Each topic is in the module of its name; `memory.py` has the same topics without a file.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from outlast.clock import Clock
from outlast.store.clock import LocalStoreClock
from outlast.stores.sqlite.budget import SqliteBudget
from outlast.stores.sqlite.database import check_process
from outlast.stores.sqlite.document import SqliteDocument
from outlast.stores.sqlite.file import FileAccess
from outlast.stores.sqlite.limit import SqliteLimit
from outlast.stores.sqlite.listing import SqliteListing
from outlast.stores.sqlite.log import SqliteLog
from outlast.stores.sqlite.outbox import SqliteOutbox
from outlast.stores.sqlite.usage import SqliteUsage
from outlast.stores.sqlite.work import SqliteWork


class SqliteStore:
    """A `outlast.store.Store` in one file. Nothing touches the disk before `migrate()`."""

    def __init__(self, path: str | Path, clock: Clock | None = None) -> None:
        self._access = FileAccess(Path(os.path.realpath(path)), clock or Clock())
        self.clock = LocalStoreClock(self._access.clock)
        self._opening = asyncio.Lock()
        self.log = SqliteLog(self._access)
        self.work = SqliteWork(self._access)
        self.listing = SqliteListing(self._access)
        self.limit = SqliteLimit(self._access)
        self.outbox = SqliteOutbox(self._access)
        self.document = SqliteDocument(self._access)
        self.usage = SqliteUsage(self._access)
        self.budget = SqliteBudget(self._access)

    def __repr__(self) -> str:
        return f"SqliteStore({self._access.path})"

    async def migrate(self) -> None:
        check_process(self._access.pid)
        async with self._opening:
            if self._access.writer:
                return
            await self._access.open()
        await self.log.resume_erasing()

    async def close(self) -> None:
        check_process(self._access.pid)
        async with self._opening:
            if self._access.writer:
                await self.work.close()
                await self._access.close()

    def counts(self) -> Mapping[str, int]:
        return self._access.writer.counts if self._access.writer else {}
