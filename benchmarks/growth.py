"""What a long conversation costs: is the last turn as quick as the first, and who pays for disk?

Streamed answers reach the log piece by piece here, twenty commits to a turn: far more than at
the default of ten a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from statistics import median

from benchmarks.model import Model, Saying, texts
from benchmarks.place import Database
from benchmarks.workload import Bench, Measure, Workload
from outlast import Agent, Outlast, WorkerSettings

SIZE = 2048
PIECES = 20
TEXTS = texts(SIZE)
PIECE = -(-SIZE // PIECES)


def whole(messages: int) -> Saying:
    return Saying(TEXTS[messages % len(TEXTS)])


def in_pieces(messages: int) -> Saying:
    text = TEXTS[messages % len(TEXTS)]
    return Saying(text, pieces=tuple(text[n : n + PIECE] for n in range(0, SIZE, PIECE)))


async def converse(database: Database, model: Model, turns: int) -> list[float]:
    """Return how long each turn took, from sending to the result."""
    agent: Agent[None, str] = Agent("talker", model)
    took: list[float] = []
    settings = WorkerSettings(flush=0.0)
    async with Outlast([agent], store=database.url, worker=settings) as app:
        session = await app.start(agent, "Hello.")
        await session.wait()
        for turn in range(turns):
            began = time.perf_counter()
            receipt = await session.send(TEXTS[(turn * 7) % len(TEXTS)])
            result = await receipt.result()
            took.append(time.perf_counter() - began)
            assert result.status == "completed", result
    return took


def measure(database: Database, model: Model, turns: int) -> tuple[float, float, float]:
    """Return the growth of a turn's time, the bytes for each byte of text, and a turn's ms."""
    took = asyncio.run(converse(database, model, turns))
    end = min(100, turns // 3)
    text = turns * 2 * SIZE
    return median(took[-end:]) / median(took[:end]), database.size / text, median(took[-end:]) * 1e3


def once(bench: Bench) -> Mapping[str, float]:
    turns = bench.size(1000, 60)
    plain = measure(bench.database("plain"), Model(whole), turns)
    paced = Model(in_pieces, pace=0.001)
    streamed = measure(bench.database("streamed"), paced, turns)
    return {
        "last turns ÷ first": plain[0],
        "bytes ÷ text": plain[1],
        "turn at the end": plain[2],
        "streamed: last turns ÷ first": streamed[0],
        "streamed: bytes ÷ text": streamed[1],
        "streamed: turn at the end": streamed[2],
    }


WORKLOAD = Workload(
    "growth",
    "one conversation of 1,000 turns, 2 KB in and 2 KB out of random text; streamed: in 20 pieces"
    " of 1 ms, each committed as it comes",
    (
        Measure("last turns ÷ first", "time per turn", at_most=1.3),
        Measure("bytes ÷ text", "", at_most=1.5),
        Measure("turn at the end", "ms"),
        Measure("streamed: last turns ÷ first", "time per turn", at_most=1.3),
        Measure("streamed: bytes ÷ text", "", at_most=2.5),
        Measure("streamed: turn at the end", "ms"),
    ),
    once,
)
