"""What the processes of the crash tests do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from threading import Thread
from time import sleep
from typing import Any

from crash_agent import agents, agents_writing_to
from crash_clock import SharedClock
from crash_gate import until_open
from crash_signer import signing_in

from outlast import Outlast, Schedule, Session, WorkerSettings, WorkflowContext, workflow
from outlast.clock import Clock
from outlast.errors import DispatchConflict
from outlast.store import Store
from outlast.stores.sqlite import SqliteStore
from outlast.stores.url import store_of
from outlast.testing import CrashingStore
from outlast.testing.crash import When
from outlast.testing.wrapped_store import WrappedStore

Say = Callable[[str], None]


class DiesAt(WrappedStore):
    """Ends the process by SIGKILL before or after the first call of one of its methods.

    `method` is written `topic.method`, or `document.method:kind` for documents of one kind.
    """

    def __init__(self, store: Store, method: str, when: When) -> None:
        super().__init__(store)
        method, _, kind = method.partition(":")
        topic, _, method = method.partition(".")
        real = getattr(getattr(store, topic), method)

        async def die(*args: Any, **options: Any) -> Any:
            if kind and args[0].kind != kind:
                return await real(*args, **options)
            if when == "after":
                await real(*args, **options)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("nobody gets here")

        setattr(self, method, die)


def open_store(database: str, clock: Clock, dies_at: str, when: When) -> Store:
    store = store_of(database, clock) if "://" in database else SqliteStore(database, clock)
    return DiesAt(store, dies_at, when) if dies_at else store


def guard_memory(most: int) -> None:
    """Stand in for the kernel, which kills a process that takes too much."""
    began = resident()
    while True:
        if resident() - began > most:
            os.kill(os.getpid(), signal.SIGKILL)
        sleep(0.001)


def resident() -> int:
    """Return how many bytes of memory this process has now."""
    with open("/proc/self/statm") as found:
        return int(found.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@workflow
async def clean(ctx: WorkflowContext, room: str) -> str:
    await ctx.step(str.upper, room)
    return "cleaned"


def schedule(line: str, starts: str) -> Schedule:
    if starts == clean.name:
        return Schedule(line, workflow=clean, input="hall")
    return Schedule(line, agent=starts, message="Go!")


async def work(
    say: Say,
    *,
    database: str,
    book: str,
    clock: str,
    at: int = 0,
    when: When = "before",
    schedules: Sequence[str] = (),
    starts: str = "errand",
    provider: Mapping[str, Any] | None = None,
    dies_at: str = "",
    memory: int = 0,
    **settings: Any,
) -> None:
    """Be a worker until SIGTERM, or until a commit that kills it; `schedules` are cron lines of
    the agent or workflow that each `starts`.

    With `memory` it is killed as soon as it has taken so many bytes more than it began with.
    """
    if memory:
        Thread(target=guard_memory, args=(memory,), daemon=True).start()
    time = SharedClock(clock)
    store = CrashingStore(open_store(database, time, dies_at, when), at, when)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    async with Outlast(
        [*agents_writing_to(book), clean],
        store=store,
        clock=time,
        worker=WorkerSettings(**settings),
        schedules=[schedule(line, starts) for line in schedules],
        **signing_in(provider),
    ):
        say("at work")
        await stop.wait()
    say(f"{store.commits} commits")


async def dispatch(
    say: Say,
    *,
    database: str,
    book: str,
    clock: str,
    gate: str,
    message: str,
    times: int,
    provider: None = None,
) -> None:
    """Start a session and send it something, many times at once under the same ids."""
    time = SharedClock(clock)
    store = SqliteStore(database, time)
    app = Outlast(agents_writing_to(book), store=store, clock=time, worker=None)
    say("ready")
    await until_open(gate)
    async with app:
        seen = Counter(await asyncio.gather(*(admit(app, message) for _ in range(times))))
    say(json.dumps(seen))


async def admit(app: Outlast, message: str) -> str:
    """Return what became of a start and a follow-up, each under an id of its own."""
    try:
        session: Session[Any] = await app.start(
            "errand", message, dispatch_id="the start", tags={"customer": "42"}
        )
    except DispatchConflict as conflict:
        return conflict.code
    follow_up = await session.send(message, dispatch_id="the follow-up")
    assert session.receipt is not None
    return f"{session.id} {session.receipt.delivery_id} {follow_up.delivery_id}"


async def take_in(
    say: Say,
    *,
    database: str,
    book: str,
    clock: str,
    provider: Mapping[str, Any],
    back: Mapping[str, str],
    dies_at: str = "",
    when: When = "before",
) -> None:
    """Take in somebody who comes back from signing in, and say how that ended."""
    time = SharedClock(clock)
    store = open_store(database, time, dies_at, when)
    async with Outlast(
        agents_writing_to(book), store=store, clock=time, worker=None, **signing_in(provider)
    ) as app:
        say("here")
        say(await app.connections.complete("hub", **back))


agents()  # before any fork

JOBS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "work": work,
    "dispatch": dispatch,
    "take_in": take_in,
}
