"""A workflow of everything that a body can do, whose worker is killed at a commit.

The book says what was really done; what a step that was cut off came to is looked up there, by the
step's own function or by the human who is asked.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from crash_book import Book
from crash_process import Process, Zygote

from outlast import NotDone, Outlast, Run, WorkerSettings, Workflow, WorkflowContext, workflow
from outlast.clock import Clock
from outlast.core import record as r
from outlast.core.record import Entry
from outlast.errors import RequestClosed, RunFailed, StepError, StepInterrupted
from outlast.log.verify import verify
from outlast.store import Transaction
from outlast.stores.url import store_of
from outlast.testing.crash import CrashingStore, CrashPoint
from outlast.testing.simulation.check_workflow import wrong_in_log

R = TypeVar("R")

HASTE = WorkerSettings(poll=0.02, watch=0.02, lease=6.0, grace=0.05, stop_grace=0.05)
DONE = ["a", "b", "asked", "c", "read", "x", "y"]
PERHAPS = {"perhaps", "careful"}
REPEATED = {"c", "read"}
UNDONE = ["undo y", "undo x", "undo a"]
SEATS = ["s1", "s2", "s3"]
MAKE = "CREATE TABLE IF NOT EXISTS seats (seat TEXT)"


def flows(book: Book) -> list[Workflow[Any, Any]]:
    """Return the workflow and its child. All but what may be rerun is done at most once."""

    async def do(what: str) -> str:
        book.effect(what)
        return what

    async def look(what: str) -> Any:
        return what if what in book.effects() else NotDone

    async def undo(what: str) -> None:
        book.effect(f"undo {what}")

    async def look_undone(what: str) -> Any:
        return None if f"undo {what}" in book.effects() else NotDone

    async def reserve(tx: Transaction, seat: str) -> str:
        await tx.execute(MAKE)
        await tx.execute(f"INSERT INTO seats VALUES ('{seat}')")  # noqa: S608 - for both dialects
        return seat

    @workflow
    async def child(ctx: WorkflowContext, number: int) -> int:
        await ctx.sleep(0.01)
        await ctx.step(reserve, "s3", transactional=True)
        return number * 2

    @workflow
    async def careful(ctx: WorkflowContext) -> None:
        await ctx.step(do, "careful", on_interrupt="fail")

    async def page(ctx: WorkflowContext, what: str) -> str:
        ctx.on_undo(undo, what, on_interrupt=look_undone)
        return await ctx.step(do, what, on_interrupt=look)

    @workflow
    async def everything(ctx: WorkflowContext) -> None:
        ctx.on_undo(undo, "a", on_interrupt=look_undone)
        await ctx.step(do, "a", on_interrupt=look)
        await ctx.gather(
            ctx.step(do, "b", on_interrupt=look),
            ctx.step(do, "c", on_interrupt="rerun"),
            ctx.step(do, "read", readonly=True),
            ctx.step(reserve, "s1", transactional=True),
        )
        await ctx.step(do, "asked", on_interrupt="ask")
        await ctx.step(reserve, "s2", transactional=True)
        first = await ctx.first(nap=ctx.sleep(0.01), never=ctx.wait_event("never"))
        events = [await ctx.wait_event("go"), await ctx.wait_event("go")]
        await ctx.map(lambda what: page(ctx, what), ["x", "y"], concurrency=1)
        doubled = await ctx.run(child, 21)
        ctx.emit("told", [first.name, *events, doubled])
        try:
            await ctx.run(careful)
        except RunFailed:
            ctx.emit("cut", "careful")
        try:
            await ctx.step(do, "perhaps")
        except StepInterrupted:
            ctx.now()
        try:
            await ctx.step(fail, max_attempts=2, on_interrupt="rerun")
        except StepError:
            raise ValueError(f"{ctx.random()}") from None

    async def fail() -> None:
        raise ConnectionError("away")

    return [everything, child, careful]


async def carry(say: Callable[[str], None], *, url: str, book: str, at: int, when: Any) -> None:
    """Be a worker, until SIGTERM or a kill."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    clock = Clock()
    store = CrashingStore(store_of(url, clock), at, when)
    async with Outlast(flows(Book(book)), store=store, clock=clock, worker=HASTE):
        say("at work")
        await stop.wait()


