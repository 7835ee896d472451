"""What the processes of the crash tests do."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from crash_agent import agents
from crash_book import Book
from crash_gate import until_open

from holdfast import Holdfast, Session, WorkerSettings
from holdfast.errors import DispatchConflict
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import CrashingStore
from holdfast.testing.crash import When

Say = Callable[[str], None]


async def work(
    say: Say,
    *,
    database: str,
    book: str,
    at: int = 0,
    when: When = "before",
    lease: float = 30.0,
    grace: float = 5.0,
) -> None:
    """Be a worker until SIGTERM, or until a commit that kills it."""
    store = CrashingStore(SqliteStore(database), at, when)
    settings = WorkerSettings(lease=lease, grace=grace)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    async with Holdfast(agents(Book(book)), store=store, worker=settings):
        say("at work")
        await stop.wait()
    say(f"{store.commits} commits")


async def dispatch(
    say: Say, *, database: str, book: str, gate: str, message: str, times: int
) -> None:
    """Start a session and send it something, many times at once under the same ids."""
    app = Holdfast(agents(Book(book)), store=SqliteStore(database), worker=None)
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
