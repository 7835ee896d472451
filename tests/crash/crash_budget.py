"""A tree of agents under budgets of its session, its principal and its tenant, whose worker dies.

A message says how wide the tree is: "2 3" asks two managers, each of whom asks three clerks. The
provider notes in the book what it is asked and what it has answered; it can take its worker down
when it is asked, in the middle of an answer, and when it has given all of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

from crash_book import Book
from crash_process import DEADLINE, Process, Zygote

from outlast import (
    Agent,
    Budget,
    Context,
    Limits,
    ModelOptions,
    Outlast,
    Result,
    Session,
    WorkerSettings,
    tool,
)
from outlast.agents.model.client import FinishedAnswer, ModelPiece, ModelRequest, TextPiece
from outlast.clock import Clock
from outlast.core.amount import BudgetKey
from outlast.core.message import UserMessage, text_of
from outlast.core.result import Usage
from outlast.log_context import known
from outlast.stores.url import store_of
from outlast.testing import ScriptedModel, ScriptedReply, calls, say
from outlast.testing.crash import CrashingStore, When
from outlast.testing.scripted import answers_given
from outlast.usage import ModelPrice, Prices

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from spending import Spending, findings_in, overdraft, reservations, spending_of

HASTE = WorkerSettings(poll=0.02, watch=0.02, lease=6.0, grace=0.05, stop_grace=0.05, flush=0.02)
LEVELS = ("desk", "manager", "clerk")
PRICES = Prices(
    known={
        "large": ModelPrice(input=3, output=15),
        "small": ModelPrice(input="0.25", output="1.25"),
    },
    version="of May",
)
ANSWER = "What was asked for below is done, and all of it was found in good order by everybody."
MOST_OUTPUT = 60
OF_SESSION: Mapping[str, Any] = {"tokens": 40_000, "steps": 60}
LITTLE = 400
"""So many tokens may be too few for the next call."""

Moment = Literal["asked", "answering", "answered"]
"""When the provider takes its worker down."""


class Provider(ScriptedModel):
    """A provider that charges for what it is asked and for what it says.

    The input is more than anybody counts beforehand, so that calls take more than they reserved.
    """

    def __init__(self, level: str, book: Book, dies: Dies) -> None:
        self._level = LEVELS.index(level)
        self._book = book
        self._dies = dies
        super().__init__(self._next, name="large" if level == "desk" else "small")

    def _next(self, request: ModelRequest) -> ScriptedReply:
        """Ask those below and look something up; then say how it went."""
        if answers_given(request):
            return say(ANSWER, chunks=4, pace=0.005)
        first = request.view.messages[0]
        assert isinstance(first, UserMessage)
        _, *widths = text_of(first.content).split()
        below = {"message": " ".join(["go", *widths[1:]])}
        children = [(LEVELS[self._level + 1], below)] * int(widths[0]) if widths else []
        return calls(*children, ("look", {"at": LEVELS[self._level]}))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        self._book.start(str(known()["session"]), request.call_id, request.attempt)
        self._dies.at("asked")
        async for piece in super().stream(request):
            if isinstance(piece, FinishedAnswer):
                self._dies.at("answered")
                piece = self._charged(request, piece)
            yield piece
            if isinstance(piece, TextPiece):
                self._dies.at("answering")

    def _charged(self, request: ModelRequest, answer: FinishedAnswer) -> FinishedAnswer:
        asked = 20 + sum(len(str(message)) for message in request.view.messages) // 3
        said = sum(len(str(part)) for part in answer.parts) // 4
        usage = Usage(asked, min(said, MOST_OUTPUT), cache_read_tokens=7)
        return FinishedAnswer(answer.parts, usage, self.name, "stop")


class Dies:
    """Ends the process at the n-th time that a moment comes; 0: never."""

    def __init__(self, moment: str = "", nth: int = 0) -> None:
        self._moment = moment
        self._left = nth

    def at(self, moment: Moment) -> None:
        if moment == self._moment:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def tree(book: Book, dies: Dies, budget: Mapping[str, Any] = OF_SESSION) -> list[Agent[Any, Any]]:
    """Return the agents, the one at the top first, whose sessions have this budget."""

    @tool(readonly=True)
    async def look(ctx: Context[Any], at: str) -> str:
        await asyncio.sleep(0.005)
        return f"seen from the {at}"

    found: list[Agent[Any, Any]] = []
    for level in reversed(LEVELS):
        agent: Agent[Any, Any] = Agent(
            level,
            Provider(level, book, dies),
            tools=[look],
            subagents=found[-1:],
            budget=Budget(**budget) if level == "desk" else None,
            model_options=ModelOptions(prices=PRICES, settings={"max_tokens": MOST_OUTPUT}),
            limits=Limits(max_crashes=100),
        )
        found.append(agent)
    return found[::-1]


async def work(
    say_: Callable[[str], None],
    *,
    url: str,
    book: str,
    budget: Mapping[str, Any] = OF_SESSION,
    at: int = 0,
    when: When = "before",
    moment: str = "",
    nth: int = 0,
) -> None:
    """Be a worker until SIGTERM, until a commit that kills it, or until its provider does."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    clock = Clock()
    store = CrashingStore(store_of(url, clock), at, when)
    agents = tree(Book(book), Dies(moment, nth), budget)
    async with Outlast(agents, store=store, clock=clock, worker=HASTE):
        say_("at work")
        await stop.wait()
    say_(f"{store.commits} commits")


JOBS = {"work": work}


