"""The server and the worker of a load run, each a process of its own.

`python -m benchmarks.load.party serve|work STORE PORT TOKENS PACE` says `ready`, then what it
used so far for each line that it is given. The worker says when its commits began and ended, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.model import Model, Saying, whole
from outlast import Agent, Outlast, WorkerSettings
from outlast.agents.model.client import ModelPiece, ModelRequest, TextPiece
from outlast.cli.terminal.loading import keep_what_is_loaded
from outlast.clock import Clock
from outlast.server import ServerSettings
from outlast.server.serve import listen, open_socket
from outlast.store import Commit, Committed, Refused
from outlast.stores.url import open_store
from outlast.testing.wrapped_store import WrappedStore

NAME = "talker"
FILES = 8192
PAGE = os.sysconf("SC_PAGE_SIZE")


class SlowTalker(Model):
    """Says one word at once to the first message, then so many words at a pace."""

    def __init__(self, tokens: int, pace: float) -> None:
        super().__init__(lambda _: Saying("Yes?"))
        self._tokens = tokens
        self._pace = pace

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        if len(request.view.messages) == 1:
            yield whole(Saying("Yes?"))
            return
        said: list[str] = []
        for number in range(self._tokens):
            said.append(f"word {number} ")
            yield TextPiece(0, said[-1])
            await asyncio.sleep(self._pace)
        yield whole(Saying("".join(said)))


class TimedStore(WrappedStore):
    """Notes of each commit its session, first offset and count, and when it began and ended."""

    def __init__(self, url: str) -> None:
        super().__init__(open_store(url, Clock()))
        self.commits: list[tuple[str, int, int, int, int]] = []

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        began = time.time_ns()
        found = await super().commit(commits)
        ended = time.time_ns()
        for commit, done in zip(commits, found, strict=True):
            if isinstance(done, Committed):
                count = len(commit.records)
                times = (began, ended)
                self.commits.append((commit.session_id, done.first_offset, count, *times))
        return found


def raise_limit() -> None:
    """Allow this process as many connections as the run needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def used() -> dict[str, float]:
    """Return the process's CPU seconds and its resident memory in MiB."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        memory = int(statm.read_text().split()[1]) * PAGE
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # the most so far, on macOS
    return {"cpu": time.process_time(), "memory": memory / 2**20}


async def report(more: dict[str, Any]) -> None:
    """Say what was used whenever asked, until there is nobody to ask."""
    keep_what_is_loaded()  # as the commands do
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(used() | (more if line == "all\n" else {})), flush=True)


async def serve(url: str, port: int) -> None:
    """Serve as `outlast serve` does, with all its limits."""
    settings, ready, stop = ServerSettings(port=port), asyncio.Event(), asyncio.Event()
    async with Outlast([talker(0, 0)], store=url, worker=None) as app:
        with open_socket(settings) as to:
            serving = asyncio.create_task(listen(app, settings, to, stop, ready.set))
            await ready.wait()
            await report({})
            stop.set()
            await serving


async def work(url: str, tokens: int, pace: float) -> None:
    store = TimedStore(url)
    settings = WorkerSettings(concurrency=500)
    async with Outlast([talker(tokens, pace)], store=store, worker=settings):
        await report({"commits": store.commits})


def talker(tokens: int, pace: float) -> Agent[None, str]:
    return Agent(NAME, SlowTalker(tokens, pace))


def main() -> None:
    role, url, port, tokens, pace = sys.argv[1:]
    raise_limit()
    if role == "serve":
        asyncio.run(serve(url, int(port)))
    else:
        asyncio.run(work(url, int(tokens), float(pace)))


if __name__ == "__main__":
    main()
