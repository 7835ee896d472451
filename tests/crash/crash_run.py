"""A session and all below it, from start to end, in worker processes killed on the way."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from crash_agent import agents
from crash_book import Book, Start
from crash_clock import SharedClock
from crash_process import DEADLINE, Process, Zygote
from crash_signer import signing_in
from spending import spending_of

from outlast import Budget, Outlast, Receipt, Session
from outlast.core.record import AnyRecord, Entry
from outlast.integration.channel import Channel, InboundRequest, Outgoing
from outlast.log.verify import verify
from outlast.store import DeliveryInfo, Store
from outlast.stores.url import store_of
from outlast.testing.crash import CrashPoint

AT_ONCE = 10
AMPLE = Budget(tokens=10**7, model_calls=10**4, tool_calls=10**4, steps=10**4)

Talk = Callable[[Outlast, Session[Any]], Awaitable[list[Receipt[Any]]]]


class Wall(Channel):
    """A place where sessions can be anchored; only the users' app has it."""

    def verify(self, request: InboundRequest) -> None:
        """Nobody posts to it."""

    def read(self, request: InboundRequest) -> None:
        """Nobody posts to it."""

    async def send(self, outgoing: Outgoing, thread: str) -> None:
        """Nobody reads it."""


@dataclass
class Scene:
    """A place with a database, a book and a clock, and the processes that work there."""

    directory: Path
    zygote: Zygote
    provider: Mapping[str, Any] | None = None
    """Where people can sign in, if anywhere."""
    url: str = ""
    """Of a PostgreSQL store; without one the store is a file in the directory."""
    pin: Literal["turn", "session"] = "turn"
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.database = self.directory / "outlast.db"
        self.book = Book(self.directory / "book.jsonl")
        self.clock = SharedClock(self.directory / "ahead")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Outlast]:
        """Open the app as one who starts and reads, and does no work."""
        at = self.url or f"sqlite:///{self.database}"
        async with Outlast(
            agents(),
            store=store_of(at, self.clock),
            clock=self.clock,
            worker=None,
            channels=[Wall("wall", "errand")],
            **signing_in(self.provider),
        ) as app:
            yield app

    async def run(self, job: str, **order: Any) -> Process:
        places = {
            "database": self.url or str(self.database),
            "book": self.book.path,
            "clock": str(self.directory / "ahead"),
            "provider": self.provider,
        }
        process = await self.zygote.run(job, **places, **order)
        self.processes.append(process)
        return process

    async def worker(self, **order: Any) -> Process:
        return await self.run("work", **order)


@dataclass(frozen=True)
class Log:
    """What is known of one session that has come to its end; in a story each has its agent."""

    session_id: str
    agent: str
    entries: tuple[Entry, ...]
    deliveries: tuple[DeliveryInfo, ...]
    starts: tuple[Start, ...]
    findings: tuple[str, ...]

    @property
    def records(self) -> list[AnyRecord]:
        return [entry.record for entry in self.entries]


@dataclass(frozen=True)
class Story:
    """What is known of a session and of all below it, in the order of their agents' names."""

    logs: tuple[Log, ...]
    outputs: tuple[Any, ...]
    effects: tuple[str, ...]
    seats: tuple[str, ...]
    kills: int
    commits: int


async def play(scene: Scene, agent: str, talk: Talk, kills: Sequence[CrashPoint] = ()) -> Story:
    """Have a conversation with an agent whose workers are killed at these points, one each."""
    try:
        async with asyncio.timeout(DEADLINE):
            return await converse(scene, agent, talk, kills)
    except TimeoutError:
        raise AssertionError(f"it did not end in time: {await plight(scene)}") from None


