"""One load run: parties begin, readers connect, all sessions speak, and what it took is told."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from msgspec import Struct

from benchmarks.load.party import talker
from benchmarks.load.reader import Reader, connect
from outlast import Outlast, Session

ROOT = Path(__file__).parents[2]
LARGE = 4 * 1024 * 1024
"""Bytes of the message that slow readers ask for."""
LONGEST = 180.0
"""Seconds after which a run is given up."""
QUIET, IDLE_CPU = 0.5, 0.15
"""A server that uses fewer cores than these for so many seconds has nothing left to do."""


class Load(Struct, frozen=True, kw_only=True):
    """How much: readers, sessions that speak, words of each, and seconds between words.

    The readers are spread over the sessions, or all at the first one. `idle` strangers hold
    connections that say nothing meanwhile, and `slow` ones ask for streams that they do not read.
    """

    readers: int = 1000
    sessions: int = 200
    tokens: int = 40
    pace: float = 0.5
    at_one: bool = False
    idle: int = 0
    slow: int = 0


class Party:
    """A process of the run, and what it says of itself."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def hear(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    async def used(self, what: str = "") -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n".encode())
        found: dict[str, Any] = json.loads(await self.hear())
        return found


def party(role: str, url: str, port: int, load: Load) -> AbstractAsyncContextManager[Party]:
    return started("party", role, url, port, load.tokens, load.pace)


@asynccontextmanager
async def strangers(app: Outlast, port: int, load: Load) -> AsyncIterator[None]:
    """Have strangers at the server meanwhile, if there are to be any."""
    if not load.idle + load.slow:
        yield
        return
    large = await app.start("talker", "x" * LARGE)
    async with started("strangers", port, load.idle, load.slow, large.id):
        yield


@asynccontextmanager
async def started(module: str, *given: object) -> AsyncIterator[Party]:
    """Start a process and wait until it is ready; it is gone afterwards."""
    command = (sys.executable, "-m", f"benchmarks.load.{module}", *map(str, given))
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, cwd=ROOT, limit=2**28
    )
    try:
        found = Party(process)
        assert await found.hear() == "ready"
        yield found
    finally:
        process.kill()
        await process.wait()


class Measured(Struct, frozen=True):
    """What one run found: how long events took to readers, commits to end, and what was used."""

    ways: list[float]
    commits: list[float]
    seconds: float
    used: dict[str, float]


async def run(load: Load, directory: Path) -> Measured:
    """Have all sessions speak once, and return how late the readers were."""
    url, port = f"sqlite:///{directory / 'load.db'}", free_port()
    async with (
        asyncio.timeout(LONGEST),
        Outlast([talker(0, 0)], store=url, worker=None) as app,
        party("serve", url, port, load) as server,
        party("work", url, port, load) as worker,
        AsyncExitStack() as stack,
    ):
        sessions = await asyncio.gather(
            *(app.start("talker", "Hello.") for _ in range(load.sessions))
        )
        await asyncio.gather(*(session.wait() for session in sessions))
        await stack.enter_async_context(strangers(app, port, load))
        alone = await settled(server)
        readers = await connect(port, await places(load, sessions))
        idle = await settled(server)
        before = await asyncio.gather(server.used(), worker.used())
        began = time.time_ns()
        await speak(sessions, load.pace)
        await asyncio.gather(*(reader.ended.wait() for reader in readers))
        await asyncio.gather(*(session.wait() for session in sessions))
        took = (time.time_ns() - began) / 1e9
        after = await asyncio.gather(server.used(), worker.used("all"))
    commits = [commit for commit in after[1]["commits"] if commit[-2] >= began]
    writes = [(commit[-1] - commit[-2]) / 1e9 for commit in commits]
    used = {
        "CPU of the server (cores)": (after[0]["cpu"] - before[0]["cpu"]) / took,
        "CPU of the worker (cores)": (after[1]["cpu"] - before[1]["cpu"]) / took,
        "memory of the server, no readers (MiB)": alone["memory"],
        "memory of the server, idle readers (MiB)": idle["memory"],
        "memory of the server, at the end (MiB)": after[0]["memory"],
        "memory of the worker (MiB)": after[1]["memory"],
    }
    return Measured(latencies(readers, commits), writes, took, used)


async def settled(server: Party) -> dict[str, Any]:
    """Wait until the server has done what callers that came have asked for; say what it used."""
    before = await server.used()
    while True:
        await asyncio.sleep(QUIET)
        now = await server.used()
        if now["cpu"] - before["cpu"] < IDLE_CPU * QUIET:
            return now
        before = now


def summary(runs: Sequence[Measured]) -> dict[str, float]:
    """Return what several runs of one load found, by name: all their events, and medians."""
    ways = quantiles((way for run in runs for way in run.ways), n=100)
    commits = quantiles((took for run in runs for took in run.commits), n=100)
    seconds = sum(run.seconds for run in runs)
    return {
        "seconds": seconds,
        "events": sum(len(run.ways) for run in runs),
        "commits per second": sum(len(run.commits) for run in runs) / seconds,
        "events to readers per second": sum(len(run.ways) for run in runs) / seconds,
        "commit to reader, p50 (ms)": ways[49] * 1e3,
        "commit to reader, p99 (ms)": ways[98] * 1e3,
        "the commit of that, p50 (ms)": commits[49] * 1e3,
        "the commit of that, p99 (ms)": commits[98] * 1e3,
        **{name: median(run.used[name] for run in runs) for name in runs[0].used},
    }


async def places(load: Load, sessions: Sequence[Session[Any]]) -> list[tuple[str, int]]:
    """Say which session each reader reads, and from where."""
    ends = [(session.id, (await session.info()).end) for session in sessions]
    return [ends[0 if load.at_one else n % len(ends)] for n in range(load.readers)]


async def speak(sessions: Sequence[Session[Any]], pace: float) -> None:
    """Have all sessions begin within the time between two words, so that they do not march."""
    for session in sessions:
        await session.send("Go on.")
        await asyncio.sleep(pace / len(sessions))


def latencies(
    readers: Sequence[Reader], commits: Sequence[tuple[str, int, int, int, int]]
) -> list[float]:
    """Return how long each event took to each reader, from the commit's begin, in seconds."""
    begun = {
        (session_id, offset): began
        for session_id, first, count, began, _ in commits
        for offset in range(first, first + count)
    }
    return [
        (came - begun[reader.session_id, offset]) / 1e9
        for reader in readers
        for offset, came in reader.came
        if (reader.session_id, offset) in begun
    ]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