JOBS = {"work": carry}


@dataclass(frozen=True)
class FlowRun:
    """What is known of a run that has ended."""

    status: str
    error: str
    effects: list[str]
    seats: list[str]
    logs: list[list[Entry]]
    findings: list[Any]
    was_killed: bool

    def records(self, kind: type[R]) -> list[R]:
        return [e.record for log in self.logs for e in log if isinstance(e.record, kind)]

    def complaints(self) -> Iterator[str]:
        """Say what a kill must not have changed, and has."""
        counts = Counter(self.effects)
        twice = {what for what, times in counts.items() if times > 1} - REPEATED
        if twice:
            yield f"done twice: {sorted(twice)}"
        if missing := [what for what in DONE if what not in counts]:
            yield f"not done: {missing}"
        if more := counts.keys() - {*DONE, *UNDONE, *PERHAPS}:
            yield f"done without reason: {more}"
        if self.seats != SEATS:
            yield f"reserved: {self.seats}"
        undone = [what for what in self.effects if what.startswith("undo")]
        if undone != UNDONE:
            yield f"undone: {undone}"
        if self.status != "errored" or not self.error.startswith("ValueError: 0."):
            yield f"it is {self.status}: {self.error}"
        told = [json.loads(e.data) for e in self.records(r.ToolEmitted) if e.name == "told"]
        if told != [["nap", 1, 2, 42]]:
            yield f"told: {told}"
        for log in self.logs:
            yield from wrong_in_log(entry.record for entry in log)
        if self.findings:
            yield f"verify: {self.findings}"


async def run_flow(zygote: Zygote, place: Path, url: str, point: CrashPoint) -> FlowRun:
    """Start a run, kill its worker at a point, and have another worker end it."""
    book = Book(f"{place}.jsonl")
    url = url or f"sqlite:///{place}.db"
    async with asyncio.timeout(60), Outlast(flows(book), store=url, worker=None) as app:
        run: Run[Any] = await app.run("everything", dispatch_id=str(point))
        for number in (1, 2):
            await run.send_event("go", number)
        before = await seats_of(app)
        order = {"url": url, "book": book.path}
        first = await zygote.run("work", **order, at=point.commit, when=point.when)
        killed = await until_over(first, run)
        if killed:
            second = await zygote.run("work", **order, at=0, when="before")
            await answer_all(run, book)
            await second.stop()
        else:
            first.signal(signal.SIGTERM)
            assert await first.until_exit() in (0, -signal.SIGKILL)  # perhaps at its last commit
        result = await run.wait()
        runs = [run.id, *(i.session_id for i in await app.store.listing.sessions(parent=run.id))]
        seats = (await seats_of(app)) - before
        return FlowRun(
            status=result.status,
            error=result.error.message if result.error else "",
            effects=book.effects(),
            seats=sorted(seats.elements()),
            logs=[list((await app.store.log.read(name, 0, 100_000)).entries) for name in runs],
            findings=[finding for name in runs for finding in await verify(app.store, name)],
            was_killed=killed,
        )


async def seats_of(app: Outlast) -> Counter[str]:
    """Count what was reserved in this store, by this run and those before it."""
    async with app.store.log.transaction() as tx:  # undone: it commits nothing
        await tx.execute(MAKE)
        return Counter(seat for [seat] in await tx.fetch("SELECT seat FROM seats"))


async def answer_all(run: Run[Any], book: Book) -> None:
    """Say of each step that was cut off whether it was done, until the run has ended."""
    while (found := await run.wait()).status == "waiting":
        for request in found.requests:
            was_done = "asked" in book.effects()
            with suppress(RequestClosed):
                await run.answer(request, "done" if was_done else "rerun", text="asked")


async def until_over(worker: Process, run: Run[Any]) -> bool:
    """Wait for a worker's death or the run's end, and say whether it was killed."""
    dies, ends = asyncio.create_task(worker.until_exit()), asyncio.create_task(run.wait())
    await asyncio.wait({dies, ends}, return_when=asyncio.FIRST_COMPLETED)
    was_killed = dies.done()
    for task in (dies, ends):
        task.cancel()
    await asyncio.gather(dies, ends, return_exceptions=True)
    return was_killed
