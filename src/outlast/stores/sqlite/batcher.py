"""What is to be written for one event loop, gathered round by round of it.

What comes in a round is written at its end, as one group: of many sessions none pays for a disk
alone. But the session that wrote last, and wrote alone, is expected to be alone again: what it
asks for first in a round is written at once, before it goes on. So a lone session never waits
for its loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from outlast.stores.sqlite.future import Loop
from outlast.stores.sqlite.writer import LARGEST_GROUP, Do, WriteJob, Writer

LARGE = 256 * 1024
"""From how many bytes on it is the thread that writes."""


class LoopBatcher:
    """The rounds of one event loop."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._waiting: list[WriteJob] = []
        self._came = 0
        self._alone = ""

    async def write(
        self, do: Do, items: Sequence[Any], size: int = 0, session: str = ""
    ) -> list[Any]:
        """Have items done that write about so many bytes, with others of their kind.

        `session` is named where they are all one session's.
        """
        loop = asyncio.get_running_loop()
        job = WriteJob(None, do=do, items=items, is_large=size > LARGE)
        is_alone = session and session == self._alone and not self._came
        if not (is_alone and self._write_here([job], loop)):
            if not self._came:
                loop.call_soon(self._end_round, loop)
            self._came += 1
            self._alone = session if self._came == 1 else ""
            job.future = loop.create_future()
            self._waiting.append(job)
            await job.future
        if job.error:
            raise job.error
        results: list[Any] = job.result
        return results

    def finish(self) -> None:
        """Leave what waits for the end of the round to the writer's thread."""
        group, self._waiting = self._waiting, []
        self._leave(group)

    def _end_round(self, loop: Loop) -> None:
        group, self._waiting = self._waiting[:LARGEST_GROUP], self._waiting[LARGEST_GROUP:]
        self._came = len(self._waiting)
        if self._waiting:
            loop.call_soon(self._end_round, loop)
        try:
            if self._write_here(group, loop):
                group = []
        finally:  # whatever signal cuts it short
            self._leave(group)

    def _leave(self, jobs: Sequence[WriteJob]) -> None:
        for job in jobs:
            self._writer.put(job)

    def _write_here(self, jobs: Sequence[WriteJob], loop: Loop) -> bool:
        if not jobs or any(job.is_large for job in jobs):
            return False
        return self._writer.write_here(jobs, loop)
