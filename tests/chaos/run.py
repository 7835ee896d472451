"""One run of chaos: users talk, faults happen, all comes to rest, and evidence is gathered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from chaos.agent import porter
from chaos.clock import users_clock
from chaos.evidence import Evidence, Log
from chaos.fault import Fault, Weather
from chaos.fleet import Fleet
from chaos.flow import Runner, errands
from chaos.ledger import Ledger
from chaos.place import Place, opened
from chaos.reader import Reader, Reading
from chaos.user import Diary, User
from outlast import Outlast, Session
from outlast.log.verify import verify
from outlast.store import Store

SHARE_OF_READERS = 6
"""One in so many sessions is read by somebody who comes and goes."""
SHARE_OF_RUNS = 4
"""One in so many users has a run of a workflow, too."""


class Settings(Struct, frozen=True, kw_only=True):
    """How a run goes. Durations are seconds."""

    store: str
    sessions: int = 200
    seconds: float = 60.0
    seed: int = 0
    workers: int = 4
    lease: float = 6.0
    timeout: float = 60.0
    longest_outage: float = 60.0


class Progress(Struct):
    """How far a run is, for whoever looks on."""

    phase: str = "starting"
    started: int = 0
    at_rest: int = 0
    faults: int = 0


Look = Callable[[Progress], None]


async def run_chaos(settings: Settings, directory: Path, look: Look = lambda _: None) -> Evidence:
    """Let chaos happen in a directory that is its own, and return what is left of it."""
    async with opened(settings.store, directory) as place:
        return await Run(settings, directory, place, look).run()


class Run:
    """The director: owns the ledger, the fleet and the users' app."""

    def __init__(self, settings: Settings, directory: Path, place: Place, look: Look) -> None:
        self._settings = settings
        self._place = place
        self._ledger = Ledger(directory / "ledger.jsonl")
        self._diary = Diary()
        self._chance = Random(settings.seed)
        self._over = asyncio.Event()
        self._readers: list[asyncio.Task[Reading]] = []
        self._progress = Progress()
        self._look = look

    async def run(self) -> Evidence:
        url = self._place.url
        app = Outlast(
            [porter(self._ledger, url), *errands(self._ledger, url)],
            store=url,
            worker=None,
            clock=users_clock(url, self._ledger.path),
        )
        fleet = Fleet(self._place, self._ledger.path, self._settings.lease)
        async with app, fleet:
            await asyncio.to_thread(self._place.create_effects)
            await asyncio.gather(*(fleet.start() for _ in range(self._settings.workers)))
            weather = Weather(
                fleet,
                self._place,
                self._draw(),
                self._settings.lease,
                self._settings.longest_outage,
                self._has_failed,
            )
            await self._shake(app, weather)
            readings = await self._finish_reading()
            self._tell("looking")
            evidence = await self._gather(app.store, weather, readings)
            await fleet.dismiss()
            evidence.complaints += tuple(fleet.trouble)
            evidence.marks = tuple(self._ledger.read())
            return evidence

    async def _shake(self, app: Outlast, weather: Weather) -> None:
        """Have all users talk while things go wrong; then all has to come to rest."""
        self._tell("shaking")
        users = [asyncio.create_task(self._live(app, n)) for n in range(self._settings.sessions)]
        await weather.blow(self._settings.seconds)
        self._tell("calming")
        await weather.calm()
        _, late = await asyncio.wait(users, timeout=self._settings.timeout)
        for task in late:
            task.cancel()
        results = await asyncio.gather(*users, return_exceptions=True)
        self._diary.complaints += [f"a user met {e!r}" for e in results if isinstance(e, Exception)]
        self._diary.complaints += [f"{len(late)} sessions did not come to rest"] if late else []
        self._over.set()

    async def _live(self, app: Outlast, number: int) -> None:
        """One user's life, begun at some time before the faults stop."""
        user = User(f"u{number}", app, self._diary, chance := self._draw())
        await asyncio.sleep(self._settings.seconds * 0.9 * number / self._settings.sessions)
        session = await user.start()
        self._tell(started=self._progress.started + 1)
        if number % SHARE_OF_READERS == 0:
            self._readers.append(asyncio.create_task(Reader(session, chance).read(self._over)))
        if number % SHARE_OF_RUNS == 0:
            chance = Random(f"{self._settings.seed}/run {number}")
            runner = Runner(f"u{number}", app, self._diary, chance)
            await asyncio.gather(user.talk(session), runner.live(number // SHARE_OF_RUNS))
        else:
            await user.talk(session)
        self._tell(at_rest=self._progress.at_rest + 1)

    async def _finish_reading(self) -> list[Reading]:
        if not self._readers:
            return []
        done, late = await asyncio.wait(self._readers, timeout=self._settings.timeout)
        for task in late:
            task.cancel()
        self._diary.complaints += [f"{len(late)} readers did not come to an end"] if late else []
        return [task.result() for task in done]

    async def _gather(self, store: Store, weather: Weather, readings: list[Reading]) -> Evidence:
        sessions = {receipt.session for receipt in self._diary.accepted}
        logs = {session: await read_log(store, session) for session in sorted(sessions)}
        runs = {run: await read_log(store, run) for run in await self._runs(store)}
        found = [f for session in (*logs, *runs) for f in await verify(store, session)]
        return Evidence(
            store=self._place.name,
            lease=self._settings.lease,
            logs=logs,
            runs=runs,
            events={reading.session: await self._events(store, reading) for reading in readings},
            accepted=tuple(self._diary.accepted),
            readings=tuple(readings),
            faults=tuple(weather.faults),
            effects=await asyncio.to_thread(self._place.effects),
            findings=tuple(str(finding) for finding in found),
            complaints=tuple(self._diary.complaints),
        )

    async def _runs(self, store: Store) -> list[str]:
        """Return the runs of users, and those that these have started."""
        children = [await store.listing.sessions(parent=run) for run in self._diary.runs]
        return [*self._diary.runs, *(info.session_id for each in children for info in each)]

    async def _events(self, store: Store, reading: Reading) -> tuple[Any, ...]:
        """Read a session's events again, from its beginning and at once."""
        app = Outlast([porter(self._ledger)], store=store, worker=None)
        session: Session[Any] = await app.session(reading.session)
        return tuple([event async for event in session.events(follow=False)])

    def _has_failed(self, _: Fault) -> None:
        self._tell(faults=self._progress.faults + 1)

    def _draw(self) -> Random:
        """Return chance for one of many: who comes when must not change what they do."""
        return Random(self._chance.random())

    def _tell(self, phase: str = "", **numbers: int) -> None:
        self._progress.phase = phase or self._progress.phase
        for name, number in numbers.items():
            setattr(self._progress, name, number)
        self._look(self._progress)


async def read_log(store: Store, session: str) -> Log:
    entries: list[Any] = []
    cursor = 0
    while True:
        page = await store.log.read(session, cursor)
        entries += page.entries
        if page.cursor >= page.end:
            return tuple(entries)
        cursor = page.cursor
