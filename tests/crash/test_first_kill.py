"""A worker is killed around every commit of a tool that takes the first of two answers.

Whichever came first is recorded before the tool goes on. It comes first in every later run, even if
the other answer is offered as soon as the worker is dead. All runs share a database; each has a
lane of its own, and a worker for that.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from crash_agent import agents
from crash_book import Book
from crash_process import DEADLINE, Process, Zygote

from outlast import Outlast
from outlast.core import record as r
from outlast.errors import RequestClosed
from outlast.log.verify import verify
from outlast.store import RequestInfo
from outlast.testing.crash import CrashPoint, When

TAKEN, OTHER, SURE = "Take it?", "Or that?", "Sure?"
RACES_FROM = 3
"""The commit with which the tool begins to wait; those before it are the model's."""


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/first.db"


@dataclass(frozen=True)
class Race:
    """One run of the tool, and what came of it."""

    app: Outlast
    zygote: Zygote
    directory: Path
    database: str

    async def run(self, lane: str, kill: CrashPoint) -> tuple[list[str], list[r.AnyRecord], int]:
        """Return who won in each run of the tool, the log, and how many commits were made."""
        async with asyncio.timeout(DEADLINE):
            session = await self.app.start("racer", "Go!", lane=lane)
            first = await self._worker(lane, kill)
            replacing = asyncio.create_task(self._replace(first, session.id, lane))
            await self._answer(session.id, TAKEN)
            await self._answer(session.id, SURE)
            assert session.receipt is not None
            assert (await session.receipt.result()).output == "Done."
            first.signal(signal.SIGTERM)
            last = await replacing
            last.signal(signal.SIGTERM)
            assert await last.until_exit() == 0
        assert not await verify(self.app.store, session.id)
        page = await self.app.store.log.read(session.id, 0)
        assert await self._open(session.id) == []  # whoever lost is withdrawn
        won = Book(self.directory / lane).effects()
        return won, [entry.record for entry in page.entries], commits_of(last)

    async def _worker(self, lane: str, kill: CrashPoint) -> Process:
        return await self.zygote.run(
            "work",
            database=self.database,
            book=str(self.directory / lane),
            clock=str(self.directory / "ahead"),
            lanes=[lane],
            at=kill.commit,
            when=kill.when,
        )

    async def _replace(self, first: Process, session: str, lane: str) -> Process:
        """Once the worker is dead, offer the other answer, and have another worker go on."""
        if await first.until_exit() == 0:
            return first
        for asked in await self._open(session):
            if prompt_of(asked) == OTHER:
                handle = await self.app.session(session)
                with suppress(RequestClosed):
                    await handle.answer(asked.request_id, "yes")
        return await self._worker(lane, CrashPoint(0, "before"))

    async def _open(self, session: str) -> list[RequestInfo]:
        return list(await self.app.store.listing.requests(session))

    async def _answer(self, session: str, prompt: str) -> None:
        """Answer a question once it is asked; it may be withdrawn by then."""
        handle = await self.app.session(session)
        async for event in handle.events():
            if event.type == "request.opened" and event.data["prompt"] == prompt:
                with suppress(RequestClosed):
                    await handle.answer(event.data["request_id"], "yes")
                return


def prompt_of(asked: RequestInfo) -> str:
    return msgspec.json.decode(asked.data, type=r.RequestOpened).prompt


def commits_of(process: Process) -> int:
    return sum(int(line.split()[0]) for line in process.said if line.endswith(" commits"))


def winners(records: Sequence[r.AnyRecord]) -> list[str]:
    return [e.name for e in records if isinstance(e, r.ToolStepRecorded) and "won" in e.name]


async def test_who_came_first_stays_first_whenever_the_worker_is_killed(
    zygote: Zygote, tmp_path: Path, database: str
) -> None:
    async with Outlast(agents(), store=database, worker=None) as app:
        race = Race(app, zygote, tmp_path, database)
        won, records, commits = await race.run("undisturbed", CrashPoint(0, "before"))
        assert won == ["won taken", "won taken"]
        assert len(winners(records)) == 1
        assert commits > 4

        numbers = range(RACES_FROM, commits + 1)
        kills = [CrashPoint(n, when) for n in numbers for when in get_args(When)]
        found = await asyncio.gather(
            *(race.run(f"{kill.when}-{kill.commit}", kill) for kill in kills)
        )

    for kill, (won, records, _) in zip(kills, found, strict=True):
        [winner] = winners(records)
        assert len(set(won)) == 1, (kill, won)
        assert won[0].removeprefix("won ") in winner, (kill, won, winner)
    assert {won[0] for won, *_ in found} == {"won taken", "won other"}
