"""Sessions of one tenant with children on two levels, under one budget, whose workers are killed.

The tenant's budget is too small and is raised while they wait for it; that of each session is too
small as well, so that children ask, and a human allows more at the top. The agents and the provider
are those of tests/crash (`crash_budget.py`), and so is most of what must be true in the end.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from chaos.place import Place

sys.path.insert(0, str(Path(__file__).parents[1] / "crash"))

from crash_book import Book
from crash_budget import ANSWER, Dies, Operator, every_call_is_recorded, tree
from crash_process import Process, Zygote
from spending import (
    Spending,
    findings_in,
    no_budget_is_overspent,
    nothing_stays_reserved,
    overdraft,
    reservations,
    spending_of,
    spent_is_what_was_charged,
    usage_is_what_was_recorded,
)

from outlast import Outlast, Session
from outlast.core import record as r
from outlast.core.amount import BudgetKey
from outlast.errors import RequestClosed

TENANT = "acme"
HUMAN = "grace"
FEW = {"steps": 7}
"""What a session may use: about half of what its tree needs."""
TWICE = 0.3
"""How often a human says again what was said."""


class BudgetSettings(Struct, frozen=True, kw_only=True):
    """How a run goes. Durations are seconds."""

    sessions: int = 20
    tree: str = "go 2 2"
    workers: int = 3
    kills: int = 40
    pause: float = 0.4
    tokens: int = 3_000
    """What the tenant may use at first, and how much more whenever that is spent."""
    seed: int = 0
    timeout: float = 170.0


class BudgetReport(Struct, kw_only=True):
    """What came of a run; `checks` have what each of them found."""

    store: str
    sessions: int = 0
    calls: int = 0
    estimated: int = 0
    kills: int = 0
    extended: int = 0
    raised: int = 0
    overdrawn: int = 0
    allowed: int = 0
    seconds: float = 0.0
    checks: dict[str, list[str]] = {}

    @property
    def wrong(self) -> list[str]:
        return [f"{name}: {text}" for name, found in self.checks.items() for text in found]

    def __str__(self) -> str:
        kept = [name for name, found in self.checks.items() if not found]
        lines = [
            f"{self.store}: one budget for {self.sessions} sessions, {self.kills} kills in"
            f" {self.seconds:.0f} s: {len(self.wrong) or 'nothing'} found wrong;"
            f" {self.calls} model calls, {self.estimated} of them cut off, raised {self.raised}"
            f" times, {self.extended} extensions by humans, overdrawn by {self.overdrawn} tokens"
            f" of {self.allowed} that calls in flight explain",
            f"  kept: {', '.join(kept)}",
            *(f"  {text}" for text in self.wrong[:20]),
        ]
        return "\n".join(lines)


class BudgetRun:
    """The director: sessions are started, people answer, workers are killed and replaced."""

    def __init__(
        self, settings: BudgetSettings, directory: Path, place: Place, zygote: Zygote
    ) -> None:
        self._settings = settings
        self._book = Book(directory / "book.jsonl")
        self._place = place
        self._zygote = zygote
        self._chance = Random(settings.seed)
        self._workers: list[Process] = []
        self._allowed: list[str] = []
        self._complaints: list[str] = []

    async def run(self) -> BudgetReport:
        settings, began = self._settings, time.monotonic()
        report = BudgetReport(store=self._place.name)
        app = Outlast(tree(self._book, Dies(), FEW), store=self._place.url, worker=None)
        async with asyncio.timeout(settings.timeout), app:
            operator = Operator(app, TENANT)
            async with operator.raising(settings.tokens, settings.tokens):
                for _ in range(settings.workers):
                    await self._hire()
                sessions = [await self._start(app, n) for n in range(settings.sessions)]
                talks = asyncio.gather(*(self._talk(session) for session in sessions))
                report.kills = await self._kill_until(asyncio.ensure_future(talks))
            for worker in self._workers:
                await worker.stop()
            spending = await spending_of(app, TENANT)
            report.checks = await self._checks(app, spending, operator, report)
        report.seconds = time.monotonic() - began
        return report

    async def _hire(self) -> None:
        order = {"url": self._place.url, "book": self._book.path, "budget": FEW}
        self._workers.append(await self._zygote.run("work", **order))

    async def _start(self, app: Outlast, number: int) -> Session[Any]:
        principal = f"user-{number % 3}"
        return await app.start("desk", self._settings.tree, tenant=TENANT, principal=principal)

    async def _talk(self, session: Session[Any]) -> None:
        """Allow more whenever somebody in a tree asks for it, once."""
        answered: set[str] = set()
        while (result := await session.wait()).requests:
            for request in result.requests:
                if request.request_id not in answered:
                    answered.add(request.request_id)
                    await self._allow(session, request.request_id)
            await asyncio.sleep(0.02)
        if result.output != ANSWER:
            self._complaints.append(f"{session.id} came to {result}")

    async def _allow(self, session: Session[Any], request_id: str) -> None:
        await session.answer(request_id, "extend", principal=HUMAN)
        self._allowed.append(request_id)
        if self._chance.random() < TWICE:
            try:
                await session.answer(request_id, "stop", principal=HUMAN)
            except RequestClosed:
                return
            self._complaints.append(f"{request_id} was answered twice")

    async def _kill_until(self, over: asyncio.Future[Any]) -> int:
        """Kill one worker after the other, and put another in its place, until all is over."""
        killed = 0
        while not over.done() and killed < self._settings.kills:
            victim = self._workers.pop(self._chance.randrange(len(self._workers)))
            await victim.until_said("at work")
            nap = self._chance.uniform(0.0, 2.0) * self._settings.pause
            await asyncio.wait([over], timeout=nap)
            victim.signal(signal.SIGKILL)
            killed += await victim.until_exit() == -signal.SIGKILL
            await self._hire()
        await over
        return killed

    # What is left

    async def _checks(
        self, app: Outlast, spending: Spending, operator: Operator, report: BudgetReport
    ) -> dict[str, list[str]]:
        key = BudgetKey("tenant")
        asked = Counter((start.agent, start.call_id) for start in self._book.starts())
        report.sessions = len(spending.logs)
        report.calls = sum(asked.values())
        report.estimated = sum(u.estimated for log in spending.logs for _, u in log.usage)
        report.extended = len(self._allowed)
        report.raised = operator.raised
        report.overdrawn = max(operator.overdrawn)
        report.allowed = overdraft(reservations(spending, TENANT, key), "tokens")
        over = [f"at a time by {report.overdrawn} tokens, and {report.allowed} are explained"]
        return {
            "budget is not overspent": [
                *no_budget_is_overspent(spending),
                *(over if report.overdrawn > report.allowed else []),
            ],
            "usage is what was recorded": [
                *usage_is_what_was_recorded(spending),
                *every_call_is_recorded(spending, asked, report.kills),
            ],
            "nothing stays reserved": [
                *nothing_stays_reserved(spending),
                *spent_is_what_was_charged(spending),
            ],
            "no extension is lost": [*extensions_differ(spending, self._allowed)],
            "verify finds nothing": await findings_in(app, spending),
            "nobody complains": self._complaints,
        }


def extensions_differ(spending: Spending, allowed: list[str]) -> Iterator[str]:
    """Each request that was allowed is answered once, and its budgets are that much larger."""
    answered = Counter(
        e.record.request_id
        for log in spending.logs
        for e in log.entries
        if isinstance(e.record, r.RequestResolved) and e.record.option == "extend"
    )
    asked = {
        e.record.request_id: e.record.origin or log.info.session_id
        for log in spending.logs
        for e in log.entries
        if isinstance(e.record, r.RequestOpened)
    }
    for request_id in allowed:
        if answered[request_id] != 1 or request_id not in asked:
            yield f"{request_id} was allowed, and is answered {answered[request_id]} times"
    yield from limits_differ(spending)


def limits_differ(spending: Spending) -> Iterator[str]:
    """The budget at the top of each tree has what was allowed anywhere in it."""
    parents = {log.info.session_id: log.info.parent for log in spending.logs}
    more: Counter[str] = Counter()
    for log in spending.logs:
        top = log.info.session_id
        while parent := parents[top]:
            top = parent
        extended = (e.record for e in log.entries if isinstance(e.record, r.BudgetExtended))
        more[top] += sum(e.by.steps for e in extended if e.principal == HUMAN)
    for top, steps in more.items():
        state = spending.states[TENANT, BudgetKey("session", top)]
        if state.terms.limits.steps != FEW["steps"] + steps:
            yield f"{top} may make {state.terms.limits.steps} steps, and {steps} were added"


async def run_budgets(settings: BudgetSettings, directory: Path, place: Place) -> BudgetReport:
    """Have sessions spend under kills, and return what came of it."""
    zygote = await Zygote.start("crash_budget")
    try:
        return await BudgetRun(settings, directory, place, zygote).run()
    finally:
        await zygote.stop()
