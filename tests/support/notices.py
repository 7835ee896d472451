"""What a process tells its log while it waits for a session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager


class Notices(logging.Handler):
    """Keeps the lines of `outlast.session`, and lets a test wait for the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []
        self._loop = asyncio.get_running_loop()
        self._came = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelname, record.getMessage()))
        self._loop.call_soon_threadsafe(self._came.set)

    async def count(self, wanted: int) -> list[tuple[str, str]]:
        """Wait until there are so many lines."""
        async with asyncio.timeout(60):
            while len(self.lines) < wanted:
                self._came.clear()
                await self._came.wait()
        return self.lines


@contextmanager
def noticed() -> Iterator[Notices]:
    log = logging.getLogger("outlast.session")
    notices, level = Notices(), log.level
    log.addHandler(notices)
    log.setLevel(logging.INFO)
    try:
        yield notices
    finally:
        log.removeHandler(notices)
        log.setLevel(level)
