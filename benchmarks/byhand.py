"""The same work without Outlast: the floor that its costs are held against.

As somebody would write it who needs no recovery, no ownership and no readers: one table,
one row and one durable commit for each thing that happened.
"""

from __future__ import annotations

import asyncio

from benchmarks.place import Floor, Row


def make_steps(floor: Floor, texts: list[str]) -> None:
    """Commit what the model said and what the tool returned, step by step."""
    for text in texts:
        floor.add((1, text.encode()))
        floor.add((1, text.encode()))


class GroupCommit:
    """Commits of many tasks, made by one thread: a group is what came during the last one."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self._waiting: list[tuple[Row, asyncio.Future[None]]] = []
        self._busy = False

    async def add(self, row: Row) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, done))
        if not self._busy:
            self._busy = True
            self._task = asyncio.create_task(self._write_groups())
        await done

    async def _write_groups(self) -> None:
        while group := self._waiting:
            self._waiting = []
            await asyncio.to_thread(self._floor.add_group, [row for row, _ in group])
            for _, done in group:
                done.set_result(None)
        self._busy = False
