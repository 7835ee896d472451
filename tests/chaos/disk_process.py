"""`python -m chaos.disk_process DATABASE LEDGER`: talks and works on a disk that may fail.

The ledger is on a disk that works. A line in it stands for what somebody was told: that a message
was accepted, that an event was committed, or that a message was refused.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from outlast import Agent, Outlast, Session, WorkerSettings, tool
from outlast.errors import OutlastError
from outlast.testing.scripted import ScriptedModel, call, say

QUICK = WorkerSettings(poll=0.05, watch=0.1, grace=0.1, stop_grace=0.1, flush=0.0)
TALKS = 8


@tool
async def look(number: int) -> str:
    """Look something up."""
    return f"found {number} " * 200


def agent() -> Agent[Any, Any]:
    steps = [step for number in range(1000) for step in (call("look", number=number), say("done"))]
    return Agent("desk", ScriptedModel(steps), tools=[look])


class Told:
    """What somebody was told, in a file that survives this process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def note(self, *words: object) -> None:
        self._file.write(" ".join(map(str, words)) + "\n")


async def talk(app: Outlast, told: Told) -> None:
    """Start sessions and follow them; say what was accepted, seen and refused."""
    number = 0
    while True:
        number += 1
        try:
            session: Session[Any] = await app.start("desk", f"message {number}")
            assert session.receipt is not None
            told.note("accepted", session.id, session.receipt.delivery_id)
            async for event in session.events():
                told.note("seen", session.id, event.offset, event.type)
            told.note("ended", session.id)
        except OutlastError as error:
            told.note("refused", error.code, error.message)
            await asyncio.sleep(0.05)


async def send(app: Outlast, told: Told) -> None:
    """Start sessions that nobody follows: whoever follows one is told nothing on a bad disk."""
    while True:
        try:
            session: Session[Any] = await app.start("desk", "message")
            assert session.receipt is not None
            told.note("accepted", session.id, session.receipt.delivery_id)
        except OutlastError as error:
            told.note("refused", error.code, error.message)
        await asyncio.sleep(0.05)


async def main(database: str, ledger: Path) -> None:
    told = Told(ledger)
    async with Outlast([agent()], store=f"sqlite:///{database}", worker=QUICK) as app:
        await asyncio.gather(send(app, told), *(talk(app, told) for _ in range(TALKS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