@dataclass(frozen=True)
class Kill:
    """Where a worker dies: at a commit, or at a moment of its provider."""

    at: int = 0
    when: When = "before"
    moment: str = ""
    nth: int = 0

    def __str__(self) -> str:
        return f"{self.moment} {self.nth}" if self.moment else f"{self.when} commit {self.at}"


@dataclass(frozen=True)
class SpendingRun:
    """What is known of some sessions of a tenant that have ended."""

    spending: Spending
    findings: tuple[str, ...]
    asked: Counter[tuple[str, str]]
    outputs: tuple[str | None, ...]
    overdrawn: int
    kills: int

    def complaints(self) -> Iterator[str]:
        """Say what a kill must not have changed, and has."""
        yield from self.findings
        yield from self.spending.complaints()
        yield from every_call_is_recorded(self.spending, self.asked, self.kills)
        tenant = self.spending.logs[0].info.tenant
        most = overdraft(reservations(self.spending, tenant, BudgetKey("tenant")), "tokens")
        if self.overdrawn > most:
            yield f"{self.overdrawn} tokens too many were spent, and {most} at most are right"
        if set(self.outputs) != {ANSWER}:
            yield f"the answers were {self.outputs}"


def every_call_is_recorded(
    spending: Spending, asked: Counter[tuple[str, str]], kills: int
) -> Iterator[str]:
    """Each call of the provider has its usage; one that was about to be made may have one too."""
    told = Counter(
        (log.info.session_id, used.call_id) for log in spending.logs for _, used in log.usage
    )
    for call in asked | told:
        if not asked[call] <= told[call] <= asked[call] + kills:
            yield f"{call} was asked {asked[call]} times, and {told[call]} usages are recorded"


class Operator:
    """Raises the budget of a tenant whenever little of it is free, and notes how it stood then."""

    def __init__(self, app: Outlast, tenant: str, **limits: Any) -> None:
        self._app = app
        self._tenant = tenant
        self._limits = limits
        self.raised = 0
        self.overdrawn: list[int] = []
        """By how many tokens, whenever it was looked at."""

    @asynccontextmanager
    async def raising(self, tokens: int, step: int) -> AsyncIterator[None]:
        await self._set(tokens)
        raising = asyncio.create_task(self._raise(tokens, step))
        try:
            yield
        finally:
            raising.cancel()
            await asyncio.gather(raising, return_exceptions=True)

    async def _raise(self, tokens: int, step: int) -> None:
        while True:
            while not await self._is_short(tokens):  # noqa: ASYNC110 - budgets have no event
                await asyncio.sleep(0.02)
            tokens += step
            self.raised += 1
            await self._set(tokens)

    async def _set(self, tokens: int) -> None:
        await self._app.budgets.set(Budget(**self._limits, tokens=tokens), tenant=self._tenant)

    async def _is_short(self, tokens: int) -> bool:
        status = await self._app.budgets.get(tenant=self._tenant)
        assert status
        self.overdrawn.append(status.spent.tokens - tokens)
        return tokens - status.spent.tokens < LITTLE


async def run_tree(
    zygote: Zygote, place: Path, url: str, tenant: str, kill: Kill, wide: Sequence[str]
) -> SpendingRun:
    """Start sessions of a tenant, kill their worker once, and have another worker end them."""
    book = Book(f"{place}.jsonl")
    order = {"url": url, "book": book.path}
    app = Outlast(tree(book, Dies()), store=url, worker=None)
    async with asyncio.timeout(DEADLINE), app:
        operator = Operator(app, tenant, usd=1, model_calls=90)
        of_day = Budget(usd=1, tool_calls=tools_of(wide), on_end="fail")
        await app.budgets.set(of_day, tenant=tenant, per="day")
        await app.budgets.set(Budget(tokens=70_000), tenant=tenant, principal="ada")
        async with operator.raising(600, 400):
            first = await zygote.run("work", **order, **asdict(kill))
            sessions = [
                await app.start("desk", message, tenant=tenant, principal=who)
                for message, who in zip(wide, cycle(["ada", "bob"]), strict=False)
            ]
            killed, last, results = await end_with_another(zygote, first, order, sessions)
        await last.stop()
        spending = await spending_of(app, tenant)
        return SpendingRun(
            spending=spending,
            findings=tuple(await findings_in(app, spending)),
            asked=Counter((start.agent, start.call_id) for start in book.starts()),
            outputs=tuple(result.output for result in results),
            overdrawn=max(operator.overdrawn),
            kills=int(killed),
        )


async def end_with_another(
    zygote: Zygote, first: Process, order: Mapping[str, Any], sessions: Sequence[Session[Any]]
) -> tuple[bool, Process, list[Result[Any]]]:
    """Have another worker go on once the first is dead, if it dies; wait for all sessions."""
    ends = asyncio.ensure_future(asyncio.gather(*(session.wait() for session in sessions)))
    dies = asyncio.ensure_future(first.until_exit())
    await asyncio.wait([ends, dies], return_when=asyncio.FIRST_COMPLETED)
    if not dies.done():
        dies.cancel()
        return False, first, await ends
    assert dies.result() == -signal.SIGKILL
    return True, await zygote.run("work", **order), await ends


def tools_of(wide: Sequence[str]) -> int:
    """Return how many tool calls such trees make: each agent looks, and all but the top are called.

    So many are allowed in a day: one that is counted twice is one too many.
    """
    agents = 0
    for message in wide:
        of_level = 1
        for width in ["1", *message.split()[1:]]:
            of_level *= int(width)
            agents += of_level
    return 2 * agents - len(wide)