async def play_all(
    scene: Scene, agent: str, talk: Talk, plans: Sequence[Sequence[CrashPoint]]
) -> list[Story]:
    """Have the same conversation once for each plan of kills, each in a place of its own."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, plan: Sequence[CrashPoint]) -> Story:
        place = Scene(scene.directory / str(number), scene.zygote, scene.provider, pin=scene.pin)
        async with slots:
            return await play(place, agent, talk, plan)

    return await asyncio.gather(*(one(number, plan) for number, plan in enumerate(plans)))


async def converse(scene: Scene, agent: str, talk: Talk, kills: Sequence[CrashPoint]) -> Story:
    async with scene.open() as app:
        await app.queues.set("crashes", concurrency=1)
        await set_budgets(app)
        session: Session[Any] = await app.start(
            agent,
            "Go!",
            dispatch_id="start",
            principal="ada",
            tags={"customer": "42"},
            queue="crashes",
            budget=AMPLE,
        )
        assert session.receipt is not None
        over = asyncio.Event()
        workers = asyncio.create_task(keep_working(app, scene, kills, over))
        receipts = [session.receipt, *await talk(app, session)]
        outputs = [(await receipt.result()).output for receipt in receipts]
        over.set()
        exits = await workers
        held = await app.store.limit.lines("queue:")
        assert not held, f"all turns are over, and places are held or waited for: {held}"
        left = [each for each in await app.deployments.list() if each.turns]
        assert not left, f"all turns are over, and some are left on deployments: {left}"
        wrong = list((await spending_of(app)).complaints())
        assert not wrong, f"all turns are over, and of budgets and usage is wrong: {wrong}"
        return Story(
            logs=tuple(await read_logs(app.store, scene.book)),
            outputs=tuple(outputs),
            effects=tuple(scene.book.effects()),
            seats=tuple(read_seats(scene.database)),
            kills=exits.count(-signal.SIGKILL),
            commits=commits_of(scene),
        )


async def set_budgets(app: Outlast) -> None:
    """Have all calls counted in a budget of each kind; none of them ends."""
    await app.budgets.set(AMPLE)
    await app.budgets.set(AMPLE, per="day")
    await app.budgets.set(AMPLE, principal="ada")


async def keep_working(
    app: Outlast, scene: Scene, kills: Sequence[CrashPoint], over: asyncio.Event
) -> list[int]:
    """Have one worker at a time, each killed at its point, until all is over.

    Each is of a deployment of its own, and its code has whatever the one before has left open.
    Where sessions stay with their deployment, they are moved to the next.
    """
    for number, kill in enumerate((*kills, CrashPoint(0, "before"))):
        findings = await app.check()
        assert not findings, findings
        process = await scene.worker(
            at=kill.commit, when=kill.when, deployment=f"v{number}", pin=scene.pin
        )
        if number and scene.pin == "session":
            await moved(app, f"v{number - 1}", f"v{number}")
        exited, ended = (asyncio.create_task(it) for it in (process.until_exit(), over.wait()))
        await asyncio.wait([exited, ended], return_when=asyncio.FIRST_COMPLETED)
        if over.is_set():
            process.signal(signal.SIGTERM)
            await exited
            break
        ended.cancel()
    # A kill that was due at the very end may have come before the request to stop.
    exits = [await process.until_exit() for process in scene.processes]
    assert set(exits) <= {0, -signal.SIGKILL}, [process.said for process in scene.processes]
    return exits


async def moved(app: Outlast, before: str, after: str) -> None:
    """Move all that stays with a deployment to the next, as soon as a worker has named that."""
    known: set[str] = set()
    while after not in known:
        known = {each.name for each in await app.deployments.list()}
        await asyncio.sleep(0.01)
    await app.deployments.retire(before, to=after)
    found = {each.name: each for each in await app.deployments.list()}
    assert found[before].can_be_retired, found[before]


def commits_of(scene: Scene) -> int:
    said = [line for process in scene.processes for line in process.said]
    return sum(int(line.split()[0]) for line in said if line.endswith(" commits"))


async def read_logs(store: Store, book: Book) -> list[Log]:
    starts = book.starts()
    return [
        Log(
            session_id=info.session_id,
            agent=info.agent,
            entries=tuple(await read_log(store, info.session_id)),
            deliveries=tuple(await store.listing.deliveries(info.session_id)),
            starts=tuple(start for start in starts if start.agent == info.agent),
            findings=tuple(str(finding) for finding in await verify(store, info.session_id)),
        )
        for info in sorted(await store.listing.sessions(), key=lambda info: info.agent)
    ]


async def read_log(store: Store, session_id: str) -> list[Entry]:
    entries: list[Entry] = []
    cursor = 0
    while True:
        page = await store.log.read(session_id, cursor)
        entries += page.entries
        if page.cursor >= page.end:
            return entries
        cursor = page.cursor


def read_seats(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection, suppress(sqlite3.OperationalError):
        return [seat for (seat,) in connection.execute("SELECT seat FROM seats")]
    return []


async def plight(scene: Scene) -> str:
    """Say where all are stuck."""
    said = [(process.said, process.exit) for process in scene.processes]
    async with scene.open() as app:
        sessions = await app.sessions()
        logs = [await read_log(app.store, info.session_id) for info in sessions]
    last = [[entry.record for entry in log[-8:]] for log in logs]
    return f"{said} {[info.lanes for info in sessions]} {last}"


async def until_event(session: Session[Any], kind: str) -> None:
    """Read the session's events up to the first of a kind."""
    async with asyncio.timeout(DEADLINE):
        async for event in session.events():
            if event.type == kind:
                return
    raise AssertionError(f"there was no {kind}")
