"""The workflow of the chaos runs: steps of every manner, branches, events, children and undo."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

from chaos.agent import INSERT
from chaos.ledger import Ledger
from chaos.user import Diary
from outlast import NotDone, Outlast, Run, Workflow, WorkflowContext, workflow
from outlast.errors import RequestClosed, RunFailed, SessionOver, StepInterrupted
from outlast.store import Transaction

ERRAND = "errand"
EVENTS = 2
FAILS = 3
"""One in so many runs fails in the end, and is undone."""
CANCELS = 0.1


def errands(ledger: Ledger, url: str = "") -> list[Workflow[Any, Any]]:
    """Return the workflow and its child; all that their steps do is in the ledger."""
    values = "(?, ?)" if url.startswith("sqlite") else "(%s, %s)"

    async def do(run: str, what: str) -> str:
        await asyncio.sleep(0.05)
        ledger.mark("did", session=run, key=what)
        await asyncio.sleep(0.05)
        return what

    def look(run: str, what: str) -> Any:
        """Ask the outside world whether it was done."""
        done = (m for m in ledger.read() if m.what == "did" and m.session == run)
        return what if any(m.key == what for m in done) else NotDone

    async def book(tx: Transaction, run: str, what: str) -> None:
        await tx.execute(INSERT + values, (run, what))

    @workflow
    async def trip(ctx: WorkflowContext, number: int) -> int:
        await ctx.step(do, ctx.id, "leave", name="leave", on_interrupt="fail")
        await ctx.sleep(0.2)
        return number

    async def stop_at(ctx: WorkflowContext, shop: str) -> None:
        ctx.on_undo(do, ctx.id, f"undo {shop}", name=f"undo {shop}", on_interrupt=look)
        with suppress(StepInterrupted):
            await ctx.step(do, ctx.id, shop, name=shop)

    async def ask_about(ctx: WorkflowContext) -> None:
        # Its user gives up on it where it was cut off: then nobody knows, and the errand goes on.
        with suppress(StepInterrupted):
            await ctx.step(do, ctx.id, "asked", name="asked", on_interrupt="ask")

    @workflow(name=ERRAND)
    async def errand(ctx: WorkflowContext, number: int) -> list[int]:
        await ctx.step(do, ctx.id, "look", name="look", readonly=True)
        await stop_at(ctx, "baker")
        await ctx.gather(
            ctx.step(do, ctx.id, "found", name="found", on_interrupt=look),
            ctx.step(book, ctx.id, "book", name="book", transactional=True),
            ask_about(ctx),
        )
        await ctx.first(nap=ctx.sleep(0.1), never=ctx.wait_event("never"))
        got = [await ctx.wait_event("go", kind=int) for _ in range(EVENTS)]
        await ctx.map(lambda shop: stop_at(ctx, shop), ["butcher", "grocer"], concurrency=1)
        with suppress(RunFailed):
            await ctx.run(trip, number)
        if number % FAILS == 0:
            raise ValueError("it rains")
        return got

    return [errand, trip]


class Runner:
    """A user with one run: starts it twice, sends its events twice, and answers what it asks."""

    def __init__(self, name: str, app: Outlast, diary: Diary, chance: Random) -> None:
        self._name = name
        self._app = app
        self._diary = diary
        self._chance = chance

    async def live(self, number: int) -> None:
        run = await self._start(number)
        self._diary.runs.append(run.id)
        if (await self._start(number)).id != run.id:
            self._diary.complaints.append(f"{run.id} was started twice")
        with suppress(SessionOver):
            for event in range(EVENTS):
                await self._send(run, event)
                await self._send(run, event)
        cancels = self._chance.random() < CANCELS
        if cancels:
            await self._diary.insist(lambda: run.cancel("changed my mind"))
        while (found := await self._diary.insist(run.wait)).status == "waiting":
            for request in found.requests:
                with suppress(RequestClosed, SessionOver):
                    await self._diary.insist(lambda: run.answer(request, "give_up"))  # noqa: B023
        due = "errored" if number % FAILS == 0 else "completed"
        if found.status != due and not (cancels and found.status == "cancelled"):
            self._diary.complaints.append(f"{run.id} is {found.status}: {found.error}")
        if found.status == "completed" and found.output != [*range(EVENTS)]:
            self._diary.complaints.append(f"{run.id} was given the events {found.output}")

    async def _start(self, number: int) -> Run[Any]:
        async def ask() -> Run[Any]:
            return await self._app.run(ERRAND, number, dispatch_id=f"run {self._name}")

        return await self._diary.insist(ask)

    async def _send(self, run: Run[Any], event: int) -> None:
        dispatch = f"event {event} of {self._name}"
        await self._diary.insist(lambda: run.send_event("go", event, dispatch_id=dispatch))
