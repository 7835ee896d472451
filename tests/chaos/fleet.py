"""Worker processes: started, killed, stopped, and, whatever happens, cleared away."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from postgres_proxy import Wire

from chaos import SEARCH_PATH
from chaos.worker import READY

GRACE = 60.0


class Routed(Protocol):
    """A place to which workers have a way."""

    async def route(self) -> tuple[str, Wire | None]: ...


class Member:
    """One worker process."""

    def __init__(self, process: Process, wire: Wire | None = None) -> None:
        self.pid = process.pid
        self.wire = wire
        self.is_cut_off = False
        self.is_ready = False
        self.is_stopped = False
        self._process = process

    @property
    def is_gone(self) -> bool:
        return self._process.returncode is not None

    async def until_ready(self) -> None:
        assert self._process.stdout is not None
        self.is_ready = (await self._process.stdout.readline()).decode().strip() == READY

    async def kill(self) -> float:
        """End it by SIGKILL; return the instant."""
        at = time.monotonic()
        if not self.is_gone:
            self._process.kill()
        self.is_ready = False
        await self._process.wait()
        return at

    def stop(self) -> float:
        """Have it stand still, its signs of life in place; return the instant."""
        self.is_stopped = True
        at = time.monotonic()
        os.kill(self.pid, signal.SIGSTOP)
        return at

    def go_on(self) -> float:
        if not self.is_gone:
            os.kill(self.pid, signal.SIGCONT)
        self.is_stopped = False
        return time.monotonic()

    async def dismiss(self) -> int:
        """Let it go home in good order; return its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(GRACE):
            return await self._process.wait()


class Fleet:
    """All workers of a run. Leaving it leaves no process behind."""

    def __init__(
        self,
        place: Routed,
        ledger: Path,
        lease: float = 0.0,
        *,
        program: str = "chaos.worker",
    ) -> None:
        self.members: list[Member] = []
        self.trouble: list[str] = []
        self._place = place
        self.ledger = ledger
        self._lease = lease
        self._program = program
        self._gone: set[int] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await asyncio.gather(*(member.kill() for member in self.members))

    @property
    def running(self) -> list[Member]:
        """Those that are at work: neither dead, nor standing still, nor cut off."""
        return [
            m
            for m in self.members
            if m.is_ready and not (m.is_stopped or m.is_cut_off or m.is_gone)
        ]

    async def start(self, *more: str) -> Member:
        """Start one more worker, and wait until it works; its program is told `more`."""
        url, wire = await self._place.route()
        with self.ledger.with_name("workers.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self._program),
                *(url, str(self.ledger), str(self._lease), *more),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": SEARCH_PATH},
                start_new_session=True,  # Ctrl-C is for the director, who then ends them all
            )
        member = Member(process, wire)
        self.members.append(member)
        await member.until_ready()
        return member

    async def kill(self, member: Member) -> float:
        self._gone.add(member.pid)
        return await member.kill()

    async def send_home(self, member: Member) -> None:
        """Let one go home; note if it could not leave in good order."""
        self._gone.add(member.pid)
        [code] = await asyncio.gather(member.dismiss(), return_exceptions=True)
        if code != 0:
            self.trouble.append(f"worker {member.pid} did not leave in good order: {code!r}")

    async def dismiss(self) -> None:
        """Let all go home; note who had left already, or could not leave in good order."""
        for member in self.members:
            if member.is_gone and member.pid not in self._gone:
                self.trouble.append(f"worker {member.pid} ended by itself")
        leaving = [m for m in self.members if not m.is_gone]
        await asyncio.gather(*(self.send_home(member) for member in leaving))
