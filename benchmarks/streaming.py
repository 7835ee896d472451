"""What streamed answers cost: 50 sessions at 20 tokens a second, each with its reader.

A token says when it was made, so the reader knows how long it was on its way: through the
batch, the commit and the wake-up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from statistics import quantiles

from benchmarks.model import Model, Saying, whole
from benchmarks.place import Database
from benchmarks.stopwatch import watch
from benchmarks.workload import Bench, Measure, Workload
from outlast import Agent, Outlast, Session
from outlast.agents.model.client import ModelPiece, ModelRequest, TextPiece
from outlast.engine.owned_lane import OwnedLane

PACE = 0.05


class StampedModel(Model):
    """Says when it said it, token by token."""

    def __init__(self, tokens: int) -> None:
        super().__init__(lambda _: Saying(""))
        self._tokens = tokens

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        said: list[str] = []
        for _ in range(self._tokens):
            await asyncio.sleep(PACE)
            said.append(f"{time.perf_counter_ns()} ")
            yield TextPiece(0, said[-1])
        yield whole(Saying("".join(said)))


async def read(session: Session[str]) -> list[float]:
    """Return each token's way to this reader, in seconds."""
    ways: list[float] = []
    async for event in session.events():
        if event.type == "message.delta":
            now = time.perf_counter_ns()
            ways += [(now - int(token)) / 1e9 for token in event.data["text"].split()]
    return ways


async def stream(
    database: Database, sessions: int, tokens: int
) -> tuple[list[float], float, float]:
    """Return all ways, how long it took, and the CPU seconds."""
    agent: Agent[None, str] = Agent("talker", StampedModel(tokens))
    async with Outlast([agent], store=database.url) as app:
        began, busy = time.perf_counter(), time.process_time()
        started = await asyncio.gather(*(app.start(agent, "Go.") for _ in range(sessions)))
        ways = await asyncio.gather(*(read(session) for session in started))
        took, busy = time.perf_counter() - began, time.process_time() - busy
    assert all(len(way) == tokens for way in ways)
    return [way for each in ways for way in each], took, busy


def once(bench: Bench) -> Mapping[str, float]:
    sessions, tokens = bench.size(50, 5), bench.size(200, 20)
    watching = {"commit": ((OwnedLane, "_land"),), "transaction": (bench.place.transaction,)}
    with watch(watching) as watched:
        ways, took, busy = asyncio.run(stream(bench.database("outlast"), sessions, tokens))
    shares = quantiles(ways, n=20)
    return {
        "CPU": busy / took,
        "CPU per token": busy / len(ways) * 1e6,
        "commits": watched.calls["commit"] / took,
        "transactions": watched.calls["transaction"] / took,
        "token to reader, p50": shares[9] * 1e3,
        "token to reader, p95": shares[18] * 1e3,
    }


WORKLOAD = Workload(
    "streaming",
    "50 sessions streaming 20 tokens a second each for 10 s, each followed by a reader in the"
    " same process; tokens are committed in batches, at most ten a second for each session",
    (
        Measure("CPU", "of one core"),
        Measure("CPU per token", "µs"),
        Measure("commits", "per second"),
        Measure("transactions", "per second"),
        Measure("token to reader, p50", "ms"),
        Measure("token to reader, p95", "ms"),
    ),
    once,
)
