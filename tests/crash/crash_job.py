"""What the processes of the crash tests do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from crash_agent import agents
from crash_book import Book
from crash_clock import SharedClock
from crash_gate import until_open

from holdfast import Holdfast, Schedule, Session, WorkerSettings
from holdfast.errors import DispatchConflict
from holdfast.store import Store
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import CrashingStore
from holdfast.testing.crash import When
from holdfast.testing.wrapped import WrappedStore

Say = Callable[[str], None]


class DiesAtSchedules(WrappedStore):
    """Ends the process by SIGKILL before or after a schedule is moved on."""

    def __init__(self, store: Store, when: When) -> None:
        super().__init__(store)
        self._when = when

    async def advance_schedule(self, *args: Any, **options: Any) -> bool:
        if self._when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        await self.inner.advance_schedule(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody gets here")


async def work(
    say: Say,
    *,
    database: str,
    book: str,
    clock: str,
    at: int = 0,
    when: When = "before",
    schedules: Sequence[str] = (),
    dies_at_schedules: bool = False,
    **settings: Any,
) -> None:
    """Be a worker until SIGTERM, or until a commit that kills it; `schedules` are cron lines."""
    time = SharedClock(clock)
    plain = SqliteStore(database, time)
    store = CrashingStore(DiesAtSchedules(plain, when) if dies_at_schedules else plain, at, when)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    async with Holdfast(
        agents(Book(book)),
        store=store,
        clock=time,
        worker=WorkerSettings(**settings),
        schedules=[Schedule(line, agent="errand", message="Go!") for line in schedules],
    ):
        say("at work")
        await stop.wait()
    say(f"{store.commits} commits")


async def dispatch(
    say: Say, *, database: str, book: str, clock: str, gate: str, message: str, times: int
) -> None:
    """Start a session and send it something, many times at once under the same ids."""
    time = SharedClock(clock)
    store = SqliteStore(database, time)
    app = Holdfast(agents(Book(book)), store=store, clock=time, worker=None)
    say("ready")
    await until_open(gate)
    async with app:
        seen = Counter(await asyncio.gather(*(admit(app, message) for _ in range(times))))
    say(json.dumps(seen))


async def admit(app: Holdfast, message: str) -> str:
    """Return what became of a start and a follow-up, each under an id of its own."""
    try:
        session: Session[Any] = await app.start("errand", message, dispatch_id="the start")
    except DispatchConflict as conflict:
        return conflict.code
    follow_up = await session.send(message, dispatch_id="the follow-up")
    assert session.receipt is not None
    return f"{session.id} {session.receipt.delivery_id} {follow_up.delivery_id}"


JOBS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"work": work, "dispatch": dispatch}
