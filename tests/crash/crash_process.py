"""Processes under a test's command: started by a fork, stopped by a signal, listened to."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Self

DEADLINE = 120.0


class Process:
    """One child of the zygote."""

    def __init__(self, pid: int, order: Callable[..., None]) -> None:
        self.pid = pid
        self.said: list[str] = []
        self.exit: int | None = None
        self._order = order
        self._news = asyncio.Condition()

    async def tell(self, news: dict[str, Any]) -> None:
        async with self._news:
            if "said" in news:
                self.said.append(news["said"])
            else:
                self.exit = news["exit"]
            self._news.notify_all()

    async def until_said(self, what: str) -> None:
        """Wait for a line of the process's own, or of its log."""
        async with asyncio.timeout(DEADLINE), self._news:
            await self._news.wait_for(lambda: what in self.said or self.exit is not None)
        assert what in self.said, f"it exited with {self.exit} and had only said {self.said}"

    async def until_exit(self) -> int:
        async with asyncio.timeout(DEADLINE), self._news:
            await self._news.wait_for(lambda: self.exit is not None)
        assert self.exit is not None
        return self.exit

    def signal(self, number: signal.Signals) -> None:
        """Have the zygote send a signal; nothing happens if the process is gone."""
        self._order(pid=self.pid, signal=int(number))

    async def stop(self) -> None:
        """Ask the process to stop in good order; it has to."""
        self.signal(signal.SIGTERM)
        assert await self.until_exit() == 0, self.said


class Zygote:
    """The process that forks the others."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._children: dict[int, Process] = {}
        self._ordered: dict[int, asyncio.Future[Process]] = {}
        self._numbers = count()
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, jobs: str = "crash_job") -> Self:
        """Start it; `jobs` is the module of what its children can do."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            Path(__file__).with_name("crash_zygote.py"),
            jobs,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def run(self, job: str, **order: Any) -> Process:
        """Start a process that does a job."""
        number = next(self._numbers)
        future: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        self._ordered[number] = future
        self._order(number=number, job=job, **order)
        async with asyncio.timeout(DEADLINE):
            return await future

    def _order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            news = json.loads(line)
            child = self._child(news["pid"])
            if "number" in news:
                self._ordered.pop(news["number"]).set_result(child)
            else:
                await child.tell(news)

    def _child(self, pid: int) -> Process:
        """Return the process of that pid; a child may speak before its birth is told."""
        known = self._children.get(pid)
        if known is None or known.exit is not None:
            known = self._children[pid] = Process(pid, self._order)
        return known

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._listener
